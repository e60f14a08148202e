"""Describe schedules, their runs and plan-versus-actual reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rest_framework import serializers
from rest_framework.reverse import reverse

from planner.api.serializers.strict_fields import FiniteField, StrictSerializer
from planner.models import Firing, Outcome, Schedule
from planner.selectors.scenarios import scenario_get

TAKEN = {"timezone": "zone"}  # request fields that differ from the model's


class ScheduleChange(StrictSerializer):
    """The settings of a schedule; those that are not given stay."""

    name = serializers.CharField(max_length=120, required=False)
    scenario = serializers.CharField(max_length=120, required=False, help_text="Name or id.")
    kind = serializers.ChoiceField(Schedule.Kind.choices, required=False, help_text="Of its runs.")
    options = serializers.DictField(required=False, help_text="Of its runs.")
    policy = serializers.CharField(
        max_length=161,
        required=False,
        allow_blank=True,
        help_text="Policy to use; empty: the recommended one.",
    )
    cron = serializers.CharField(
        max_length=120,
        required=False,
        help_text="Minute, hour, day of month, month, day of week, as `0 6 * * 1`.",
    )
    timezone = serializers.CharField(max_length=64, required=False, help_text="IANA name.")
    most_replicas = FiniteField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=10,
        help_text="Share of replica-hours that may differ from the active plan without a review; "
        "null: everything is reviewed. For approvers and admins.",
    )
    most_cost = FiniteField(
        required=False, allow_null=True, min_value=0, max_value=10, help_text="The same of cost."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        fields = {TAKEN.get(name, name): value for name, value in attrs.items()}
        if "scenario" in fields:
            fields["scenario"] = scenario_get(fields["scenario"])
        return fields


class ScheduleRequest(ScheduleChange):
    """A new schedule."""

    name = serializers.CharField(max_length=120)
    scenario = serializers.CharField(max_length=120, help_text="Name or id.")
    cron = serializers.CharField(
        max_length=120, help_text="Minute, hour, day of month, month, day of week."
    )


class FireRequest(StrictSerializer):
    as_of = serializers.DateTimeField(
        required=False, help_text="Use the data of that time. Default: now."
    )

    def validate_as_of(self, value: datetime) -> datetime:
        if not 1970 <= value.year <= 2261:
            raise serializers.ValidationError("Give a moment from 1970 to 2261.")
        return value


class ScheduleItem(serializers.ModelSerializer[Schedule]):
    scenario = serializers.CharField(source="scenario.name", default=None, allow_null=True)
    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    timezone = serializers.CharField(source="zone")
    options = serializers.DictField()
    link = serializers.SerializerMethodField()

    class Meta:
        model = Schedule
        fields = ["id", "name", "scenario", "kind", "options", "policy", "cron", "timezone",
                  "most_replicas", "most_cost", "paused", "next_due", "owner", "created_at",
                  "link"]  # fmt: skip

    def get_link(self, schedule: Schedule) -> str:
        return _link("api:schedule", self, number=schedule.pk)


class FiringItem(serializers.ModelSerializer[Firing]):
    schedule = serializers.CharField(source="schedule.name")
    by = serializers.CharField(
        source="by.username", default=None, allow_null=True, help_text="null: the clock"
    )
    difference = serializers.DictField(
        help_text="From the active plan; empty: no plan to compare with."
    )
    settled_at = serializers.DateTimeField(source="finished_at", allow_null=True)
    link = serializers.SerializerMethodField()

    class Meta:
        model = Firing
        fields = ["id", "schedule", "due_at", "as_of", "fired_at", "settled_at", "state", "words",
                  "run", "proposal", "difference", "by", "link"]  # fmt: skip

    def get_link(self, firing: Firing) -> str:
        return _link("api:firing", self, number=firing.pk)


class OutcomeItem(serializers.ModelSerializer[Outcome]):
    run = serializers.IntegerField(source="plan.number")
    scenario = serializers.CharField(source="plan.scenario")
    link = serializers.SerializerMethodField()

    class Meta:
        model = Outcome
        fields = ["id", "run", "scenario", "begins", "ends", "state", "words", "link"]

    def get_link(self, outcome: Outcome) -> str:
        return _link("api:outcome", self, number=outcome.pk)


class OutcomeDetail(OutcomeItem):
    figures = serializers.DictField(
        help_text="Demand, attainment, cost, replicas held and needed by hour, drifts; empty while "
        "it runs."
    )

    class Meta(OutcomeItem.Meta):
        fields = [*OutcomeItem.Meta.fields, "figures"]


class Digest(serializers.Serializer[Any]):
    text = serializers.CharField()


def _link(view: str, serializer: serializers.BaseSerializer[Any], number: int) -> str:
    """Return the address of an object by its number."""
    where: str = reverse(view, kwargs={"number": number}, request=serializer.context.get("request"))
    return where
