from __future__ import annotations

from typing import Any

from rest_framework import serializers

from planner.api.serializers.scenarios import ScenarioDetail
from planner.api.serializers.strict_fields import StrictSerializer
from planner.inputs.fleet.reading import MAX_CHARACTERS


class FleetRequest(StrictSerializer):
    text = serializers.CharField(
        max_length=MAX_CHARACTERS,
        trim_whitespace=False,
        help_text="Kubernetes YAML or JSON, Helm values, or a launch line of an engine.",
    )
    model = serializers.CharField(
        max_length=200, required=False, help_text="For pools without it in their text."
    )
    gpu = serializers.CharField(
        max_length=200, required=False, help_text="GPU type or cloud instance, if missing."
    )
    tp = serializers.IntegerField(
        min_value=1, max_value=1024, required=False, help_text="GPUs of one replica, if missing."
    )
    region = serializers.CharField(
        max_length=200, required=False, help_text="Of the scenario; its only one by default."
    )
    replicas = serializers.IntegerField(
        min_value=0, max_value=1_000_000, required=False, help_text="Of each pool, instead."
    )


class FleetAnswer(serializers.Serializer[Any]):
    pools = serializers.ListField(
        child=serializers.DictField(), help_text="As read. `needs` names missing fields."
    )
    notes = serializers.ListField(child=serializers.CharField(), help_text="What was assumed.")
    scenario = ScenarioDetail()
