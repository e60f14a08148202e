"""Summarize the work of workers: runs that wait and run, how they ended, how long they took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from django.db.models import Count, Min

from planner.models import Run

LATELY = 500  # newest completed runs that times are computed from


@dataclass(frozen=True, slots=True)
class Going:
    """Unfinished runs of one kind in a workspace."""

    workspace: str
    kind: str
    state: str  # pending or running
    runs: int
    oldest_s: float  # since the oldest was created, or started


@dataclass(frozen=True, slots=True)
class Ended:
    """Stored runs that ended in one way."""

    workspace: str
    kind: str
    state: str
    reason: str  # why they did not complete; "" if they did
    runs: int


@dataclass(frozen=True, slots=True)
class Took:
    """Times of the newest completed runs of one kind, from their start."""

    workspace: str
    kind: str
    median_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """Unfinished runs, ended runs, and the times of completed runs."""

    going: tuple[Going, ...]
    ended: tuple[Ended, ...]
    took: tuple[Took, ...]


def work_now(now: datetime, *, everywhere: bool = False) -> Work:
    """Return the work of the current workspace, or of all."""
    runs = (Run.everywhere if everywhere else Run.objects).order_by()
    unended = (Run.State.PENDING, Run.State.RUNNING)
    going = [
        Going(slug, kind, state, count, max((now - since).total_seconds(), 0.0))
        for state, moment in zip(unended, ("created_at", "started_at"), strict=True)
        for slug, kind, count, since in runs.filter(state=state)
        .values_list("workspace__slug", "kind")
        .annotate(Count("pk"), Min(moment))
        .order_by("workspace__slug", "kind")
        if since is not None
    ]
    how = ("workspace__slug", "kind", "state", "reason")
    ended = runs.exclude(state__in=unended).values_list(*how).annotate(Count("pk")).order_by(*how)
    return Work(tuple(going), tuple(Ended(*row) for row in ended), _took(everywhere=everywhere))


def _took(*, everywhere: bool) -> tuple[Took, ...]:
    runs = Run.everywhere if everywhere else Run.objects
    completed = runs.filter(state=Run.State.COMPLETED)
    rows = completed.values_list("workspace__slug", "kind", "started_at", "finished_at")
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for slug, kind, begin, end in rows[:LATELY]:
        if begin is not None and end is not None:
            seconds[slug, kind].append((end - begin).total_seconds())
    return tuple(Took(*key, median(spans), max(spans)) for key, spans in sorted(seconds.items()))
