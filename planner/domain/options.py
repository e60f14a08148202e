"""Define how the options of each kind of run are declared: once, next to its function.

The arguments of the command, the request bodies of the API, the forms of the browser and the table
of the guide (docs/options.md) are derived from the declaration. A run validates its options against
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from planner.errors import OptionFault, OptionsRefused
from planner.policies.choice import ALL, is_policy
from planner.policies.user_policies import policy_names

OptionsT = TypeVar("OptionsT", bound="RunOptions")


def _check_policy(key: str) -> str:
    """Return ``key`` if it names a policy; raise ValueError with the known names otherwise."""
    if not is_policy(key):
        raise ValueError(f"there is no policy {key!r}. Choose from {', '.join(policy_names())}")
    return key


def _check_policy_or_all(key: str) -> str:
    """Return ``key`` if it is ``ALL`` or names a policy; raise ValueError otherwise."""
    if key != ALL and not is_policy(key):
        names = ", ".join(policy_names())
        raise ValueError(f"there is no policy {key!r}. Choose from {names}, or {ALL}")
    return key


Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
# A policy's name, followed by a colon and a label if the scenario has several of that name.
PolicyKey = Annotated[str, Field(max_length=161), AfterValidator(_check_policy)]
PolicyKeyOrAll = Annotated[str, Field(max_length=161), AfterValidator(_check_policy_or_all)]


class RunOptions(BaseModel):
    """The base class of all declarations. Unknown options are refused.

    The docstring of a field is its help. Its title is its label in a form. Its extra "give" says in
    words which values are valid, if a choice or a range of numbers does not say it.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def explicit_values(self) -> dict[str, Any]:
        """Return the options that were set, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the command, the API and the browser need it."""

    name: str
    label: str
    help: str
    type: str  # type of JSON Schema: boolean, integer, number or string
    many: bool  # whether the value is a list
    required: bool
    default: Any  # None: the scenario's value, or computed
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None  # exclusive lower limit
    most: float | None = None
    longest: int | None = None  # largest number of characters
    fewest: int | None = None  # smallest number of values in a list
    largest: int | None = None  # largest number of values in a list
    give: str = ""

    @property
    def remedy(self) -> str:
        """Return in words which values are valid."""
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


def options_in(declared: type[BaseModel]) -> dict[str, Option]:
    """Return the options of a declaration by name, in its order."""
    schema = declared.model_json_schema()
    required = schema.get("required", ())
    return {
        name: _option(name, field, name in required) for name, field in schema["properties"].items()
    }


def _option(name: str, field: dict[str, Any], required: bool) -> Option:
    """Return an option from the JSON Schema of its field; ``required``: it has no default."""
    # The schema of an optional field lists its own type, and null.
    alternatives = field.get("anyOf", [field])
    declared = next(schema for schema in alternatives if schema["type"] != "null")
    value = declared  # the schema of a single value: of an item, if the option is a list
    if declared["type"] == "array":
        value = declared["items"] if "items" in declared else declared["prefixItems"][0]
    return Option(
        name=name,
        label=field["title"],
        help=" ".join(field.get("description", "").split()),
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
    """Return ``values`` as options of the type ``declared``.

    Raises OptionsRefused with a remedy for each wrong option.
    """
    try:
        return declared.model_validate(values)
    except ValidationError as error:
        errors, known = error.errors(), options_in(declared)
    lists_with_faults = {fault["loc"][0] for fault in errors if len(fault["loc"]) > 1}
    # Several items of a list can have the same fault: report the first.
    distinct: dict[tuple[str, Any, str], OptionFault] = {}
    for found in errors:
        # A list may be too short only because its items were refused.
        if found["type"] != "too_short" or found["loc"][0] not in lists_with_faults:
            fault = _fault(known, found)
            distinct.setdefault((fault.name, fault.value, fault.remedy), fault)
    raise OptionsRefused.of([*distinct.values()])


def _fault(known: dict[str, Option], fault: Any) -> OptionFault:
    """Return a fault that pydantic found as name, value and remedy; ``known`` are all options."""
    kind, place, sent = fault["type"], fault["loc"], fault["input"]
    name, is_whole_option = str(place[0]), len(place) == 1  # else an item of a list
    value = str(sent) if isinstance(sent, str | int | float) else ""
    if kind == "extra_forbidden":
        value, remedy = "", f"this is not known here. Known: {', '.join(known) or 'none'}"
    elif kind == "missing" and is_whole_option:
        remedy = "give a value"
    elif kind == "value_error":  # message of a validator of the declaration
        remedy = str(fault["ctx"]["error"])
    elif known[name].many and is_whole_option and not known[name].give:
        remedy = f"give a list of {known[name].fewest} to {known[name].largest}"
    else:
        remedy = known[name].remedy
    return OptionFault(name, value, remedy, ".".join(map(str, place)))
