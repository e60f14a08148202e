"""Serve schedules of plans, and reports of plan versus actual."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import Pages
from planner.api.schema import LOCATION, operation, removal
from planner.api.serializers.schedules import (
    Digest,
    FireRequest,
    FiringItem,
    OutcomeDetail,
    OutcomeItem,
    ScheduleChange,
    ScheduleItem,
    ScheduleRequest,
)
from planner.models import Firing, Outcome, Schedule
from planner.selectors.schedules import (
    firing_get,
    firings_list,
    outcome_get,
    outcomes_list,
    schedule_get,
    schedules_list,
)
from planner.services.schedule_firings import schedule_fire
from planner.services.schedules import (
    schedule_change,
    schedule_create,
    schedule_delete,
    schedule_pause,
    schedule_resume,
)
from planner.services.weekly_digest import digest_text

EXAMPLES = {
    "Mondays at six": {
        "name": "Mondays",
        "scenario": "Chat in one region",
        "cron": "0 6 * * 1",
        "timezone": "Europe/Berlin",
    }
}


class ScheduleListView(ApiView, generics.ListAPIView[Schedule]):
    serializer_class = ScheduleItem
    pagination_class = Pages
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Schedule]:
        return schedules_list()

    @operation({200: ScheduleItem(many=True)}, 400)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List schedules."""
        return self.list(request, *args, **kwargs)

    @operation(
        {201: ScheduleItem}, 400, 403, 404,
        request=ScheduleRequest, parameters=[LOCATION], examples=EXAMPLES,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Create a schedule that plans a scenario again at given times.

        Approvers and admins may set limits within which a plan becomes active without a review.
        Without limits every plan is reviewed.
        """
        sent = valid(ScheduleRequest(data=request.data))
        body = _schedule_json(schedule_create(owner=self.user, now=timezone.now(), **sent), request)
        return Response(body, status.HTTP_201_CREATED, headers={"Location": body["link"]})


class ScheduleView(ApiView):
    @operation({200: ScheduleItem}, 404)
    def get(self, request: Request, number: int) -> Response:
        """Get a schedule."""
        return Response(_schedule_json(schedule_get(str(number)), request))

    @operation({200: ScheduleItem}, 400, 403, 404, request=ScheduleChange)
    def patch(self, request: Request, number: int) -> Response:
        """Change a schedule."""
        schedule = schedule_get(str(number))
        sent = valid(ScheduleChange(data=request.data))
        schedule_change(schedule=schedule, user=self.user, now=timezone.now(), **sent)
        return Response(_schedule_json(schedule, request))

    @removal
    def delete(self, request: Request, number: int) -> Response:
        """Remove a schedule with its history; runs and plans stay."""
        schedule_delete(schedule=schedule_get(str(number)), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class SchedulePauseView(ApiView):
    @operation({200: ScheduleItem}, 403, 404, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Pause a schedule until it is resumed."""
        schedule = schedule_pause(schedule=schedule_get(str(number)), user=self.user)
        return Response(_schedule_json(schedule, request))


class ScheduleResumeView(ApiView):
    @operation({200: ScheduleItem}, 403, 404, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Resume a schedule at its next time."""
        now = timezone.now()
        schedule = schedule_resume(schedule=schedule_get(str(number)), user=self.user, now=now)
        return Response(_schedule_json(schedule, request))


class ScheduleFireView(ApiView):
    @operation({201: FiringItem}, 400, 403, 404, 409, request=FireRequest, parameters=[LOCATION])
    def post(self, request: Request, number: int) -> Response:
        """Fire a schedule now; poll the firing until it is settled."""
        sent = valid(FireRequest(data=request.data))
        firing = schedule_fire(
            schedule=schedule_get(str(number)), user=self.user, now=timezone.now(), **sent
        )
        body = FiringItem(firing, context={"request": request}).data
        headers = {"Location": body["link"], "Retry-After": "10"}
        return Response(body, status.HTTP_201_CREATED, headers=headers)


class FiringListView(ApiView, generics.ListAPIView[Firing]):
    serializer_class = FiringItem
    pagination_class = Pages
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Firing]:
        return firings_list(schedule_get(str(self.kwargs.get("number", 0))))

    @operation({200: FiringItem(many=True)}, 400, 404)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the firings of a schedule, newest first, including missed and failed ones."""
        return self.list(request, *args, **kwargs)


class FiringView(ApiView):
    @operation({200: FiringItem}, 404)
    def get(self, request: Request, number: int) -> Response:
        """Get a firing and its result."""
        return Response(FiringItem(firing_get(number), context={"request": request}).data)


class OutcomeListView(ApiView, generics.ListAPIView[Outcome]):
    serializer_class = OutcomeItem
    pagination_class = Pages
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Outcome]:
        return outcomes_list().defer("figures")

    @operation({200: OutcomeItem(many=True)}, 400)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List reports of plan versus actual, newest first."""
        return self.list(request, *args, **kwargs)


class OutcomeView(ApiView):
    @operation({200: OutcomeDetail}, 404)
    def get(self, request: Request, number: int) -> Response:
        """Get the report of plan versus actual, hour by hour."""
        return Response(OutcomeDetail(outcome_get(number), context={"request": request}).data)


class DigestView(ApiView):
    @operation({200: Digest})
    def get(self, request: Request) -> Response:
        """Get a short summary of the last seven days."""
        return Response({"text": digest_text(now=timezone.now())})


def _schedule_json(schedule: Schedule, request: Request) -> dict[str, Any]:
    """Return a schedule as JSON."""
    return dict(ScheduleItem(schedule, context={"request": request}).data)
