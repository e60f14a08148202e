"""Summarize the work of workers: runs that wait and run, how they ended, how long they took."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from django.db.models import Count, Min

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
    """Return how many runs wait, compute and ended, in the current workspace or ``everywhere``."""
    runs = (Run.everywhere if everywhere else Run.objects).order_by()
    states = (Run.State.PENDING, Run.State.RUNNING)
    unfinished = [
        UnfinishedRuns(slug, kind, state, count, max((now - since).total_seconds(), 0.0))
        for state, moment in zip(states, ("created_at", "started_at"), strict=True)
        for slug, kind, count, since in runs.filter(state=state)
        .values_list("workspace__slug", "kind")
        .annotate(Count("pk"), Min(moment))
        .order_by("workspace__slug", "kind")
        if since is not None
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
        _run_times(everywhere=everywhere),
    )


def _run_times(*, everywhere: bool) -> tuple[RunTimes, ...]:
    """Return median and longest seconds of recent completed runs, by workspace and kind."""
    runs = Run.everywhere if everywhere else Run.objects
    completed = runs.filter(state=Run.State.COMPLETED)
    rows = completed.values_list("workspace__slug", "kind", "started_at", "finished_at")
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for slug, kind, begin, end in rows[:RECENT_RUNS]:
        if begin is not None and end is not None:
            seconds[slug, kind].append((end - begin).total_seconds())
    return tuple(
        RunTimes(*key, median(spans), max(spans)) for key, spans in sorted(seconds.items())
    )
