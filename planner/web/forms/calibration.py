"""Define the forms of the calibration pages: the file, what to fit, what to compare it with."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from django import forms

from planner.domain.estimate_options import WIDTH_LABELS as WIDTHS
from planner.domain.options import options_in
from planner.inputs.ingest.benchmarks import BENCHMARK_FORMATS
from planner.inputs.profiles.spec import KINDS, ProfileSpec
from planner.models import Calibration
from planner.services.calibrations import KERNELS, CalibrationOptions
from planner.web.forms.options import option_field
from planner.web.forms.widgets import dress
from simulation.performance.specs import BYTES

FORMATS = {
    "auto": "Detect from the file",
    "vllm": "vLLM serving benchmark (JSON)",
    "guidellm": "GuideLLM (JSON)",
    "wva": "Columns of the Workload Variant Autoscaler (CSV)",
    "splitwise": "splitwise-sim (CSV, ms)",
    "sageserve": "SageServe (CSV, s)",
    "kernels": "Measured kernels (Headroom CSV, AIConfigurator, Vidur or LLMServingSim)",
    "csv": "Other CSV: model, gpu, tp, batch or concurrency, isl, osl, tbt_ms, prefill_ms, ttft_ms",
}
KIND_WORDS = {
    "linear": "Linear: TPOT = α + β batch, prefill = γ + δ tokens",
    "table": "Table: interpolation between the measured rows",
    "operator": "Operator: sum of measured kernels, times a factor fitted to the rows",
    "roofline": "Roofline: published peaks, times a factor fitted to the rows",
}
COMPUTED_WORDS = {
    "operator": "Operator: sum of measured kernels",
    "roofline": "Roofline: published peaks and the shares that kernels reach",
}
LIMITS = ("max_batch", "max_batch_tokens", "kv_capacity_tokens")


def _name_field(label: str, datalist: str, **more: Any) -> forms.CharField:
    """Return a field for a name, which offers those of the page's ``datalist``."""
    widget = forms.TextInput(attrs={"list": datalist})
    return forms.CharField(label=label, max_length=80, widget=widget, **more)


def _limit_field(label: str, hint: str) -> forms.IntegerField:
    """Return a field for an optional limit of a profile; ``hint`` says what empty means."""
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=10**9, help_text=hint
    )


class MeasurementsForm(forms.Form):
    """A file of measurements, and the facts that the file does not contain."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty. Export it again."}
    )
    source = forms.CharField(
        label="Source of the measurement",
        max_length=500,
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "cluster, engine and its version, date"}),
        help_text="Shown with results that use it. Default: the file's name.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add a field for each option of reading the file."""
        super().__init__(*args, **kwargs)
        options = options_in(CalibrationOptions)
        for name, option in options.items():
            blank = "" if name == "format" else "as stated in the file"
            self.fields[name] = option_field(option, blank)
        formats = [(name, FORMATS.get(name, name)) for name in (*BENCHMARK_FORMATS, KERNELS)]
        self.fields["format"].choices = formats  # type: ignore[attr-defined]
        self.fields["engine_version"].help_text = options["engine_version"].help
        for name in ("model", "gpu"):
            self.fields[name].widget.attrs["list"] = f"{name}-names"
        dress(self)

    def reading_options(self) -> CalibrationOptions:
        """Return how to read the file; empty fields are as the file says."""
        values = {name: self.cleaned_data[name] for name in CalibrationOptions.model_fields}
        return CalibrationOptions(**{name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of a file that state the same model, GPU type, precision and number of GPUs."""

    model: str
    gpu: str
    precision: str
    tp: int | None
    rows: int

    @property
    def key(self) -> str:
        """Return the value of this group in a select, which FitForm decodes."""
        return json.dumps([self.model, self.gpu, self.tp])

    @property
    def label(self) -> str:
        """Return the label of this group in a select."""
        gpu = f"{self.tp or '?'} x {self.gpu or 'no GPU'}"
        return f"{self.model or 'model not said'} on {gpu} ({self.rows:,} rows)"


def row_groups(calibration: Calibration) -> list[RowGroup]:
    """Return the groups of rows in a measurement file; a file of kernels has none."""
    return [RowGroup(**group) for group in calibration.report.get("arrangements", [])]


class _RowsForm(forms.Form):
    rows = forms.ChoiceField(label="Rows of")

    def __init__(self, *args: Any, groups: list[RowGroup], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["rows"].choices = [  # type: ignore[attr-defined]
            (group.key, group.label) for group in groups
        ]
        dress(self)


class _ProfileForm(forms.Form):
    """The fields that every new profile has.

    Empty limits follow from the rows, if there are any, and from the memory.
    """

    name = _name_field("Name of the profile", "profile-names",
                 help_text="An existing name gets a new version.")  # fmt: skip
    model = _name_field("Model", "model-names")
    gpu = _name_field("GPU", "gpu-names")
    precision = forms.ChoiceField(label="Precision", choices=[(p, p) for p in BYTES])
    max_batch = _limit_field(
        "Maximum sequences in a batch", "Default: 256, or the largest batch in the table."
    )
    max_batch_tokens = _limit_field(
        "Maximum tokens per iteration", "Chunked prefill budget. Default: 2,048."
    )
    kv_capacity_tokens = _limit_field(
        "KV cache, tokens", "Default: 90% of the memory minus the weights."
    )
    kernels = forms.MultipleChoiceField(
        label="Files of measured kernels",
        required=False,
        help_text="Kernel files of an operator profile or sweep. Several are merged.",
    )

    def __init__(self, *args: Any, kernels: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["kernels"].choices = kernels  # type: ignore[attr-defined]
        dress(self)

    def spec(self) -> ProfileSpec:
        """Return the profile to make, from the form."""
        names = {field.name for field in fields(ProfileSpec)} & self.fields.keys()
        values = {name: self.cleaned_data[name] for name in names}
        values["kernels"] = tuple(map(int, values["kernels"]))  # ids of files
        return ProfileSpec(**values)


class FitForm(_ProfileForm, _RowsForm):
    """Which profile to fit from which rows."""

    kind = forms.ChoiceField(label="Kind", choices=[(k, KIND_WORDS[k]) for k in KINDS])
    tp = forms.IntegerField(label="GPUs per replica", min_value=1, max_value=1024)

    def spec(self) -> ProfileSpec:
        """Return the profile to make, with the names of its rows in the file."""
        model, gpu, _ = json.loads(self.cleaned_data["rows"])
        return replace(super().spec(), rows_model=model, rows_gpu=gpu)


class ComputedForm(_ProfileForm):
    """A profile computed from the model's shape, without a fit."""

    kind = forms.ChoiceField(label="Kind", choices=list(COMPUTED_WORDS.items()))
    kv_precision = forms.ChoiceField(label="KV cache", choices=[("bf16", "bf16"), ("fp8", "fp8")])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add a field for each parallel width, and word the fields for a computed profile."""
        super().__init__(*args, **kwargs)
        self.fields["precision"].label = "Weights"
        self.fields["max_batch"].help_text = "Default: 256."
        self.fields["kv_capacity_tokens"].help_text = "Default: limited by memory."
        for width, label in WIDTHS.items():
            self.fields[width] = forms.IntegerField(
                label=label, required=False, min_value=1, max_value=1024, initial=1
            )
        dress(self)

    def widths(self) -> list[Any]:
        """Return the fields of the parallelism: tensor, pipeline, attention data, experts."""
        return [self[width] for width in WIDTHS]

    def limits(self) -> list[Any]:
        """Return the fields of the limits of a batch and of the KV cache."""
        return [self[limit] for limit in LIMITS]

    def spec(self) -> ProfileSpec:
        """Return the profile to make; an empty width is 1."""
        spec = super().spec()
        widths: Any = {width: getattr(spec, width) or 1 for width in WIDTHS}
        return replace(spec, **widths)


class CompareForm(_RowsForm):
    profile = forms.CharField(label="Profile", max_length=200, widget=forms.Select)

    def __init__(self, *args: Any, profiles: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["profile"].widget.choices = profiles
