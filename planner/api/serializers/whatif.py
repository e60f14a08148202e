from __future__ import annotations

from typing import Any

from rest_framework import serializers

from planner.api.serializers.strict_fields import (
    FiniteField,
    StrictSerializer,
)
from planner.services.whatif import LIMITS, Changes


class WhatIfRequest(StrictSerializer):
    """The changes to a stored plan; values that are not given stay."""

    growth = FiniteField(default=1.0, help_text="Times the demand.")
    quantile = FiniteField(required=False, help_text="Of the forecast, planned for.")
    spare = serializers.IntegerField(
        required=False, min_value=0, max_value=1000, help_text="Instances (`objective.spare`)."
    )
    prices = serializers.DictField(
        child=FiniteField(), required=False, help_text="Times the price, by GPU type."
    )
    tiers = serializers.DictField(
        child=serializers.DictField(child=FiniteField()),
        required=False,
        help_text=f"By interactive tier: {', '.join(LIMITS)}.",
    )
    without = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        help_text="GPU types that may not be used.",
    )
    mix = serializers.DictField(
        child=FiniteField(),
        required=False,
        help_text="Share of a region's GPUs, at its busiest, that a GPU type may have at most.",
    )

    def changes(self) -> Changes:
        sent: dict[str, Any] = self.validated_data
        return Changes(**(sent | {"without": tuple(sent.get("without", ()))}))
