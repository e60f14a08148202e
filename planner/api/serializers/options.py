"""Define request bodies with the options of runs, of exports and of reading files.

The options are declared in planner.domain, so that the API accepts and refuses the same values as
the command line.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.serializers.fields import FieldsByName, FiniteField, StrictSerializer, Values
from planner.domain.kinds import forecast, plan
from planner.domain.kinds.registry import KINDS
from planner.domain.options import Option, RunOptions, options_in, options_of
from planner.errors import IngestError, OptionsRefused
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import IngestOptions, OptionLabel, column_mapping
from planner.inputs.ingest.source import KINDS_OF_FILE
from planner.models import Run

SOLVERS = options_in(plan.Options)["solver"].choices
METHODS = options_in(forecast.Options)["method"].choices
FORMATS = list(OFFERED["format"].choices)
WORK = [(kind, label) for kind, label in Run.Kind.choices if kind in KINDS]
ORIGINS = ("scenario", "document", "trace")  # fields that name the input data of a run
FIELD_OF_JSON_TYPE: dict[str, Callable[..., Any]] = {
    "boolean": serializers.BooleanField,
    "integer": serializers.IntegerField,
    "number": FiniteField,
    "string": serializers.CharField,
}


@extend_schema_field(OpenApiTypes.BINARY)
class BytesField(serializers.FileField):
    """An uploaded file.

    The schema library would describe a FileField as an address; this declares binary content.
    """


class OptionsSerializer(StrictSerializer):
    """A request body with the fields of the class, and one for each option in ``declared``."""

    declared: ClassVar[Mapping[str, Option]] = {}

    def get_fields(self) -> FieldsByName:
        """Return the fields of the class, and one for each option that has no such field."""
        fields = super().get_fields()
        for name, option in self.declared.items():
            if name not in fields:
                fields[name] = field_of(option)
        return fields


class ReadingRequest(StrictSerializer):
    """How to read a file; everything that is not given is detected."""

    map = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        help_text="Column of a field, as FIELD=COLUMN. Repeat for several.",
    )

    def get_fields(self) -> FieldsByName:
        """Return the fields of the class, and one for each option of reading a file."""
        return super().get_fields() | {
            name: _reading_field(option) for name, option in OFFERED.items()
        }

    def validate_map(self, value: list[str]) -> dict[str, str]:
        """Return the columns by field; raise ValidationError if a text is not FIELD=COLUMN."""
        try:
            return column_mapping(value)
        except IngestError as problem:
            raise serializers.ValidationError(str(problem)) from None

    def options(self, file_name: str) -> IngestOptions:
        """Return the options for reading a file; raise IngestError if they contradict."""
        chosen: Values = self.validated_data
        return IngestOptions.of(file_name, chosen, chosen.get("map"))


class UploadRequest(ReadingRequest):
    """A file and how to read it; everything that is not given is detected."""

    file = BytesField(
        max_length=255,
        help_text=f"{KINDS_OF_FILE}.",
        error_messages={"empty": "The file is empty. Export it again."},
    )


def _reading_field(option: OptionLabel) -> serializers.Field[Any, Any, Any, Any]:
    """Return the serializer field of an option for reading files."""
    if option.switch:
        return serializers.BooleanField(default=False, help_text=option.help)
    if option.choices:
        choices = list(option.choices)
        return serializers.ChoiceField(choices, default=choices[0], help_text=option.help)
    return serializers.CharField(max_length=option.longest, required=False, help_text=option.help)


def field_of(option: Option) -> Any:
    """Return the request field of an option, with its limits and its help.

    A limit that excludes its own value (``above``) is checked by the options themselves.
    """
    limits = {
        "min_value": option.above if option.least is None else option.least,
        "max_value": option.most,
        "max_length": option.longest,
    }
    given_limits = {name: limit for name, limit in limits.items() if limit is not None}
    field: Callable[..., Any] = partial(FIELD_OF_JSON_TYPE[option.type], **given_limits)
    if option.choices:  # checked against its values, whatever their type
        field = partial(serializers.ChoiceField, option.choices)
    if option.many:
        lengths: Any = {"min_length": option.fewest, "max_length": option.largest}
        field = partial(serializers.ListField, child=field(), **lengths)
    return field(required=option.required, help_text=option.help or None)


def chosen_values(declared: type[RunOptions], values: Values) -> Values:
    """Return the options in ``values``, validated as options of the class ``declared``.

    They have the form in which a run stores them. Raises ValidationError with the faults by field.
    """
    try:
        return options_of(declared, values).explicit_values()
    except OptionsRefused as refused:
        errors = {}
        for fault in refused.faults:
            sentence = f"{fault.remedy[:1].upper()}{fault.remedy[1:]}."
            errors[fault.path] = [sentence]
        raise serializers.ValidationError(errors) from None


def run_options(body: Values) -> Values:
    """Return the validated ``options`` of a ``body`` that starts a run of its ``kind``.

    They have the form in which a run stores them. Raises ValidationError with the faults below the
    field ``options``.
    """
    try:
        return chosen_values(KINDS[body["kind"]].options, body.get("options", {}))
    except serializers.ValidationError as refused:
        raise serializers.ValidationError({"options": refused.detail}) from None


class ScenarioRunRequest(StrictSerializer):
    """A stored scenario, or a document that is used for this run only."""

    kind = ""  # kind of the run

    scenario = serializers.CharField(
        max_length=120, required=False, help_text="Name or id of a stored scenario."
    )
    document = serializers.CharField(
        required=False,
        trim_whitespace=False,
        help_text="A scenario file in YAML. It is not stored.",
    )

    def validate(self, attrs: Values) -> Values:
        """Return {name of the input data: its value, "options": validated options}.

        Raises ValidationError unless exactly one of ORIGINS is given.
        """
        origin = {name: value for name, value in attrs.items() if name in ORIGINS}
        options = {name: value for name, value in attrs.items() if name not in ORIGINS}
        if len(origin) != 1:
            accepted = [name for name in ORIGINS if name in self.fields]
            raise serializers.ValidationError(f"Give exactly one of {', '.join(accepted)}.")
        declared = forecast.TraceOptions if "trace" in attrs else KINDS[self.kind].options
        return {**origin, "options": chosen_values(declared, options)}


class TraceOrScenario(ScenarioRunRequest):
    """The demand of a scenario, or that of one trace."""

    trace = serializers.CharField(max_length=120, required=False, help_text="Name or id.")


def request_of(kind: str) -> type[ScenarioRunRequest]:
    """Return the serializer of the request that starts a run of ``kind``."""
    base: type[ScenarioRunRequest] = ScenarioRunRequest
    declared = KINDS[kind].options
    if kind == Run.Kind.FORECAST:  # of a scenario or of a trace
        base, declared = TraceOrScenario, forecast.TraceOptions
    class_name = f"{kind.title().replace('-', '')}Request"
    attributes = {name: field_of(option) for name, option in options_in(declared).items()}
    # The OpenAPI document shows the docstring, which ``type`` would not inherit.
    attributes |= {"kind": kind, "__doc__": base.__doc__}
    return type(class_name, (base,), attributes)


REQUESTS = {kind: request_of(kind) for kind in KINDS}


class RunRequest(StrictSerializer):
    """The kind and the options of a run of a stored scenario."""

    kind = serializers.ChoiceField(WORK)
    options = serializers.DictField(
        required=False, help_text="Options of that kind of run, such as the body of /forecast/."
    )

    def validate(self, attrs: Values) -> Values:
        return {"kind": attrs["kind"], "options": run_options(attrs)}
