"""Define the estimate form: the columns of bin/manage estimate as fields."""

from __future__ import annotations

import re
from typing import Any

from django import forms

from planner.inputs.estimates.at_rate import MOST_RPS
from planner.web.forms.choices import WIDTHS
from planner.web.forms.widgets import DressedForm, dress
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.defaults import MOST_DRAFTED, MOST_RECV
from simulation.performance.specs import BYTES

OPTIONS = (
    "kv_cache", "equal_lengths", "draft_tokens", "accepted_tokens", "lora_rank", "lora_active",
    "rounds", "recv_interval",
)  # fmt: skip
COLUMNS = ("concurrency", "isl", "osl", "ttft_ms", "tbt_ms")


def _count(label: str, initial: int | None = None, high: int = 1024) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=high, initial=initial
    )


def _some(label: str, low: float, high: float, hint: str = "") -> forms.FloatField:
    widget = forms.NumberInput(attrs={"step": "any"})
    return forms.FloatField(
        label=label, required=False, min_value=low, max_value=high, widget=widget, help_text=hint
    )


def _size(label: str, initial: int, high: float) -> forms.FloatField:
    widget = forms.NumberInput(attrs={"step": "any"})
    return forms.FloatField(
        label=label, min_value=1, max_value=high, initial=initial, widget=widget
    )


class EstimateForm(forms.Form):
    model = forms.CharField(
        label="Model",
        max_length=200,
        initial="llama-3.1-8b",
        widget=forms.TextInput(attrs={"list": "model-names"}),
    )
    gpu = forms.CharField(
        label="GPU",
        max_length=80,
        initial="H100-SXM",
        widget=forms.TextInput(attrs={"list": "gpu-names"}),
    )
    precision = forms.ChoiceField(
        label="Weights",
        required=False,
        choices=[("", "published"), *((p, p) for p in BYTES)],
    )
    engine = forms.ChoiceField(label="Engine", choices=[(e, e) for e in ENGINES], required=False)
    engine_version = forms.CharField(
        label="Its version",
        max_length=60,
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "such as 0.19.0"}),
    )
    mode = forms.ChoiceField(
        label="Prefill and decode",
        required=False,
        choices=[("agg", "on the same GPUs"), ("disagg", "on different GPUs (P/D)")],
    )
    isl = _size("Input tokens", 1024, 1e7)
    osl = _size("Output tokens", 256, 1e7)
    concurrency = _size("Requests in flight", 32, 1e6)
    rate = forms.FloatField(
        label="or requests/s",
        required=False,
        min_value=1e-6,
        max_value=MOST_RPS,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text="Poisson arrivals. The number of requests in flight follows from the rate.",
    )
    kv_cache = forms.ChoiceField(
        label="KV cache",
        required=False,
        help_text="Else as the engine keeps it.",
        choices=[("", "default"), *((p, p) for p in ("bf16", "fp8"))],
    )
    rounds = _some(
        "Requests of each user", 1, 1e9, "10 as in a benchmark; 1,000 for steady traffic."
    )
    equal_lengths = forms.ChoiceField(
        label="All of one length",
        required=False,
        help_text="Else as benchmarks have it.",
        choices=[("", "default"), ("yes", "yes"), ("no", "no")],
    )
    draft_tokens = _some("Tokens drafted", 0, MOST_DRAFTED, "Per step, by speculative decoding.")
    accepted_tokens = _some("of them accepted", 0, MOST_DRAFTED, "On average.")
    lora_rank = _count("Rank of LoRA adapters")
    lora_active = _count("Adapters in use at once", high=4096)
    recv_interval = _some(
        "SGLang's recv_interval", 1, MOST_RECV, "Iterations between looks for requests."
    )
    prefill_workers = _count("Prefill workers", high=10_000)
    decode_workers = _count("Decode workers", high=10_000)

    measured = forms.CharField(
        label="Your own measured rows",
        max_length=8000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "placeholder": "8 1024 256 95 9.4"}),
        help_text="One line per measurement: requests in flight, input tokens, output "
        "tokens, TTFT ms, TBT ms. Five rows are enough. Use a dash for a missing time.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for side in ("", "prefill_", "decode_"):
            for width, label in WIDTHS.items():
                self.fields[f"{side}{width}"] = _count(label)
        self.fields["tp"].initial = 1
        dress(self)

    def widths(self, side: str) -> list[Any]:
        return [self[f"{side}{width}"] for width in WIDTHS]

    def options(self) -> list[Any]:
        return [self[name] for name in OPTIONS]

    def together(self) -> list[Any]:
        return self.widths("")

    def prefill(self) -> list[Any]:
        return [self["prefill_workers"], *self.widths("prefill_")]

    def decode(self) -> list[Any]:
        return [self["decode_workers"], *self.widths("decode_")]

    def clean_measured(self) -> list[dict[str, float]]:
        """Return the typed rows as numbers by COLUMNS."""
        rows = []
        for number, line in enumerate(self.cleaned_data["measured"].splitlines(), 1):
            cells = re.split(r"[\s,;]+", line.strip())
            if cells == [""]:
                continue
            try:
                values = [None if cell in "-–" else float(cell) for cell in cells]
            except ValueError:
                values = []
            if len(values) != len(COLUMNS) or None in values[:3]:
                raise forms.ValidationError(
                    f"Line {number} is not five numbers: requests in flight, input tokens, output "
                    "tokens, TTFT ms, TBT ms. Write a dash for a time not measured."
                )
            pairs = zip(COLUMNS, values, strict=True)
            rows.append({name: value for name, value in pairs if value is not None})
        return rows

    def measurements(self) -> list[dict[str, Any]]:
        """Return the typed rows, each with the deployment that the form describes."""
        deployment = {name: value for name, value in self.row().items() if name != "rate"}
        return [deployment | row for row in self.cleaned_data["measured"]]

    def row(self) -> dict[str, Any]:
        """Return the row for the estimate.

        P/D widths are included only in disaggregated mode, concurrency only without a rate.
        """
        sent = {k: v for k, v in self.cleaned_data.items() if k != "measured"}
        values = {k: v for k, v in sent.items() if v not in (None, "")}
        if values.get("mode") != "disagg":
            values = {k: v for k, v in values.items() if not k.startswith(("prefill_", "decode_"))}
        if "rate" in values:
            values.pop("concurrency", None)
        return values


class RowsForm(DressedForm):
    file = forms.FileField(
        label="Rows", error_messages={"empty": "The file is empty. Export it again."}
    )
