"""Refuse unknown fields in bodies, and numbers that are not finite."""

import math
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses unknown fields, with an error at each of them."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):  # JSON objects and forms
            known = [name for name, field in self.fields.items() if not field.read_only]
            unknown = [str(n) for n in data if n not in known and n != "csrfmiddlewaretoken"]
            if unknown:
                there_are = ", ".join(known) or "none"
                raise serializers.ValidationError(
                    {name: [f"This is not known here. Known: {there_are}."] for name in unknown}
                )
        return super().to_internal_value(data)


class FiniteField(serializers.FloatField):
    """A float that is neither NaN nor infinite."""

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            raise serializers.ValidationError("A finite number is needed.")
        return value
