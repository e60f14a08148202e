"""Show the options of a kind of run as a form, checked by their declaration."""

from typing import Any

from django import forms
from django.http import QueryDict

from planner.domain.formats import PROPER_NAMES
from planner.domain.options import Option, RunOptions, options_in, options_of
from planner.errors import OptionsRefused

LABELS = PROPER_NAMES | {  # of choices; others are shown as they are
    "agg": "aggregated",
    "disagg": "disaggregated (P:D)",
    "auto": "measured, if available",
    "modelled": "modelled alone",
    "free": "not counted (default)",
    "counted": "part of the latency",
    "off": "busiest hour only",
    "observed": "over time, observed demand",
    "forecast": "over time, forecast demand",
    "fcfs": "in order of arrival",
    "shortest": "short prompts first",
    "operators": "sum of operators",
    "profile": "that of the profile (default)",
    "greedy": "greedy (fast)",
    "exact": "exact (fewest GPUs)",
    "algorithm1": "Algorithm 1 of Cui et al., corrected",
    "algorithm1-printed": "Algorithm 1 of Cui et al., as published",
}


class _Number(forms.NumberInput):
    """A number input that shows whole numbers without a decimal point."""

    def format_value(self, value: Any) -> str | None:
        return f"{value:.12g}" if isinstance(value, float) else super().format_value(value)


class OptionsForm(forms.Form):
    """A form with all options of ``declared`` except ``without``; empty fields are omitted."""

    def __init__(
        self, declared: type[RunOptions], *, without: tuple[str, ...] = (), **more: Any
    ) -> None:
        """Add a field for each option in ``declared``, except those of ``without``."""
        super().__init__(**more)
        for name, option in options_in(declared).items():
            if name not in without:
                self.fields[name] = option_field(option)


def option_field(option: Option, blank: str = "") -> forms.Field:
    """Return the form field for an option, by its type and choices.

    ``blank`` is the label of a first choice without a value.
    """
    common: Any = {"label": option.label, "required": False, "initial": option.default}
    if option.type == "boolean":
        return forms.BooleanField(
            widget=forms.CheckboxInput(attrs={"class": "form-check-input"}), **common
        )
    if option.choices:
        choices = [(value, LABELS.get(value, value)) for value in option.choices]
        if blank:
            choices.insert(0, ("", blank))
        return forms.ChoiceField(
            choices=choices, widget=forms.Select(attrs={"class": "form-select"}), **common
        )
    attributes = {"class": "form-control"}
    # An option without a default value says in its help what happens: "Default: all. ..."
    default = option.help.partition("Default: ")[2].partition(". ")[0].rstrip(".")
    if default and option.default in (None, ""):
        attributes["placeholder"] = f"default: {default}"
    if option.type == "string":
        return forms.CharField(widget=forms.TextInput(attrs=attributes), **common)
    common |= {"min_value": option.least, "max_value": option.most}
    number_field = forms.IntegerField if option.type == "integer" else forms.FloatField
    return number_field(widget=_Number(attrs=attributes), **common)


def options_posted(declared: type[RunOptions], posted: QueryDict, **more: str) -> dict[str, Any]:
    """Return the posted options of a kind of run, checked and as its run stores them.

    ``more`` has options that the page sends outside the form. Raises OptionsRefused with the labels
    of the form.
    """
    known = options_in(declared)
    values: dict[str, Any] = {}
    for name, option in known.items():
        text = str(posted.get(name, "")).strip()
        if text:
            values[name] = posted.getlist(name) if option.many else text
    try:
        return options_of(declared, values | more).explicit_values()
    except OptionsRefused as refused:
        labels = {name: option.label for name, option in known.items()}
        raise OptionsRefused.of(refused.faults, lambda name: labels.get(name, name)) from None


def make_select(form: forms.Form, name: str, choices: dict[str, str]) -> None:
    """Replace the field ``name`` of the form by a select with ``choices``, labels by value."""
    form.fields[name] = forms.ChoiceField(
        label=form.fields[name].label,
        choices=[*choices.items()],
        required=False,
        initial=form.fields[name].initial,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
