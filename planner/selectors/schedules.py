"""Schedules and their history."""

from __future__ import annotations

from django.db.models import QuerySet

from planner.errors import NotFound
from planner.models import Firing, Outcome, PlanInForce, Schedule
from planner.selectors.lookup import row_named


def schedules_list() -> QuerySet[Schedule]:
    return Schedule.objects.select_related("scenario", "owner")


def schedule_get(name: str) -> Schedule:
    """By name or id."""
    return row_named(schedules_list(), "schedule", name)


def firings_list(schedule: Schedule | None = None) -> QuerySet[Firing]:
    """Newest first; of all schedules where none is given."""
    rows = Firing.objects.select_related("schedule", "run", "proposal", "by")
    return rows.filter(schedule=schedule) if schedule else rows


def firing_get(number: int) -> Firing:
    firing = firings_list().filter(pk=number).first()
    if firing is None:
        raise NotFound(f"There is no firing {number}.")
    return firing


def outcomes_list(schedule: Schedule | None = None) -> QuerySet[Outcome]:
    """What came of plans, the newest first; of one schedule's alone."""
    rows = Outcome.objects.select_related("plan", "plan__run", "plan__proposal")
    if schedule is None:
        return rows
    mine = PlanInForce.objects.filter(proposal__firings__schedule=schedule)
    return rows.filter(plan__in=mine)


def outcome_get(number: int) -> Outcome:
    outcome = outcomes_list().filter(pk=number).first()
    if outcome is None:
        raise NotFound(f"There is no outcome {number}.")
    return outcome
