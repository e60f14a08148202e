"""Describe the characterization of a trace, from the dataclasses that declare it."""

import types
import typing
from dataclasses import fields
from functools import cache
from typing import Any

from rest_framework import serializers

from planner.domain.trace_statistics import figures
from planner.domain.traffic.window_rank import WindowRank

PLAIN: dict[Any, type[serializers.Field[Any, Any, Any, Any]]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
}


@cache
def serializer_of(shape: type, prefix: str = "Trace") -> type[serializers.Serializer[Any]]:
    """Return a serializer with the fields and the docstring of a dataclass."""
    hints = typing.get_type_hints(shape)
    declared = {field.name: _field(hints[field.name], prefix) for field in fields(shape)}
    return type(
        f"{prefix}{shape.__name__}",
        (serializers.Serializer,),
        declared | {"__doc__": shape.__doc__},
    )


def _field(hint: Any, prefix: str, **how: Any) -> serializers.Field[Any, Any, Any, Any]:
    """Return the serializer field of a type."""
    if typing.get_origin(hint) is types.UnionType:
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return _field(inner, prefix, allow_null=True)
    if typing.get_origin(hint) is tuple:
        return serializers.ListField(child=_field(typing.get_args(hint)[0], prefix), **how)
    return PLAIN[hint](**how) if hint in PLAIN else serializer_of(hint, prefix)(**how)


Character = serializer_of(figures.Character)
Window = serializer_of(WindowRank)


class CharacterAnswer(Character):  # type: ignore[misc, valid-type]
    """The characterization of a trace, and the rank of the requested window."""

    window = Window(allow_null=True)


class CharacterAsked(serializers.Serializer[Any]):
    start = serializers.DateTimeField(
        required=False, help_text="Begin of a window to rank among all windows as long."
    )
    end = serializers.DateTimeField(required=False, help_text="Its end.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) == 1:
            raise serializers.ValidationError("Give start and end both, or neither.")
        return attrs
