from __future__ import annotations

from typing import Any

from rest_framework import serializers

from planner.api.serializers.strict_fields import FiniteField, StrictSerializer
from planner.domain.whatif.settings import TIER_LIMITS, chosen_of


class WhatIfRequest(StrictSerializer):
    """The changes to a stored plan; values that are not given stay."""

    growth = FiniteField(required=False, help_text="Factor on demand; default: 1.")
    quantile = FiniteField(required=False, help_text="Forecast percentile, as a fraction.")
    spare = serializers.IntegerField(
        required=False, min_value=0, max_value=1000, help_text="Spare replicas per pool."
    )
    prices = serializers.DictField(
        child=FiniteField(), required=False, help_text="Factors on prices, by GPU type."
    )
    tiers = serializers.DictField(
        child=serializers.DictField(child=FiniteField()),
        required=False,
        help_text=f"By interactive tier: {', '.join(TIER_LIMITS)}.",
    )
    without = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        help_text="GPU types that may not be used.",
    )
    mix = serializers.DictField(
        child=FiniteField(),
        required=False,
        help_text="Largest share of a region's peak GPUs, by GPU type.",
    )

    values = serializers.DictField(
        child=serializers.JSONField(),
        required=False,
        help_text="Other values by address, such as `objective.epsilon`.",
    )

    def chosen(self) -> dict[str, Any]:
        """Return the values by name of a setting or by address."""
        return chosen_of(self.validated_data)
