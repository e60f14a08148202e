"""Count runs that wait, run and ended, and measure how long completed runs took."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from django.db.models import Count, F, Min, QuerySet

from planner.models import Run

RECENT_RUNS = 500  # newest completed runs that times are computed from


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    """Unfinished runs of one kind in a workspace."""

    workspace: str
    kind: str
    state: str  # pending or running
    runs: int
    oldest_s: float  # since the oldest was created, or started


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """The number of stored runs of one kind that ended in one state."""

    workspace: str
    kind: str
    state: str
    reason: str  # why they did not complete; "" if they did
    runs: int


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Durations of the newest completed runs of one kind, measured from their start."""

    workspace: str
    kind: str
    median_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class WorkStatistics:
    """Unfinished runs, ended runs, and durations of completed runs."""

    going: tuple[UnfinishedRuns, ...]
    ended: tuple[EndedRuns, ...]
    took: tuple[RunTimes, ...]


def work_statistics(now: datetime, *, everywhere: bool = False) -> WorkStatistics:
    """Return the statistics of the runs of the current workspace, or of all (``everywhere``)."""
    runs = (Run.everywhere if everywhere else Run.objects).order_by()
    states = Run.ACTIVE_STATES
    unfinished = [
        UnfinishedRuns(slug, kind, state, count, max((now - oldest).total_seconds(), 0.0))
        for state, moment in zip(states, ("created_at", "started_at"), strict=True)
        for slug, kind, count, oldest in runs.filter(state=state)
        .values_list("workspace__slug", "kind")
        .annotate(Count("pk"), Min(moment))
        .order_by("workspace__slug", "kind")
        if oldest is not None
    ]
    columns = ("workspace__slug", "kind", "state", "reason")
    ended = (
        runs.exclude(state__in=states)
        .values_list(*columns)
        .annotate(Count("pk"))
        .order_by(*columns)
    )
    return WorkStatistics(
        tuple(unfinished),
        tuple(EndedRuns(*row) for row in ended),
        tuple(
            RunTimes(*key, median(seconds), max(seconds))
            for key, seconds in sorted(recent_durations(runs).items())
        ),
    )


def recent_durations(
    runs: QuerySet[Run], most: int = RECENT_RUNS
) -> dict[tuple[str, str], list[float]]:
    """Return the durations in seconds of the ``most`` newest completed runs.

    They are grouped by (slug of the workspace, kind of run).
    """
    ended = runs.filter(state=Run.State.COMPLETED, finished_at__isnull=False)
    newest = (
        ended.filter(started_at__isnull=False)
        .annotate(took=F("finished_at") - F("started_at"))
        .order_by("-pk")
    )
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for slug, kind, duration in newest.values_list("workspace__slug", "kind", "took")[:most]:
        seconds[slug, kind].append(duration.total_seconds())
    return seconds
