"""Serve schedules of plans, and reports of plan versus actual."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import LOCATION, operation, removal
from planner.api.serializers.fields import (
    FieldsByName,
    LinkField,
    RelatedText,
    StrictSerializer,
    Values,
)
from planner.api.serializers.options import OptionsSerializer
from planner.domain.options import options_in
from planner.models import Firing, Outcome, Schedule
from planner.selectors import schedules as known
from planner.selectors.scenarios import scenario_get
from planner.services import schedules as services
from planner.services.notifications import digest_text
from planner.services.schedule_firings import schedule_fire

MODEL_FIELDS = {"timezone": "zone"}  # field of the model, by field of the request


class ScheduleChange(OptionsSerializer):
    """The settings of a schedule; those that are not given stay."""

    declared = options_in(services.ScheduleSettings)
    name = serializers.CharField(max_length=120, required=False)
    scenario = serializers.CharField(
        max_length=120, required=False, help_text="Name or id of the scenario."
    )
    kind = serializers.ChoiceField(
        Schedule.Kind.choices, required=False, help_text="Kind of the runs."
    )
    options = serializers.DictField(required=False, help_text="Run options.")

    def get_fields(self) -> FieldsByName:
        """Return the fields of the settings; the policy may be empty, and limits may be null."""
        fields = super().get_fields()
        policy: Any = fields["policy"]
        policy.allow_blank = True
        for name in services.LIMITS:
            fields[name].allow_null = True
        return fields

    def validate(self, attrs: Values) -> Values:
        """Return the values by field of the model, with the row of the scenario for its name."""
        fields = {MODEL_FIELDS.get(name, name): value for name, value in attrs.items()}
        if "scenario" in fields:
            fields["scenario"] = scenario_get(fields["scenario"])
        return fields


class ScheduleRequest(ScheduleChange):
    """A new schedule."""

    name = serializers.CharField(max_length=120)
    scenario = serializers.CharField(max_length=120, help_text="Name or id of the scenario.")

    def get_fields(self) -> FieldsByName:
        """Return the fields; a new schedule needs a cron line."""
        fields = super().get_fields()
        fields["cron"].required = True
        return fields


class FireRequest(StrictSerializer):
    as_of = serializers.DateTimeField(
        required=False, help_text="Time whose data is used. Default: now."
    )

    def validate_as_of(self, value: datetime) -> datetime:
        if not 1970 <= value.year <= 2261:
            raise serializers.ValidationError("Give a moment from 1970 to 2261.")
        return value


class ScheduleItem(serializers.ModelSerializer[Schedule]):
    scenario = RelatedText("scenario.name")
    owner = RelatedText("owner.username")
    timezone = serializers.CharField(source="zone")
    options = serializers.DictField()
    link = LinkField("schedule", "number")

    class Meta:
        model = Schedule
        fields = ["id", "name", "scenario", "kind", "options", "policy", "cron", "timezone",
                  "most_replicas", "most_cost", "paused", "next_due", "owner", "created_at",
                  "link"]  # fmt: skip


class FiringItem(serializers.ModelSerializer[Firing]):
    schedule = serializers.CharField(source="schedule.name")
    by = RelatedText("by.username", help_text="null: started by the schedule.")
    difference = serializers.DictField(
        help_text="Change from the active plan. Empty: no active plan."
    )
    settled_at = serializers.DateTimeField(source="finished_at", allow_null=True)
    link = LinkField("firing", "number")

    class Meta:
        model = Firing
        fields = ["id", "schedule", "due_at", "as_of", "fired_at", "settled_at", "state", "words",
                  "run", "proposal", "difference", "by", "link"]  # fmt: skip


class OutcomeItem(serializers.ModelSerializer[Outcome]):
    run = serializers.IntegerField(source="plan.number")
    scenario = serializers.CharField(source="plan.scenario")
    link = LinkField("outcome", "number")

    class Meta:
        model = Outcome
        fields = ["id", "run", "scenario", "begins", "ends", "state", "words", "link"]


class OutcomeDetail(OutcomeItem):
    figures = serializers.DictField(
        help_text=(
            "Demand, attainment, cost, planned and needed replicas by hour, and drift. Empty "
            "while it runs."
        )
    )

    class Meta(OutcomeItem.Meta):
        fields = [*OutcomeItem.Meta.fields, "figures"]


class Digest(serializers.Serializer[Any]):
    text = serializers.CharField()


EXAMPLES = {
    "Mondays at six": {
        "name": "Mondays",
        "scenario": "Chat in one region",
        "cron": "0 6 * * 1",
        "timezone": "Europe/Berlin",
    }
}


@lists(ScheduleItem, rows=known.schedules_list)
class ScheduleListView(ListView[Schedule]):
    """List schedules."""

    @operation(
        {201: ScheduleItem}, request=ScheduleRequest, parameters=[LOCATION], examples=EXAMPLES,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Create a schedule that plans a scenario again at given times.

        Approvers and admins may set limits within which a plan becomes active without a review.
        Without limits every plan is reviewed.
        """
        sent = valid(ScheduleRequest(data=request.data))
        schedule = services.schedule_create(owner=self.user, now=timezone.now(), **sent)
        return self.row_response(ScheduleItem, schedule, status.HTTP_201_CREATED)


class ScheduleView(ApiView):
    @operation({200: ScheduleItem})
    def get(self, request: Request, number: int) -> Response:
        """Get a schedule."""
        return self.row_response(ScheduleItem, known.schedule_get(str(number)))

    @operation({200: ScheduleItem}, request=ScheduleChange)
    def patch(self, request: Request, number: int) -> Response:
        """Change a schedule."""
        schedule = known.schedule_get(str(number))
        sent = valid(ScheduleChange(data=request.data))
        services.schedule_change(schedule=schedule, user=self.user, now=timezone.now(), **sent)
        return self.row_response(ScheduleItem, schedule)

    @removal
    def delete(self, request: Request, number: int) -> None:
        """Remove a schedule with its history; runs and plans stay."""
        services.schedule_delete(schedule=known.schedule_get(str(number)), user=self.user)


class SchedulePauseView(ApiView):
    @operation({200: ScheduleItem}, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Pause a schedule until it is resumed."""
        schedule = services.schedule_pause(schedule=known.schedule_get(str(number)), user=self.user)
        return self.row_response(ScheduleItem, schedule)


class ScheduleResumeView(ApiView):
    @operation({200: ScheduleItem}, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Resume a schedule at its next time."""
        now = timezone.now()
        schedule = services.schedule_resume(
            schedule=known.schedule_get(str(number)), user=self.user, now=now
        )
        return self.row_response(ScheduleItem, schedule)


class ScheduleFireView(ApiView):
    @operation({201: FiringItem}, request=FireRequest, parameters=[LOCATION])
    def post(self, request: Request, number: int) -> Response:
        """Fire a schedule now; poll the firing until it is settled."""
        sent = valid(FireRequest(data=request.data))
        firing = schedule_fire(
            schedule=known.schedule_get(str(number)), user=self.user, now=timezone.now(), **sent
        )
        return self.row_response(FiringItem, firing, status.HTTP_201_CREATED, {"Retry-After": "10"})


@lists(FiringItem)
class FiringListView(ListView[Firing]):
    """List the firings of a schedule, newest first, including missed and failed ones."""

    def get_queryset(self) -> QuerySet[Firing]:
        return known.firings_list(known.schedule_get(str(self.kwargs.get("number", 0))))


class FiringView(ApiView):
    @operation({200: FiringItem})
    def get(self, request: Request, number: int) -> Response:
        """Get a firing and its result."""
        return self.row_response(FiringItem, known.firing_get(number))


@lists(OutcomeItem, rows=lambda: known.outcomes_list().defer("figures"))
class OutcomeListView(ListView[Outcome]):
    """List reports of plan versus actual, newest first."""


class OutcomeView(ApiView):
    @operation({200: OutcomeDetail})
    def get(self, request: Request, number: int) -> Response:
        """Get the report of plan versus actual, hour by hour."""
        return self.row_response(OutcomeDetail, known.outcome_get(number))


class DigestView(ApiView):
    @operation({200: Digest})
    def get(self, request: Request) -> Response:
        """Get a short summary of the last seven days."""
        return Response({"text": digest_text(now=timezone.now())})
