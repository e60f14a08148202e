"""Schedules and their history."""

from __future__ import annotations

from django.db.models import QuerySet

from planner.errors import NotFound
from planner.models import Firing, Schedule
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
