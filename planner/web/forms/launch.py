"""Define the form for traffic without a trace: the known facts of a launch."""

from dataclasses import fields
from datetime import date, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.catalogue.shapes import shapes
from planner.services.draft_profiles import DEFAULT_GPU, DEFAULT_MODEL
from planner.services.draft_windows import HORIZONS
from planner.services.launch_drafts import LaunchDescription
from planner.web.forms.fields import tidy
from planner.web.forms.widgets import DressedForm

OWN = "own"
MAX_REPLICAS = 10_000  # of a drafted fleet


def _number(label: str, initial: float | None, low: float, high: float, **more: Any) -> Any:
    """Return a field for a number from ``low`` to ``high``, with decimals."""
    widget = forms.NumberInput(attrs={"step": "any"})
    return forms.FloatField(
        label=label, initial=initial, min_value=low, max_value=high, widget=widget, **more
    )


def next_monday() -> date:
    """Return the first Monday after today."""
    today = timezone.now().date()
    return today + timedelta(days=7 - today.weekday())


class CurrentFleetForm(DressedForm):
    """Ask for the present replicas of a drafted scenario, the baseline of its savings."""

    today = forms.IntegerField(
        label="Replicas today",
        required=False,
        min_value=1,
        max_value=MAX_REPLICAS,
        widget=forms.NumberInput(attrs={"data-submit-on-change": True, "placeholder": "optional"}),
    )


class LaunchForm(DressedForm):
    model = forms.CharField(
        label="Model",
        max_length=80,
        initial=DEFAULT_MODEL,
        widget=forms.TextInput(attrs={"list": "model-names"}),
    )
    gpu = forms.CharField(
        label="GPU",
        max_length=80,
        initial=DEFAULT_GPU,
        widget=forms.TextInput(attrs={"list": "gpu-names"}),
    )
    region = forms.CharField(
        label="Region",
        max_length=80,
        required=False,
        widget=forms.TextInput(
            attrs={"list": "built-in-regions", "placeholder": "default: first region with a price"}
        ),
    )
    requests_per_day = _number("Requests a day, on average", 200_000, 1, 1e11)
    input_tokens = _number("Input tokens, mean", 1155, 1, 1e6)
    output_tokens = _number("Output tokens, mean", 211, 1, 1e6)
    day = forms.ChoiceField(
        label="Shape of a weekday",
        choices=lambda: [
            *((shape.name, f"{shape.name}: {shape.words}") for shape in shapes().values()),
            (OWN, "24 hourly rates of your own, below"),
        ],
        initial="office",
    )
    own_day = forms.CharField(
        label="24 hourly rates",
        required=False,
        max_length=600,
        widget=forms.TextInput(attrs={"placeholder": "relative rates from 00:00 on, local time"}),
    )
    weekend_percent = _number(
        "Weekend, % of a weekday", None, 0, 1000, required=False,
        help_text="Default: weekend level of the chosen shape.",
    )  # fmt: skip
    utc_offset_h = _number("UTC offset, hours", 0, -12, 14)
    growth_percent = _number("Monthly growth, %", 0, -90, 1000)
    begins = forms.DateField(
        label="Begins", initial=next_monday, widget=forms.DateInput(attrs={"type": "date"})
    )
    ttft_ms = _number("TTFT limit, ms", 2000, 1, 1e8)
    tbt_ms = _number("TPOT limit, ms", 100, 1, 1e8)
    horizon = forms.ChoiceField(
        label="Horizon",
        choices=[
            (horizon.key, f"{horizon.label}: {horizon.words}") for horizon in HORIZONS.values()
        ],
        initial="week",
    )

    def clean(self) -> dict[str, Any]:
        """Return the values with the 24 rates of a day of the user's own, and the GPU's name."""
        values: dict[str, Any] = super().clean() or {}
        if values.get("day") == OWN:
            try:
                rates = [float(text) for text in values["own_day"].replace(",", " ").split()]
            except ValueError:
                rates = []
            if len(rates) != 24 or min(rates) < 0 or not any(rates):
                self.add_error(
                    "own_day", "Give 24 numbers of at least 0, from 00:00 to 23:00, not all 0."
                )
            values["own_day"] = rates
        if values.get("gpu") and "gpu" not in self.errors:
            try:
                values["gpu"] = catalogue.gpu_name(values["gpu"])
            except CatalogueError as problem:
                self.add_error("gpu", str(problem))
        return values

    def description(self) -> LaunchDescription:
        """Return the launch that a valid form describes, with percentages as fractions."""
        values: dict[str, Any] = {
            name: tidy(value) if isinstance(value, float) else value
            for name, value in self.cleaned_data.items()
        }
        weekend = values["weekend_percent"]
        values |= {
            "day": values["own_day"] if values["day"] == OWN else values["day"],
            "weekend": None if weekend is None else weekend / 100,
            "growth_per_month": round(values["growth_percent"] / 100, 9),
            "horizon": HORIZONS[values["horizon"]],
        }
        names = [field.name for field in fields(LaunchDescription)]
        return LaunchDescription(**{name: values[name] for name in names})
