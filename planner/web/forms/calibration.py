"""Forms of the calibration pages: the file, what to fit, what to compare it with."""

from __future__ import annotations

import json
from typing import Any

from django import forms

from planner.ingest.benchmarks import BENCHMARK_FORMATS
from planner.services.calibrations import Reading
from planner.services.fits import KINDS, Wanted
from planner.web.forms.widgets import dress
from simulation.performance.specs import BYTES

FORMATS = {
    "auto": "Find out from the file",
    "vllm": "vLLM serving benchmark (JSON)",
    "guidellm": "GuideLLM (JSON)",
    "wva": "Columns of the Workload Variant Autoscaler (CSV)",
    "splitwise": "splitwise-sim (CSV, ms)",
    "sageserve": "SageServe (CSV, s)",
    "csv": "Other CSV: model, gpu, tp, batch or concurrency, isl, osl, tbt_ms, prefill_ms, ttft_ms",
}
KIND_WORDS = {
    "linear": "Linear: ITL = α + β batch, prefill = γ + δ tokens",
    "table": "Table: interpolation between the measured rows",
}
PRECISIONS = [("", "as the file says"), *((p, p) for p in BYTES)]


def _name(label: str, options: str = "", **how: Any) -> forms.CharField:
    attrs = {"list": options} if options else {}
    widget = forms.TextInput(attrs=attrs)
    return forms.CharField(label=label, max_length=80, widget=widget, **how)


def _limit(label: str, hint: str) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=10**9, help_text=hint
    )


class MeasurementsForm(forms.Form):
    """A file of measurements, and what it does not say itself."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty; export it again."}
    )
    format = forms.ChoiceField(
        label="Format",
        required=False,
        choices=[(name, FORMATS.get(name, name)) for name in BENCHMARK_FORMATS],
    )
    model = _name("Model of every row", "model-names", required=False)
    gpu = _name("GPU of every row", "gpu-names", required=False)
    tp = forms.IntegerField(
        label="GPUs of an instance", required=False, min_value=1, max_value=1024
    )
    precision = forms.ChoiceField(label="Precision", required=False, choices=PRECISIONS)
    source = forms.CharField(
        label="Where it was measured",
        max_length=500,
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "cluster, engine and its version, date"}),
        help_text="Shown wherever a result rests on it; left empty, the file's name.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)

    def reading(self) -> Reading:
        said = self.cleaned_data
        return Reading(
            format=said["format"] or "auto",
            model=said["model"] or None,
            gpu=said["gpu"] or None,
            tp=said["tp"],
            precision=said["precision"] or None,
        )


class _RowsForm(forms.Form):
    rows = forms.ChoiceField(label="Rows of")

    def __init__(self, *args: Any, arrangements: list[dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["rows"].choices = [  # type: ignore[attr-defined]
            (arrangement_key(one), arrangement_words(one)) for one in arrangements
        ]
        dress(self)


class FitForm(_RowsForm):
    """What to fit from which rows; limits left empty follow from the rows and the memory."""

    kind = forms.ChoiceField(label="Kind", choices=[(k, KIND_WORDS[k]) for k in KINDS])
    name = _name("Name of the profile", "profile-names",
                 help_text="A name that is there already gets a new version.")  # fmt: skip
    model = _name("Model", "model-names")
    gpu = _name("GPU", "gpu-names")
    tp = forms.IntegerField(label="GPUs of an instance", min_value=1, max_value=1024)
    precision = forms.ChoiceField(label="Precision", choices=[(p, p) for p in BYTES])
    max_batch = _limit("Sequences in a batch", "Left empty: 256, or the largest batch of a table.")
    max_batch_tokens = _limit("Tokens of an iteration", "The chunked prefill budget; else 2,048.")
    kv_capacity_tokens = _limit(
        "KV cache, tokens", "Left empty: what nine tenths of the memory leave beside the weights."
    )

    def wanted(self) -> Wanted:
        said = self.cleaned_data
        model, gpu, _ = json.loads(said["rows"])
        keys = ("name", "kind", "model", "gpu", "tp", "precision")
        limits = ("max_batch", "max_batch_tokens", "kv_capacity_tokens")
        return Wanted(
            rows_model=model, rows_gpu=gpu, **{key: said[key] for key in (*keys, *limits)}
        )


class CompareForm(_RowsForm):
    profile = forms.CharField(label="Profile", max_length=200, widget=forms.Select)

    def __init__(self, *args: Any, profiles: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["profile"].widget.choices = profiles


def arrangement_key(one: dict[str, Any]) -> str:
    return json.dumps([one["model"], one["gpu"], one["tp"]])


def arrangement_words(one: dict[str, Any]) -> str:
    gpu = f"{one['tp'] or '?'} × {one['gpu'] or 'GPU not said'}"
    return f"{one['model'] or 'model not said'} on {gpu} ({one['rows']:,} rows)"
