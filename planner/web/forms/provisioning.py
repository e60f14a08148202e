"""How a scenario is provisioned below the replica."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.studies.commands.provision import IMAGE_TOKENS
from planner.studies.provisioning.over_time import OVER_TIME
from planner.studies.provisioning.problems import BATCH_WAITS, SOURCES
from simulation.provisioning.levels import METHODS

LABELS = {
    "auto": "measured where there is any",
    "modelled": "modelled alone",
    "free": "left out, as in the source",
    "counted": "part of the latency",
    "off": "the busiest hour alone",
    "observed": "also over time, on what was observed",
    "forecast": "also over time, on a forecast by the minute",
    "greedy": "greedy, by GPUs after placement",
    "exact": "exact in slots, then placed",
    "brute": "by enumeration, small cases",
}


def _choice(label: str, values: tuple[str, ...]) -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label,
        choices=[(value, LABELS[value]) for value in values],
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )


class _Number(forms.NumberInput):
    """1024, not 1024.0."""

    def format_value(self, value: Any) -> str | None:
        return f"{value:.12g}" if isinstance(value, float) else super().format_value(value)


class ProvisionForm(forms.Form):
    """Left out: what the command takes by default."""

    over_time = _choice("Load", OVER_TIME)
    method = _choice("Method", METHODS)
    kernels = _choice("Seconds of operators", SOURCES)
    interference = _choice("Interference", SOURCES)
    batch_wait = _choice("Batches that fill", BATCH_WAITS)
    images = forms.FloatField(
        label="Images per request",
        min_value=0,
        initial=0,
        required=False,
        widget=_Number(attrs={"class": "form-control"}),
    )
    image_tokens = forms.FloatField(
        label="Encoder tokens per image",
        min_value=1,
        initial=IMAGE_TOKENS,
        required=False,
        widget=_Number(attrs={"class": "form-control"}),
    )
    single_stream = forms.BooleanField(
        label="GPUs run one stream",
        required=False,
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )

    def options(self) -> dict[str, Any]:
        """Of the run; what was left out is not among them."""
        return {k: v for k, v in self.cleaned_data.items() if v not in ("", None, False)}
