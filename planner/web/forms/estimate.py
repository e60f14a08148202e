"""The estimate form: one deployment, the columns of bin/manage estimate as fields."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.web.forms.choices import WIDTHS
from planner.web.forms.widgets import dress
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES


def _count(label: str, initial: int | None = None, high: int = 1024) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, required=False, min_value=1, max_value=high, initial=initial
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
        choices=[("", "as published"), *((p, p) for p in BYTES)],
    )
    engine = forms.ChoiceField(label="Engine", choices=[(e, e) for e in ENGINES], required=False)
    mode = forms.ChoiceField(
        label="Prefill and decode",
        required=False,
        choices=[("agg", "on the same GPUs"), ("disagg", "on different GPUs (P/D)")],
    )
    isl = _size("Input tokens", 1024, 1e7)
    osl = _size("Output tokens", 256, 1e7)
    concurrency = _size("Requests in flight", 32, 1e6)
    prefill_workers = _count("Prefill workers", high=10_000)
    decode_workers = _count("Decode workers", high=10_000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for side in ("", "prefill_", "decode_"):
            for width, label in WIDTHS.items():
                self.fields[f"{side}{width}"] = _count(label)
        self.fields["tp"].initial = 1
        dress(self)

    def widths(self, side: str) -> list[Any]:
        return [self[f"{side}{width}"] for width in WIDTHS]

    def together(self) -> list[Any]:
        return self.widths("")

    def prefill(self) -> list[Any]:
        return [self["prefill_workers"], *self.widths("prefill_")]

    def decode(self) -> list[Any]:
        return [self["decode_workers"], *self.widths("decode_")]

    def row(self) -> dict[str, Any]:
        """The row that the estimate takes; P/D widths only where they are apart."""
        values = {k: v for k, v in self.cleaned_data.items() if v not in (None, "")}
        if values.get("mode") != "disagg":
            values = {k: v for k, v in values.items() if not k.startswith(("prefill_", "decode_"))}
        return values


class RowsForm(forms.Form):
    file = forms.FileField(
        label="Rows", error_messages={"empty": "The file is empty; export it again."}
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)
