"""Define fields of bodies. Unknown fields, unknown choices and infinite numbers are refused."""

import math
from typing import Any

from rest_framework import serializers

Values = dict[str, Any]  # values of a body by field, parsed from JSON or a form
FieldsByName = dict[str, serializers.Field[Any, Any, Any, Any]]


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown fields, with an error at each of them."""

    def to_internal_value(self, data: Any) -> Any:
        """Return validated values; raise ValidationError for names of unknown fields."""
        if isinstance(data, dict):  # JSON objects and forms
            known = [name for name, field in self.fields.items() if not field.read_only]
            unknown = [str(n) for n in data if n not in known and n != "csrfmiddlewaretoken"]
            if unknown:
                names = ", ".join(known) or "none"
                raise serializers.ValidationError(
                    {name: [f"This is not known here. Known: {names}."] for name in unknown}
                )
        for field in self.fields.values():
            _list_choices_in_error(getattr(field, "child", field))
        return super().to_internal_value(data)


def _list_choices_in_error(field: Any) -> None:
    """Let the error message of a field with choices list them; other fields stay."""
    if isinstance(field, serializers.ChoiceField):
        names = ", ".join(map(str, field.choices)).replace("{", "{{").replace("}", "}}")
        field.error_messages["invalid_choice"] = f"There is no '{{input}}'. Choose from {names}."


class RowNumber(serializers.IntegerField):
    """The number of a row, such as a run, within the integers of the database."""

    def __init__(self, **more: Any) -> None:
        super().__init__(min_value=1, max_value=2**31 - 1, **more)


class OptionalText(serializers.CharField):
    """A text that may be left out or empty."""

    def __init__(self, **more: Any) -> None:
        super().__init__(required=False, default="", allow_blank=True, **more)


class RelatedText(serializers.CharField):
    """A text of a related row, by its path; null without that row."""

    def __init__(self, path: str, **more: Any) -> None:
        super().__init__(source=path, default=None, allow_null=True, **more)


class FiniteField(serializers.FloatField):
    """A float that is neither NaN nor infinite."""

    def to_internal_value(self, data: Any) -> float:
        """Return a finite number; raise ValidationError for nan and infinity."""
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            raise serializers.ValidationError("A finite number is needed.")
        return value
