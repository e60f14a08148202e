"""Define fields and serializers of request and response bodies.

Requests with unknown fields, unknown choices or infinite numbers are refused.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_type_hints

from drf_spectacular.drainage import set_override
from rest_framework import serializers
from rest_framework.reverse import reverse

from planner.api.results import schema_of
from planner.domain.serialise import as_json
from planner.field_notes import field_notes

Values = dict[str, Any]  # values of a body by field, parsed from JSON or a form
FieldsByName = dict[str, serializers.Field[Any, Any, Any, Any]]


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown fields, with an error at each of them."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values; raise ValidationError if ``data`` has unknown fields."""
        if isinstance(data, dict):  # JSON objects and forms
            known = [name for name, field in self.fields.items() if not field.read_only]
            unknown = [str(name) for name in data if name not in (*known, "csrfmiddlewaretoken")]
            message = f"This is not known here. Known: {', '.join(known) or 'none'}."
            if unknown:
                raise serializers.ValidationError({name: [message] for name in unknown})
        for field in self.fields.values():
            _list_choices_in_error(getattr(field, "child", field))
        return super().to_internal_value(data)


def _list_choices_in_error(field: Any) -> None:
    """Let the error message of a field with choices list the choices."""
    if isinstance(field, serializers.ChoiceField):
        names = ", ".join(map(str, field.choices))
        template = names.replace("{", "{{").replace("}", "}}")  # the message is formatted
        field.error_messages["invalid_choice"] = f"There is no '{{input}}'. Choose from {template}."


class RowNumber(serializers.IntegerField):
    """The id of a row, such as a run: a positive 32-bit integer."""

    def __init__(self, **more: Any) -> None:
        super().__init__(min_value=1, max_value=2**31 - 1, **more)


class OptionalText(serializers.CharField):
    """A text that may be left out or empty."""

    def __init__(self, **more: Any) -> None:
        super().__init__(required=False, default="", allow_blank=True, **more)


class RelatedText(serializers.CharField):
    """A text of a related row at a dotted path, such as "owner.username"; null without that row."""

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


class LinkField(serializers.URLField):
    """The address of the API's ``view`` for a row.

    The row's ``attribute``, which may be a dotted path, is the argument ``name`` of the view. The
    address is null if the attribute is None.
    """

    def __init__(self, view: str, name: str, attribute: str = "pk", **more: Any) -> None:
        super().__init__(source="*", read_only=True, **more)
        self._view, self._name, self._attribute_of = f"api:{view}", name, attrgetter(attribute)

    def to_representation(self, row: Any) -> Any:
        """Return the address of the view for ``row``, or None."""
        try:
            argument = self._attribute_of(row)
        except AttributeError:  # a related row that is None
            argument = None
        if argument is None:
            return None
        request = self.context.get("request")
        return reverse(self._view, kwargs={self._name: argument}, request=request)


class TypedField(serializers.Field[Any, Any, Any, Any]):
    """A read-only value of the type ``kind``; ``as_json`` writes it, ``schema_of`` describes it.

    ``compute`` returns the value for a row. Without ``compute``, the value is the row's attribute
    of the field's name.
    """

    def __init__(self, kind: Any, compute: Callable[[Any], Any] | None = None, **more: Any) -> None:
        if compute:
            more["source"] = "*"  # pass the whole row to ``to_representation``
        super().__init__(read_only=True, **more)
        set_override(self, "field", schema_of(kind))
        self._compute = compute

    def to_representation(self, value: Any) -> Any:
        """Return a value as JSON data; with ``compute``, ``value`` is the row."""
        return as_json(self._compute(value) if self._compute else value)


def serializer_of(kind: type, *without: str) -> type[serializers.Serializer[Any]]:
    """Return a serializer class for the dataclass ``kind``, without the fields ``without``.

    The comments at the dataclass's fields become the descriptions.
    """
    hints, notes = get_type_hints(kind), field_notes(kind)
    attributes: dict[str, TypedField | str | None] = {"__doc__": kind.__doc__}
    for field in fields(kind):
        if field.name not in without:
            help_text = notes.get(field.name)
            attributes[field.name] = TypedField(hints[field.name], help_text=help_text)
    return type(kind.__name__, (serializers.Serializer,), attributes)
