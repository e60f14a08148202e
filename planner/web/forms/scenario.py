"""The fields of the scenario form; planner.web.forms.document maps them to the YAML and back.

A field left empty is left out of the document, which then has the default of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from django import forms
from django.core.validators import RegexValidator
from django.forms import BaseFormSet, formset_factory

from planner.scenario.schema import Forecast, Objective, Scenario, Tier
from planner.scenario.schema.policies import policy_groups
from planner.web.forms.shares import SharesField
from planner.web.forms.widgets import dress

DEFAULT = Scenario.model_fields["fleet"].default

PROFILE_KEY = r"^[^|]+\|[^|]+\|\d{1,4}(\|[^|]+\|\d{0,6})?(\|role:(prefill|decode))?$"


def _number(
    label: str, default: Any = None, *, whole: bool = False, required: bool = False, **limits: Any
) -> forms.Field:
    attrs = {
        "placeholder": f"{default:g}" if isinstance(default, float) else str(default or ""),
        "step": "any",
    }
    kind, widget = (
        (forms.IntegerField, forms.NumberInput({**attrs, "step": "1"}))
        if whole
        else (forms.FloatField, forms.NumberInput(attrs))
    )
    return kind(label=label, required=required, widget=widget, **limits)


def _choice(label: str, values: tuple[str, ...], default: str | None) -> forms.Field:
    first = f"{default} (default)" if default else "default"
    return forms.ChoiceField(
        label=label, required=False, choices=[("", first), *((v, v) for v in values)]
    )


WIDE = {"data-wide": ""}  # more room in a table of rows


def _text(
    label: str, options: str = "", *, required: bool = True, wide: bool = False
) -> forms.Field:
    """A name; ``options`` is the id of a datalist with those that the scenario has."""
    attrs = ({"list": options} if options else {}) | (WIDE if wide else {})
    return forms.CharField(
        label=label, max_length=80, required=required, widget=forms.TextInput(attrs)
    )


def _literals(section: Any, field: str) -> tuple[str, ...]:
    return get_args(section.model_fields[field].annotation)


def _policies() -> list[tuple[str, str]]:
    return [(name, label) for _, rows in policy_groups() for name, label, _ in rows]


OBJECTIVE_FIELDS = (
    "minimise",
    "periods",
    "gap",
    "limited",
    "usd_per_hour",
    "carbon_kg_per_hour",
    "changes_per_period",
    "lend_share",
    "limit_usd",
    "limit_carbon_kg",
    "limit_changes",
)
LIMITED = ("Exact", "None", "PriorityExhaustive", "PriorityRoundRobin", "RoundRobin")


class StudyForm(forms.Form):
    """All that a scenario has once."""

    name = forms.CharField(max_length=120, label="Name")
    description = forms.CharField(
        required=False, label="Description", widget=forms.Textarea(attrs={"rows": 2})
    )
    start = forms.CharField(
        required=False,
        label="Begins (UTC)",
        widget=forms.TextInput(attrs={"placeholder": "2024-05-18T00:00:00Z"}),
        help_text="Left empty: the last day of a long trace, or the last half of a short one.",
    )
    duration_h = _number("Lasts, hours", min_value=0)
    period_min = _number("Decide every, min", 60, min_value=0)
    lead_min = _number("Ahead by, min", min_value=0)
    bin_s = _number("Demand bins, s", min_value=0)
    seed = _number("Seed", 0, whole=True, min_value=0)
    startup_min = _number("A replica starts in, minutes", DEFAULT.startup_s / 60, min_value=0)
    minimum = _number("At least, per model and region", DEFAULT.minimum, whole=True, min_value=0)
    policies = forms.MultipleChoiceField(
        choices=lambda: _policies(), widget=forms.CheckboxSelectMultiple, label="Policies"
    )
    method = _choice(
        "Method", _literals(Forecast, "method"), Forecast.model_fields["method"].default
    )
    quantile = _number("Plan for the quantile", "mean", min_value=0, max_value=1)
    epsilon = _number(
        "Served in its own region", Objective.model_fields["epsilon"].default, min_value=0,
        max_value=1,
    )  # fmt: skip
    solver = _choice(
        "Solver", _literals(Objective, "solver"), Objective.model_fields["solver"].default
    )
    time_limit_s = _number(
        "Solver's time, seconds", Objective.model_fields["time_limit_s"].default, min_value=0
    )
    baseline = forms.ChoiceField(
        label="Savings are against",
        required=False,
        choices=lambda: [("", "today's fleet, or flat at peak"), *_policies()],
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = self.initial.get("baseline")
        field = cast(forms.ChoiceField, self.fields["baseline"])
        choices = list(cast(list[tuple[str, str]], field.choices))
        if named and named not in dict(choices):  # one with a label
            field.choices = [*choices, (named, named)]

    def policy_groups(self) -> list[tuple[str, list[tuple[Any, str]]]]:
        """Titles with the boxes below them, each with a line on its policy."""
        boxes = {str(box.data["value"]): box for box in self["policies"]}
        return [
            (title, [(boxes[name], line) for name, _, line in rows])
            for title, rows in policy_groups()
        ]

    minimise = _choice("Minimise", _literals(Objective, "minimise"), "cost")
    periods = _choice("Periods", _literals(Objective, "periods"), "one")
    gap = _number(
        "Gap that is good enough", Objective.model_fields["gap"].default, min_value=0, max_value=1
    )
    lend_share = _number("Lending earns, share of the price", "none", min_value=0, max_value=1)
    limited = _choice("Where not all can be served", LIMITED, "no plan")
    usd_per_hour = _number("At most, $ per hour", "no limit", min_value=0)
    carbon_kg_per_hour = _number("At most, kg CO₂ per hour", "no limit", min_value=0)
    changes_per_period = _number("Starts and stops per period", "no limit", min_value=0)
    limit_usd = _number("At most, $ in all", "no limit", min_value=0)
    limit_carbon_kg = _number("At most, kg CO₂ in all", "no limit", min_value=0)
    limit_changes = _number("Starts and stops in all", "no limit", min_value=0)

    @property
    def of_objective(self) -> list[forms.BoundField]:
        """The fields under "Limits and objective"."""
        return [self[name] for name in OBJECTIVE_FIELDS]

    @property
    def objective_is_set(self) -> bool:
        """Whether one of them says something, so that they are not folded away."""
        return any(field.value() or field.errors for field in self.of_objective)


class Row(forms.Form):
    """One row of a section that is a list; ``at`` is where it stands in the document, if it does.

    A row whose fields are all empty is no row.
    """

    at = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empty_permitted = True
        self.use_required_attribute = False


class ProfileRow(Row):
    profile = forms.CharField(
        label="Model, GPU and tensor parallelism",
        widget=forms.Select,
        validators=[RegexValidator(PROFILE_KEY)],
    )


class RegionRow(Row):
    name = _text("Region", "region-names")
    gpu = _text("GPU", "gpu-names")
    capacity = _number("GPUs", whole=True, required=True, min_value=0)
    usd_per_gpu_hour = _number("Price, $ per GPU-hour", "built-in", min_value=0)
    like = _text("Price, carbon and PUE as in", "built-in-regions", required=False)


class TierRow(Row):
    name = _text("Tier")
    ttft_ms = _number("TTFT, ms", min_value=0)
    tbt_ms = _number("TBT, ms", min_value=0)
    e2e_ms = _number("E2E, ms", min_value=0)
    percentile = _number(
        "Percentile", Tier.model_fields["percentile"].default, min_value=0, max_value=100
    )
    deferrable = forms.BooleanField(required=False, label="May wait")


class SourceRow(Row):
    trace = _text("Trace", "trace-names", required=False, wide=True)
    series = _text("Series", required=False)
    model = _text("Model", "model-names", required=False, wide=True)
    regions = SharesField(required=False, label="Regions", widget=forms.TextInput(WIDE))
    tiers = SharesField(required=False, label="Tiers", widget=forms.TextInput(WIDE))
    scale = _number("Scale", 1, min_value=0)
    input_mean = _number("Input tokens, mean", "of the file", min_value=0)
    input_cv = _number("spread (CV)", 1, min_value=0)
    output_mean = _number("Output tokens, mean", "of the file", min_value=0)
    output_cv = _number("spread (CV)", 1, min_value=0)


class TodayRow(Row):
    model = _text("Model", "model-names", wide=True)
    region = _text("Region", "region-names")
    gpu = _text("GPU", "gpu-names")
    replicas = _number("Replicas", whole=True, required=True, min_value=0)
    minimum = _number("At least", 0, whole=True, min_value=0)
    maximum = _number("At most", whole=True, min_value=0)


ROWS: dict[str, type[Row]] = {
    "profiles": ProfileRow,
    "regions": RegionRow,
    "tiers": TierRow,
    "sources": SourceRow,
    "today": TodayRow,
}


class RowSet(BaseFormSet):  # type: ignore[type-arg]  # takes no argument when run
    """The rows of a section; ``profile_choices`` must be set before the rows of profiles are."""

    profile_choices: Sequence[tuple[str, Any]] = ()

    def add_fields(self, form: Row, index: int | None) -> None:
        super().add_fields(form, index)
        if isinstance(form, ProfileRow):
            form.fields["profile"].widget.choices = self.profile_choices
        dress(form, small=True)

    def kept(self) -> list[tuple[int, dict[str, Any]]]:
        """Index in the form and values of every row that is neither empty nor removed."""
        return [
            (i, form.cleaned_data)
            for i, form in enumerate(self.forms)
            if form.has_changed() and form.cleaned_data and not form.cleaned_data.get("DELETE")
        ]


FORMSETS: dict[str, Any] = {  # of RowSet
    name: formset_factory(row, formset=RowSet, extra=0, can_delete=True, max_num=500)
    for name, row in ROWS.items()
}
