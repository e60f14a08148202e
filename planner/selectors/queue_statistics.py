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

    unfinished: tuple[UnfinishedRuns, ...]
    ended: tuple[EndedRuns, ...]
    times: tuple[RunTimes, ...]


def work_statistics(now: datetime, *, everywhere: bool = False) -> WorkStatistics:
    """Return the statistics of the runs of the current workspace, or of all (``everywhere``)."""
    runs = (Run.everywhere if everywhere else Run.objects).order_by()
    unfinished = []
    # The age of a pending run counts from its creation, that of a running one from its start.
    for state, began_at in ((Run.State.PENDING, "created_at"), (Run.State.RUNNING, "started_at")):
        by_kind = runs.filter(state=state).values_list("workspace__slug", "kind")
        counts = by_kind.annotate(Count("pk"), Min(began_at)).order_by("workspace__slug", "kind")
        for slug, kind, count, oldest in counts:
            if oldest is not None:
                oldest_s = max((now - oldest).total_seconds(), 0.0)
                unfinished.append(UnfinishedRuns(slug, kind, state, count, oldest_s))
    columns = ("workspace__slug", "kind", "state", "reason")
    by_state = runs.exclude(state__in=Run.ACTIVE_STATES).values_list(*columns)
    ended = by_state.annotate(Count("pk")).order_by(*columns)
    times = [
        RunTimes(slug, kind, median(seconds), max(seconds))
        for (slug, kind), seconds in sorted(recent_durations(runs).items())
    ]
    return WorkStatistics(
        unfinished=tuple(unfinished),
        ended=tuple(EndedRuns(*row) for row in ended),
        times=tuple(times),
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
