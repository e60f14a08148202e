from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from planner.api.serializers.options import chosen, field_of
from planner.api.serializers.strict import StrictSerializer
from planner.exports.in_force import desired
from planner.exports.options import ExportOptions
from planner.models import PlanInForce
from planner.studies.options import options_in

TAKEN = ("policy", "region", "model", "repeat", "timezone", "names")  # of what an export takes


class InForceRequest(StrictSerializer):
    """Which run's plan, and how."""

    run = serializers.IntegerField(min_value=1, max_value=2**31 - 1)

    def get_fields(self) -> dict[str, Any]:
        known = options_in(ExportOptions)
        return super().get_fields() | {name: field_of(known[name]) for name in TAKEN}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in attrs.items() if name != "run"}
        return {"run": attrs["run"], "options": chosen(ExportOptions, said)}


class DesiredPool(serializers.Serializer[Any]):
    pool = serializers.CharField()
    region = serializers.CharField()
    model = serializers.CharField()
    gpu = serializers.CharField()
    role = serializers.CharField()
    replicas = serializers.IntegerField(
        allow_null=True, help_text="Now; null where the plan says nothing of this moment."
    )


class InForce(serializers.ModelSerializer[PlanInForce]):
    run = serializers.IntegerField(source="number")
    proposal = serializers.IntegerField(
        source="proposal_id", allow_null=True, help_text="By which it was approved; null: none."
    )
    timezone = serializers.CharField(source="zone")
    by = serializers.CharField(source="by.username", default=None, allow_null=True)
    desired = serializers.SerializerMethodField()

    class Meta:
        model = PlanInForce
        fields = ["run", "proposal", "scenario", "policy", "repeat", "timezone", "begins", "ends",
                  "by", "since", "desired"]  # fmt: skip

    def get_desired(self, plan: PlanInForce) -> list[dict[str, Any]]:
        return [dict(DesiredPool(one).data) for one in desired(plan, timezone.now())]


class DeploymentNames(StrictSerializer):
    names = serializers.DictField(
        child=serializers.CharField(max_length=63, allow_blank=True),
        help_text="By the name of the rule; DNS-1123 labels.",
    )
