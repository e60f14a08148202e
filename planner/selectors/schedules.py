"""Read schedules and their history."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, QuerySet, Subquery

from planner.domain.retrospective.figures import JudgedSpeed, SpeedDrift
from planner.domain.serialise import from_json
from planner.models import ActivePlan, Firing, Outcome, Schedule, Source
from planner.selectors.lookup import row_by_name, row_by_number

MAX_OUTCOMES = 100  # newest judged plans that are searched for speeds of a profile


def schedules_list() -> QuerySet[Schedule]:
    """Return all schedules with their scenarios, owners, and last firing."""
    firings = Firing.objects.filter(schedule=OuterRef("pk"))  # the newest first
    return Schedule.objects.select_related("scenario", "owner").annotate(
        last_at=Subquery(firings.values("due_at")[:1]),
        last_state=Subquery(firings.values("state")[:1]),
    )


def schedule_get(name: str) -> Schedule:
    """Return a schedule by name or id; raise NotFound."""
    return row_by_name(schedules_list(), "schedule", name)


def firings_list(schedule: Schedule | None = None) -> QuerySet[Firing]:
    """Return the firings of a schedule, newest first; None: of all schedules."""
    rows = Firing.objects.select_related("schedule", "proposal", "by")
    return rows.filter(schedule=schedule) if schedule else rows


def firing_get(number: int) -> Firing:
    """Return a firing by number; raise NotFound."""
    return row_by_number(firings_list(), "firing", number)


def outcomes_list(schedule: Schedule | None = None) -> QuerySet[Outcome]:
    """Return the comparisons of plans with actual traffic, of a ``schedule``; None: of all."""
    rows = Outcome.objects.select_related("plan").defer("plan__pools")
    if schedule is None:
        return rows
    plans = ActivePlan.objects.filter(proposal__firings__schedule=schedule)
    return rows.filter(plan__in=plans)


@dataclass(frozen=True, slots=True)
class ObservedSpeed:
    """The speed of one kind of replica that a live source measured under a plan."""

    outcome: int | None  # id of the comparison with actual traffic, if the plan has ended
    source: str  # name of the source, if the plan is active
    scenario: str
    ends: datetime
    drift: SpeedDrift


def observed_speeds(model: str, gpu: str, tp: int) -> list[ObservedSpeed]:
    """Return measured speeds of ``model`` on ``tp`` GPUs of type ``gpu``, newest first."""
    speeds = []
    for name, judged_speeds in Source.objects.exclude(speed=[]).values_list("name", "speed"):
        for document in judged_speeds:
            judged = from_json(JudgedSpeed, document)
            speeds.append(ObservedSpeed(None, name, judged.scenario, judged.until, judged.drift))
    finished = Outcome.objects.filter(state=Outcome.State.DONE).order_by("-ends")
    outcomes = finished.values_list("pk", "plan__scenario", "ends", "figures__speed")
    for pk, scenario, ends, drifts in outcomes[:MAX_OUTCOMES]:
        for document in drifts or ():
            drift = from_json(SpeedDrift, document)
            speeds.append(ObservedSpeed(pk, "", scenario, ends, drift))
    of_replica = [
        speed
        for speed in speeds
        if (speed.drift.model, speed.drift.gpu) == (model, gpu) and speed.drift.tp in (tp, None)
    ]
    return sorted(of_replica, key=lambda speed: speed.ends, reverse=True)


def outcome_get(number: int) -> Outcome:
    """Return an outcome by number; raise NotFound."""
    return row_by_number(outcomes_list(), "outcome", number)
