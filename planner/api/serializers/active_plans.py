from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.results import schema_of
from planner.api.serializers.options import chosen_values, field_of
from planner.api.serializers.strict_fields import StrictSerializer
from planner.domain.options import options_in
from planner.models import ActivePlan
from planner.outputs.active_plan_metrics import Desired, desired
from planner.outputs.options import ExportOptions
from planner.selectors.active_plans import active_plans
from planner.services.active_plans import MAX_MESSAGE_CHARACTERS

MOST_NUMBER = 2**31 - 1
TAKEN = ("policy", "region", "model", "repeat", "timezone", "names")  # export options to accept


class WhySaid(StrictSerializer):
    message = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=MAX_MESSAGE_CHARACTERS,
        help_text="Reason.",
    )


class InForceRequest(WhySaid):
    """The run with the plan to activate, how to apply it, and why."""

    run = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)

    def get_fields(self) -> dict[str, Any]:
        known = options_in(ExportOptions)
        return super().get_fields() | {name: field_of(known[name]) for name in TAKEN}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        named = {name: attrs.pop(name) for name in ("run", "message")}
        return named | {"options": chosen_values(ExportOptions, attrs)}


class InForceAsked(StrictSerializer):
    scenario = serializers.CharField(
        required=False,
        default="",
        max_length=120,
        help_text="Scenario of the plan. Required if several plans are active.",
    )


class OtherPlan(serializers.Serializer[Any]):
    run = serializers.IntegerField(source="number")
    scenario = serializers.CharField()


class KeptPlan(serializers.ModelSerializer[ActivePlan]):
    """An active or past plan, as lists show it."""

    run = serializers.IntegerField(source="number")
    proposal = serializers.IntegerField(
        source="proposal_id", allow_null=True, help_text="Approved proposal. null: none."
    )
    timezone = serializers.CharField(source="zone")
    by = serializers.CharField(
        source="by.username",
        default=None,
        allow_null=True,
        help_text="null: activated by a rule or the CLI.",
    )
    message = serializers.CharField(source="why", help_text="Reason, or the title of the proposal.")
    origin = serializers.IntegerField(
        source="origin_id", allow_null=True, help_text="Earlier plan that was restored. null: none."
    )

    class Meta:
        model = ActivePlan
        fields = ["id", "run", "proposal", "scenario", "policy", "label", "repeat", "timezone",
                  "begins", "ends", "by", "since", "until", "message", "origin"]  # fmt: skip


class KeptPool(serializers.Serializer[Any]):
    name = serializers.CharField()
    region = serializers.CharField()
    model = serializers.CharField()
    gpu = serializers.CharField()
    role = serializers.CharField()
    steps = serializers.ListField(
        child=serializers.ListField(),
        help_text="Steps as [begins, ends, replicas], in the time zone of the plan.",
    )


class KeptPlanDetail(KeptPlan):
    pools = KeptPool(many=True, help_text="Pools as they were at activation.")

    class Meta(KeptPlan.Meta):
        fields = [*KeptPlan.Meta.fields, "pools"]


class PlansBetweenAsked(serializers.Serializer[Any]):
    """The two plans to compare."""

    old = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)
    new = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)


class InForce(KeptPlan):
    desired = serializers.SerializerMethodField()
    others = serializers.SerializerMethodField(help_text="Active plans of other scenarios.")

    class Meta(KeptPlan.Meta):
        fields = [*KeptPlan.Meta.fields, "desired", "others"]

    @extend_schema_field(schema_of(list[Desired]))
    def get_desired(self, plan: ActivePlan) -> list[dict[str, Any]]:
        return list(map(asdict, desired(plan, timezone.now())))

    def get_others(self, plan: ActivePlan) -> list[dict[str, Any]]:
        return [dict(OtherPlan(other).data) for other in active_plans().exclude(pk=plan.pk)]


class DeploymentNames(StrictSerializer):
    names = serializers.DictField(
        child=serializers.CharField(max_length=63, allow_blank=True),
        help_text="Deployment name (a DNS-1123 label) by default name.",
    )
