from __future__ import annotations

from typing import Any

from rest_framework import serializers

from planner.selectors.run_comparison import MAX_RUNS, MIN_RUNS


class BesideAsked(serializers.Serializer[Any]):
    """The runs to compare; the first is the base of the comparison."""

    run = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**31 - 1),
        min_length=MIN_RUNS,
        max_length=MAX_RUNS,
        help_text="Number of a completed run. Give it once for each run.",
    )
    policy = serializers.CharField(
        required=False,
        default="",
        max_length=161,
        help_text="Policy to compare. Default: the recommended policy of each run.",
    )
