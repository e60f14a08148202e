"""Define the forms of a scenario: its single values, and its rows.

planner.web.forms.document maps them to the YAML and back.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.forms import BaseFormSet, BoundField, formset_factory
from django.forms.boundfield import BoundWidget
from django.utils.safestring import SafeString

from planner.policies.choice import OFFERED, policy_groups
from planner.policies.registry import traits_of
from planner.web.forms.document import Row as FormValues
from planner.web.forms.fields import SCALARS, WIDE, schema_field
from planner.web.forms.holidays import countries
from planner.web.forms.profile_choice import ProfileField
from planner.web.forms.widgets import LongSelect, dress

MAX_CHARACTERS = 5_000  # the time of the pattern grows with the square of a part's length
# After = or : any number is a share. After a blank only a percentage or a fraction such as 0.6 is,
# since names may end in numbers.
_PART = re.compile(
    r"^(?P<name>.*?[^\s=:])(?:\s*[=:]\s*(?P<given>\d*\.?\d+)\s*(?P<sign>%?)"
    r"|\s+(?P<percent>\d*\.?\d+)\s*%|\s+(?P<fraction>0?\.\d+))$"
)


class SharesField(forms.Field):
    """A field for a mapping of name to fraction; a name without a number has fraction 1."""

    def to_python(self, value: Any) -> dict[str, float]:
        """Return the shares in a text such as "us-east 0.8, us-west 0.2"."""
        shares: dict[str, float] = {}
        if len(str(value or "")) > MAX_CHARACTERS:
            raise forms.ValidationError(
                f"Shares have at most {MAX_CHARACTERS:,} characters. Edit longer ones as YAML."
            )
        for part in str(value or "").split(","):
            if not part.strip():
                continue
            match = _PART.match(part.strip())
            if match is None:
                shares[part.strip()] = 1.0
                continue
            number = float(match["given"] or match["percent"] or match["fraction"])
            hundredths = match["sign"] or match["percent"]
            shares[match["name"]] = round(number / 100, 9) if hundredths else number
        return shares

    def prepare_value(self, value: Any) -> Any:
        """Return shares by name as text, such as "us-east 70 %, us-west 30 %"."""
        if not isinstance(value, dict):
            return value
        return ", ".join(
            f"{name} {100 * share:.6g} %" if isinstance(share, int | float) else f"{name} {share}"
            for name, share in value.items()
        )


def _policies() -> list[tuple[str, str]]:
    """Return name and label of every policy."""
    return [(name, label) for _, rows in policy_groups() for name, label, _ in rows]


GROUPS = {
    "window": (
        "Description, horizon and growth",
        ("description", "lead_min", "bin_s", "max_replayed", "growth_factor", "growth_percent"),
    ),
    "fleet": ("Cold start and prices", ("startup_min", "minimum", "price_list")),
    "forecast": (
        "Forecast and solver",
        ("method", "quantile", "epsilon", "solver", "time_limit_s", "seed", "baseline",
         "holidays"),
    ),
    "objective": (
        "Limits and objective", tuple(name for name, scalar in SCALARS.items() if scalar.folded),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """A group of fields under "More"; it is open if a field has an error."""

    name: str
    title: str
    fields: list[BoundField]

    @property
    def open(self) -> bool:
        """Return whether a field has an error."""
        return any(field.errors for field in self.fields)


class StudyForm(forms.Form):
    """A form for all values that occur once in a scenario."""

    description = forms.CharField(
        required=False, label="Description", widget=forms.Textarea(attrs={"rows": 2})
    )
    start = forms.CharField(
        required=False,
        label=SCALARS["start"].label,
        widget=forms.TextInput(attrs={"placeholder": "default: last day"}),
        help_text="UTC, or a time with offset. Enter “end” to begin where the trace ends.",
    )
    policies = forms.MultipleChoiceField(
        choices=lambda: _policies(), widget=forms.CheckboxSelectMultiple, label="Policies"
    )
    baseline = forms.ChoiceField(
        label=SCALARS["baseline"].label,
        required=False,
        choices=lambda: [("", "current fleet, or static fleet for the peak"), *_policies()],
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add a field for each value in SCALARS; the baseline also offers that of the document."""
        super().__init__(*args, **kwargs)
        for name, scalar in SCALARS.items():
            self.fields.setdefault(name, scalar.field())
        self.fields["name"].required = True
        # The document may name a baseline by the label of one of its policies.
        baseline = self.initial.get("baseline")
        field = cast(forms.ChoiceField, self.fields["baseline"])
        choices = list(cast(list[tuple[str, str]], field.choices))
        if baseline and baseline not in dict(choices):
            field.choices = [*choices, (baseline, baseline)]

    def suggested_policies(self) -> list[tuple[Any, str]]:
        """Return the check box of one recommended policy per family, with a line about it."""
        boxes = self._boxes()
        return [(boxes[name], traits_of(name).line) for name in OFFERED]

    def research(self) -> list[tuple[str, list[tuple[Any, str]]]]:
        """Return the check boxes of all other policies, with lines about them, under titles."""
        boxes = self._boxes()
        groups = []
        for title, policies in policy_groups():
            rows = [(boxes[name], line) for name, _, line in policies if name not in OFFERED]
            if rows:
                groups.append((title, rows))
        return groups

    def research_chosen(self) -> int:
        """Return the number of selected policies among the others."""
        return sum(box.data["selected"] for _, rows in self.research() for box, _ in rows)

    def _boxes(self) -> dict[str, BoundWidget]:
        """Return the check box of each policy by its name."""
        return {str(box.data["value"]): box for box in self["policies"]}

    @property
    def countries(self) -> SafeString:
        """Return a select of the countries with known holidays; a choice is added to the list."""
        choices = [("", "Add a country"), *countries()]
        box = LongSelect({"class": "form-select", "data-adds": self["holidays"].id_for_label})
        box.choices = choices
        return box.render("", "", {"id": "add-country"})

    def groups(self) -> list[FieldGroup]:
        """Return the groups of fields under "More"."""
        return [
            FieldGroup(name, title, [self[field] for field in names])
            for name, (title, names) in GROUPS.items()
        ]


class Row(forms.Form):
    """A form for one row of a list section; ``at`` is its index in the document, or None.

    A row whose fields are all empty is ignored.
    """

    at = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empty_permitted = True
        self.use_required_attribute = False


class ProfileRow(Row):
    profile = ProfileField(label="Model, GPU and tensor parallelism")


class RegionRow(Row):
    name = schema_field("regions.name", "Region", options="region-names")
    gpu = schema_field("regions.name", "GPU", options="gpu-names")
    capacity = schema_field("regions.capacity", "GPUs", required=True)
    usd_per_gpu_hour = schema_field(
        "regions.usd_per_gpu_hour", "Price, $ per GPU-hour", empty="built-in"
    )
    like = schema_field(
        "regions.like", "Cloud region for price, carbon, PUE", options="built-in-regions"
    )
    site_kw = schema_field(
        "regions.power.site_kw", "Power limit of the region, kW", empty="no limit"
    )


class TierRow(Row):
    name = schema_field("tiers.name", "Tier")
    ttft_ms = schema_field("tiers.ttft_ms", "TTFT, ms")
    tbt_ms = schema_field("tiers.tbt_ms", "TPOT, ms")
    e2e_ms = schema_field("tiers.e2e_ms", "E2E, ms")
    percentile = schema_field("tiers.percentile", "Percentile")
    utility = schema_field("tiers.utility", "Value of a request, in units", empty="0")
    deferrable = schema_field("tiers.deferrable", "Deferrable")


class SourceRow(Row):
    trace = schema_field("traffic.sources.trace", "Trace", options="trace-names", wide=True)
    series = schema_field("traffic.sources.series", "Series")
    model = schema_field("traffic.sources.model", "Model", options="model-names", wide=True)
    regions = SharesField(required=False, label="Regions", widget=forms.TextInput(WIDE))
    tiers = SharesField(required=False, label="Tiers", widget=forms.TextInput(WIDE))
    scale = schema_field("traffic.sources.scale", "Traffic multiplier")
    cached_share = schema_field(
        "traffic.sources.cached_share", "Prefix hit rate", empty="from the file", required=False
    )
    input_mean = schema_field(
        "traffic.sources.input_tokens.mean", "Input tokens, mean", empty="from the file",
        required=False,
    )  # fmt: skip
    input_cv = schema_field("traffic.sources.input_tokens.cv", "Input tokens, CV")
    output_mean = schema_field(
        "traffic.sources.output_tokens.mean", "Output tokens, mean", empty="from the file",
        required=False,
    )  # fmt: skip
    output_cv = schema_field("traffic.sources.output_tokens.cv", "Output tokens, CV")
    launch_rps = schema_field(
        "traffic.sources.launch.rps", "Mean requests/s, if no trace", empty="from the trace",
        required=False,
    )  # fmt: skip
    launch_day = schema_field(
        "traffic.sources.launch.day", "Day shape, if no trace", required=False
    )


class TodayRow(Row):
    model = schema_field("fleet.today.model", "Model", options="model-names", wide=True)
    region = schema_field("fleet.today.region", "Region", options="region-names")
    gpu = schema_field("fleet.today.gpu", "GPU", options="gpu-names")
    role = schema_field("fleet.today.role", "Role", empty="from the profile")
    replicas = schema_field("fleet.today.replicas", "Replicas")
    minimum = schema_field("fleet.today.minimum", "Minimum replicas")
    maximum = schema_field("fleet.today.maximum", "Maximum replicas")


KIND_LABELS = {
    "past": "Past days",
    "drawn": "Days sampled from the forecast",
    "slower_profile": "Slower profile",
    "replica_lost": "Replica lost (N+1)",
    "more_demand": "More demand",
    "crowd": "Traffic spike",
    "longer_outputs": "Longer outputs",
    "region_lost": "Region lost",
    "slow_start": "Slow and failed starts",
}


class TestDayRow(Row):
    __test__ = False  # no class of tests, although its name begins like one

    kind = forms.ChoiceField(label="Kind", choices=list(KIND_LABELS.items()))
    name = forms.CharField(label="Custom name", required=False, max_length=80)
    required = forms.TypedChoiceField(
        label="Required",
        required=False,
        choices=[("", "by assurance level"), ("yes", "always"), ("no", "never")],
        coerce=lambda chosen: chosen == "yes",
        empty_value=None,
    )
    weight = forms.FloatField(label="Weight", required=False, min_value=0, max_value=1000)
    times = forms.FloatField(label="Multiplier", required=False, max_value=100)
    hours = forms.FloatField(label="Duration, h", required=False, max_value=24)
    windows = forms.IntegerField(label="Past windows", required=False, min_value=1, max_value=3)
    error = forms.ChoiceField(
        label="Profile slower by",
        required=False,
        choices=[("", "–"), ("half", "median error"), ("nine-of-ten", "P90 error")],
    )


ROWS: dict[str, type[Row]] = {
    "profiles": ProfileRow,
    "regions": RegionRow,
    "tiers": TierRow,
    "sources": SourceRow,
    "today": TodayRow,
    "test_days": TestDayRow,
}


class RowSet(BaseFormSet):  # type: ignore[type-arg]  # takes no argument when run
    """The form rows of a section; set ``profile_choices`` before building rows of profiles."""

    profile_choices: Sequence[tuple[str, Any]] = ()

    def add_fields(self, form: Row, index: int | None) -> None:
        """Add the fields of a formset to a row, and offer the profiles in rows of profiles."""
        super().add_fields(form, index)
        if isinstance(form, ProfileRow):
            form.fields["profile"].widget.choices = self.profile_choices
        dress(form, small=True)

    def filled_rows(self) -> list[tuple[int, FormValues]]:
        """Return index and values of every form row that is neither empty nor removed."""
        return [
            (i, form.cleaned_data)
            for i, form in enumerate(self.forms)
            if form.has_changed() and form.cleaned_data and not form.cleaned_data.get("DELETE")
        ]


FORMSETS: dict[str, Any] = {  # of RowSet
    name: formset_factory(row, formset=RowSet, extra=0, can_delete=True, max_num=500)
    for name, row in ROWS.items()
}
