"""Describe the characterization of a trace."""

from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from planner.domain.trace_statistics.figures import Character
from planner.domain.traffic.window_rank import WindowRank


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterAnswer(Character):
    """The characterization of a trace, and the rank of the requested window."""

    window: WindowRank | None


class CharacterAsked(serializers.Serializer[Any]):
    start = serializers.DateTimeField(
        required=False, help_text="Start of the window that is ranked among windows of its length."
    )
    end = serializers.DateTimeField(required=False, help_text="End of the window.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) == 1:
            raise serializers.ValidationError("Give start and end both, or neither.")
        return attrs
