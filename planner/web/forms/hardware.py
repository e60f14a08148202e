"""Define the forms of own GPUs and models, with the quantities of catalogue.user_hardware."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.inputs.catalogue import user_hardware
from planner.web.forms.widgets import DressedForm, dress
from simulation.performance.specs import KINDS


def quantity_field(q: user_hardware.Quantity) -> forms.Field:
    """Return a number field that shows its unit."""
    label = f"{q.label}, {q.unit}" if q.unit else q.label
    kind: Any = forms.IntegerField if q.whole else forms.FloatField
    widget = forms.NumberInput(attrs={"step": "1" if q.whole else "any"})
    limits = {"min_value": q.low, "max_value": q.high}
    field: forms.Field = kind(
        label=label, required=q.required, widget=widget, help_text=q.hint, **limits
    )
    return field


class _Described(forms.Form):
    """A name, quantities and their source."""

    quantities: tuple[user_hardware.Quantity, ...] = ()
    words: tuple[str, ...] = ()

    name = forms.CharField(max_length=80, label="Name")
    kind = forms.ChoiceField(
        choices=[(k, k) for k in KINDS], initial="published", label="The figures are"
    )
    source = forms.CharField(
        max_length=500,
        label="Source",
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "data sheet, page, measurement"}),
        help_text="Shown wherever a result rests on them.",
    )

    def __init__(self, *args: Any, counted: bool = False, **kwargs: Any) -> None:
        """Create the form; ``counted``: the quantities follow from a shape and are read-only."""
        super().__init__(*args, **kwargs)
        for q in self.quantities:
            self.fields[q.name] = quantity_field(q)
            if counted:
                self.fields[q.name].disabled = True
                self.fields[q.name].help_text = "Follows from its shape"
        dress(self)

    def quantity_fields(self) -> list[Any]:
        return [self[q.name] for q in self.quantities]

    def given(self) -> dict[str, Any]:
        """Return the filled fields in the form that catalogue.user_hardware takes."""
        names = [*(q.name for q in self.quantities), *self.words]
        values = {name: self.cleaned_data.get(name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, "")}


class GpuForm(_Described):
    quantities = user_hardware.GPU
    words = ("family",)
    family = forms.CharField(
        max_length=40,
        required=False,
        label="Architecture",
        widget=forms.TextInput(attrs={"placeholder": "hopper, ada, cdna3 ..."}),
    )


class ModelForm(_Described):
    quantities = user_hardware.MODEL


class ImportForm(DressedForm):
    """A file that describes GPUs or models, or a model's config.json."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty. Choose another."}
    )
    name = forms.CharField(
        max_length=80,
        required=False,
        label="Name of the model",
        help_text="For a config.json, which does not hold one.",
    )
