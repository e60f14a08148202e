"""Build the fields of the scenario form from the schema: kind, limits, choices and default.

An empty field is omitted from the document, so that the default of the schema applies.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from django import forms

from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import MEAN
from planner.schema_types import QUANTILES
from planner.web.forms.holidays import HolidaysField

JsonSchema = dict[str, Any]
UNITS_S = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|s)?(?![a-z.\d])")
LABELS = {"mixed": "aggregated"}  # of values that users know by another name
WIDE = {"data-wide": ""}  # mark for the style sheet of an input that needs space in a table


class QuantileField(forms.CharField):
    """A field for a forecast quantile, or the word for the mean."""

    def __init__(self, label: str, *, required: bool, empty: str) -> None:
        super().__init__(
            label=label,
            required=required,
            max_length=20,
            widget=forms.TextInput(attrs={"placeholder": empty}),
            help_text=f"{QUANTILES[0]:g} to {QUANTILES[1]:g}, or {MEAN}.",
        )

    def clean(self, value: Any) -> Any:
        """Return a quantile as a number, "mean", or "" for the default."""
        text = str(super().clean(value)).lower()
        if text in ("", MEAN):
            return text
        least, most = QUANTILES
        try:
            quantile = float(text)
        except ValueError:
            quantile = float("nan")  # outside every range
        if not least <= quantile <= most:
            raise forms.ValidationError(f"Give {least:g} to {most:g}, {MEAN}, or leave it empty.")
        return quantile


class DurationField(forms.FloatField):
    """A field for a time in seconds, written as hours ("24") or with units ("20 min")."""

    widget = forms.TextInput

    def to_python(self, value: Any) -> Any:
        """Return the seconds in a text such as "24", "20 min" or "1 d 4 h"; None if it is empty."""
        if value in self.empty_values:
            return None
        parts = _DURATION_PART.findall(str(value))
        if not parts or _DURATION_PART.sub("", str(value)).strip():
            raise forms.ValidationError("Give hours, such as 24, or a time, such as 20 min.")
        return tidy(sum(float(number) * UNITS_S[unit or "h"] for number, unit in parts))

    def prepare_value(self, value: Any) -> Any:
        """Return seconds in the largest unit of which they are a multiple, as text."""
        if not isinstance(value, int | float):
            return value
        unit = next((unit for unit, unit_s in UNITS_S.items() if value % unit_s == 0), "s")
        return f"{tidy(value / UNITS_S[unit])} {unit}"


def schema_field(
    path: str,
    label: str,
    *,
    per: float = 1,
    empty: str = "",
    options: str = "",
    wide: bool = False,
    required: bool | None = None,
) -> forms.Field:
    """Return the form field for the value at ``path`` of a scenario, by its JSON schema.

    One unit of the field is ``per`` units of the document. ``empty`` says what an empty field means
    if the schema has no default. ``options`` is the id of a datalist with the names that the
    scenario has.
    """
    schema, is_required = schema_at(path)
    required = is_required if required is None else required
    default = schema.get("default")
    if "enum" in schema:
        first = f"{empty or default} (default)"
        choices = [("", first), *((value, LABELS.get(value, value)) for value in schema["enum"])]
        return forms.ChoiceField(label=label, required=required, choices=choices)
    if schema.get("type") == "array":  # the only list of plain values is that of holidays
        return HolidaysField(label=label, required=required)
    if "oneOf" in schema:  # only quantiles may be a number or a word
        return QuantileField(label, required=required, empty=empty)
    if schema["type"] == "boolean":
        return forms.BooleanField(label=label, required=False)
    attrs = WIDE if wide else {}  # of text and number fields
    if schema["type"] == "string":
        widget = forms.TextInput(attrs | ({"list": options} if options else {}))
        most = schema.get("maxLength", 80)
        return forms.CharField(label=label, required=required, max_length=most, widget=widget)
    attrs |= {"placeholder": empty or (f"{default / per:.12g}" if default else "")}
    return _number_field(schema, label, per, required=required, attrs=attrs)


def _number_field(
    schema: JsonSchema, label: str, per: float, *, required: bool, attrs: dict[str, str]
) -> forms.Field:
    """Return the field of a number, whose unit is ``per`` units of the document, with its range."""
    is_integer = schema["type"] == "integer"
    kind: Any = forms.IntegerField if is_integer else forms.FloatField
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    field: forms.Field = kind(
        label=label,
        required=required,
        min_value=None if least is None else tidy(least / per),
        max_value=None if most is None else tidy(most / per),
        widget=forms.NumberInput(attrs | {"step": "1" if is_integer else "any"}),
    )
    return field


def tidy(value: float) -> float:
    """Return ``value`` without the rounding error of a division; whole numbers as int."""
    value = round(value, 6)
    return int(value) if float(value).is_integer() else value


def schema_at(path: str) -> tuple[JsonSchema, bool]:
    """Return the JSON Schema of the value at a dotted path, and whether it is required.

    For a list, the path continues with the keys of its rows.
    """
    schema, is_required = _scenario_schema(), False
    for key in path.split("."):
        if schema.get("type") == "array":
            schema = _inner_schema(schema["items"])
        is_required = key in schema.get("required", ())
        schema = _inner_schema(schema["properties"][key])
    return schema, is_required


@cache
def _scenario_schema() -> JsonSchema:
    """Return the JSON Schema of a scenario, which takes long to build."""
    return Scenario.model_json_schema()


def _inner_schema(schema: JsonSchema) -> JsonSchema:
    """Return the schema inside a reference, an optional value or a mapping by name."""
    if "$ref" in schema:  # "#/$defs/NAME"
        _, _, name = schema["$ref"].rpartition("/")
        return _inner_schema(_scenario_schema()["$defs"][name])
    if "anyOf" in schema:
        return schema | _inner_schema(schema["anyOf"][0])
    if "patternProperties" in schema:
        return _inner_schema(next(iter(schema["patternProperties"].values())))
    return schema


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that occurs once in a scenario: its path, and its form field."""

    path: str
    label: str
    per: float | None = None  # the document's units per form unit
    empty: str = ""
    folded: bool = False  # shown under "Limits and objective"
    is_duration: bool = False  # entered with a unit

    def field(self) -> forms.Field:
        """Return a new form field for the value."""
        field: Any = schema_field(self.path, self.label, per=self.per or 1, empty=self.empty)
        if not self.is_duration:
            return cast(forms.Field, field)
        limits = {"min_value": field.min_value, "max_value": field.max_value}
        return DurationField(label=self.label, required=field.required, **limits)


MINUTE, PERCENT = 60, 0.01
NONE = "no limit"
SCALARS: dict[str, Scalar] = {
    "name": Scalar("name", "Name"),
    "description": Scalar("description", "Description"),
    "start": Scalar("horizon.start", "Begins (UTC)"),
    "duration_h": Scalar("horizon.duration_s", "Lasts", is_duration=True),
    "period_min": Scalar("horizon.period_s", "Scaling interval, min", MINUTE, "60"),
    "lead_min": Scalar("horizon.lead_s", "Lead time, min", MINUTE),
    "bin_s": Scalar("traffic.bin_s", "Demand bin length, s", 1),
    "max_replayed": Scalar("traffic.max_replayed", "Maximum requests to replay", 1),
    "growth_factor": Scalar("traffic.growth.factor", "Growth factor", empty="1"),
    "growth_percent": Scalar(
        "traffic.growth.per_month", "Monthly growth, %", PERCENT, empty="0"
    ),
    "price_list": Scalar("price_list", "Price list", empty="none: built-in prices"),
    "seed": Scalar("seed", "Seed"),
    "startup_min": Scalar("fleet.startup_s", "Cold start, minutes", MINUTE),
    "minimum": Scalar("fleet.minimum", "Minimum replicas per model and region"),
    "method": Scalar("forecast.method", "Method"),
    "quantile": Scalar(
        "forecast.quantile", "Forecast percentile (0.9 = P90)", empty="tuned on earlier days"
    ),
    "holidays": Scalar("forecast.holidays", "Holidays"),
    "epsilon": Scalar("objective.epsilon", "Minimum share of a region's peak served locally"),
    "solver": Scalar("objective.solver", "Solver"),
    "time_limit_s": Scalar("objective.time_limit_s", "Time limit of the solver, seconds"),
    "baseline": Scalar("objective.baseline", "Baseline of savings"),
    "minimise": Scalar("objective.minimise", "Minimise", folded=True),
    "periods": Scalar("objective.periods", "Periods planned at once", folded=True),
    "gap": Scalar("objective.gap", "Optimality gap", folded=True),
    "limited": Scalar(
        "objective.limited", "If demand exceeds capacity", empty="no plan", folded=True
    ),
    "utility_usd": Scalar(
        "objective.utility_usd", "Worth of one value unit, $", empty="not used", folded=True
    ),
    "usd_per_hour": Scalar(
        "objective.limits.usd_per_hour", "Cost limit, $ per hour", empty=NONE, folded=True
    ),
    "carbon_kg_per_hour": Scalar(
        "objective.limits.carbon_kg_per_hour", "Carbon limit, kg CO2e per hour", empty=NONE,
        folded=True,
    ),
    "changes_per_period": Scalar(
        "objective.limits.changes_per_period", "Limit on replica starts and stops per period",
        empty=NONE, folded=True,
    ),
    "lend_share": Scalar(
        "objective.lend_share", "Income from lent GPUs, % of price", PERCENT, empty="none",
        folded=True,
    ),
    "limit_usd": Scalar(
        "objective.limits.usd", "Cost limit of the window, $", empty=NONE, folded=True
    ),
    "limit_carbon_kg": Scalar(
        "objective.limits.carbon_kg", "Carbon limit of the window, kg CO2e", empty=NONE,
        folded=True,
    ),
    "limit_changes": Scalar(
        "objective.limits.changes", "Limit on replica starts and stops in the window", empty=NONE,
        folded=True,
    ),
}  # fmt: skip
