"""Options of a kind of run: declared once, beside its function, and read from there by every edge.

The command line makes its arguments of a declaration, the API its bodies and their description, the
browser its forms and the guide its table (docs/options.md); what runs checks against it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from planner.errors import OptionFault, OptionsRefused
from planner.policies.choice import ALL, known_policy
from planner.policies.own import policy_names

OptionsT = TypeVar("OptionsT", bound="RunOptions")


def _known(key: str) -> str:
    if not known_policy(key):
        raise ValueError(f"there is no policy {key!r}; choose from {', '.join(policy_names())}")
    return key


def _known_or_all(key: str) -> str:
    if key != ALL and not known_policy(key):
        names = ", ".join(policy_names())
        raise ValueError(f"there is no policy {key!r}; choose from {names}, or {ALL}")
    return key


Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
# A policy's name, with a label after a colon where the scenario has several of one name.
PolicyKey = Annotated[str, Field(max_length=161), AfterValidator(_known)]
PolicyKeyOrAll = Annotated[str, Field(max_length=161), AfterValidator(_known_or_all)]


class RunOptions(BaseModel):
    """Base of every declaration: an option that a kind does not know is refused.

    Of a field the description is its help and the title its label in a form; ``give`` among its
    extras says in words what to give where that is more than a choice or a number within limits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        """What was said, as JSON: nothing that was left out."""
        return self.model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the edges need it."""

    name: str
    label: str
    help: str
    type: str  # of JSON Schema: boolean, integer, number or string
    many: bool  # a list of such values
    required: bool
    default: Any  # None: the scenario's, or worked out
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None  # a limit that is not allowed itself
    most: float | None = None
    longest: int | None = None  # characters of a text
    fewest: int | None = None  # values of a list
    largest: int | None = None
    give: str = ""

    @property
    def remedy(self) -> str:
        """What to give, in words."""
        if self.give:
            return f"give {self.give}"
        if self.choices:
            return f"choose from {', '.join(self.choices)}"
        if self.most is not None:
            number = "a whole number" if self.type == "integer" else "a number"
            start = f"above {self.above:g}, up" if self.least is None else f"from {self.least:g}"
            return f"give {number} {start} to {self.most:,.12g}"
        if self.type == "boolean":
            return "give true or false"
        return f"give a text of at most {self.longest} characters"


def options_in(declared: type[RunOptions]) -> dict[str, Option]:
    """By name, in the order of the declaration."""
    schema = declared.model_json_schema()
    required = schema.get("required", ())
    return {
        name: _option(name, field, name in required) for name, field in schema["properties"].items()
    }


def _option(name: str, field: dict[str, Any], required: bool) -> Option:
    declared = next(form for form in field.get("anyOf", [field]) if form["type"] != "null")
    value = declared
    if declared["type"] == "array":
        value = declared["items"] if "items" in declared else declared["prefixItems"][0]
    return Option(
        name=name,
        label=field["title"],
        help=field.get("description", ""),
        type=value["type"],
        many=value is not declared,
        required=required,
        default=field.get("default"),
        choices=tuple(value.get("enum", ())),
        least=value.get("minimum"),
        above=value.get("exclusiveMinimum"),
        most=value.get("maximum"),
        longest=value.get("maxLength"),
        fewest=declared.get("minItems"),
        largest=declared.get("maxItems"),
        give=field.get("give", ""),
    )


def options_of(declared: type[OptionsT], values: Mapping[str, Any]) -> OptionsT:
    """``values`` as the kind's own type; raises OptionsRefused with what to give instead."""
    try:
        return declared.model_validate(values)
    except ValidationError as error:
        known = options_in(declared)
        faults = [_fault(known, fault) for fault in _first_causes(error.errors())]
    distinct = {(fault.name, fault.value, fault.remedy): fault for fault in reversed(faults)}
    raise OptionsRefused.of([*distinct.values()][::-1])  # each sentence once, of its first place


def _first_causes(faults: Sequence[Any]) -> Iterator[Any]:
    """Without lists that are too short only because values in them were refused."""
    lists = {fault["loc"][0] for fault in faults if len(fault["loc"]) > 1}
    for fault in faults:
        if fault["type"] != "too_short" or fault["loc"][0] not in lists:
            yield fault


def _fault(known: dict[str, Option], fault: Any) -> OptionFault:
    name, sent = str(fault["loc"][0]), fault["input"]
    value = str(sent) if isinstance(sent, str | int | float) else ""
    if fault["type"] == "extra_forbidden":
        value, remedy = "", f"this is not known here; there are: {', '.join(known) or 'none'}"
    elif fault["type"] == "missing" and len(fault["loc"]) == 1:
        remedy = "this is needed"
    elif fault["type"] == "value_error":  # a sentence of the declaration's own
        remedy = str(fault["ctx"]["error"])
    elif known[name].many and len(fault["loc"]) == 1 and not known[name].give:
        remedy = f"give a list of {known[name].fewest} to {known[name].largest}"
    else:
        remedy = known[name].remedy
    return OptionFault(name, value, remedy, ".".join(str(part) for part in fault["loc"]))
