from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from planner.api.serializers.options import chosen, field_of
from planner.api.serializers.strict import StrictSerializer
from planner.exports.in_force import desired
from planner.exports.options import ExportOptions
from planner.models import PlanInForce
from planner.selectors.in_force import plans_in_force
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


class InForceAsked(StrictSerializer):
    scenario = serializers.CharField(
        required=False,
        default="",
        max_length=120,
        help_text="Whose plan is meant; needed to end one where several are in force.",
    )


class OtherPlan(serializers.Serializer[Any]):
    run = serializers.IntegerField(source="number")
    scenario = serializers.CharField()


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
    others = serializers.SerializerMethodField(
        help_text="Plans of other scenarios that are in force beside it."
    )

    class Meta:
        model = PlanInForce
        fields = ["run", "proposal", "scenario", "policy", "label", "repeat", "timezone", "begins",
                  "ends", "by", "since", "desired", "others"]  # fmt: skip

    def get_desired(self, plan: PlanInForce) -> list[dict[str, Any]]:
        return [dict(DesiredPool(one).data) for one in desired(plan, timezone.now())]

    def get_others(self, plan: PlanInForce) -> list[dict[str, Any]]:
        return [dict(OtherPlan(one).data) for one in plans_in_force().exclude(pk=plan.pk)]


class DeploymentNames(StrictSerializer):
    names = serializers.DictField(
        child=serializers.CharField(max_length=63, allow_blank=True),
        help_text="By the name of the rule; DNS-1123 labels.",
    )
