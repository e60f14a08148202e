"""Whose run a free worker takes next, and when a waiting one will have its turn.

A message to the workers is a turn, not a run: whoever receives it takes the run that has waited
longest among those whose workspace, and in it whose owner, has fewest going, a sweep's cells after
single runs. So nobody's sweep of hundreds of cells keeps another from a single answer, and no order
of messages matters.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import median
from typing import Any, NamedTuple

from django.conf import settings

from planner.errors import NotReady
from planner.models import Run, User

REMEMBERED = 40  # runs of a kind, the last to be completed, that tell how long one takes


class Wait(NamedTuple):
    """What comes before a run that waits, and what it may use itself."""

    runs: int
    seconds: float | None  # roughly, by how long such runs took; None: none of a kind was completed
    takes_seconds: float | None  # itself, by how long runs of its kind took; None: as above
    most_seconds: int
    most_mb: int

    def sentence(self) -> str:
        if not self.runs:
            return "Waiting for a worker"
        ahead = "1 run comes" if self.runs == 1 else f"{self.runs:,} runs come"
        return f"Waiting: {ahead} before it{_about(self.seconds)}"

    def size(self) -> str:
        """How large such runs are, and what stops one, before it begins."""
        about = _about(self.takes_seconds).removeprefix(", ")
        takes = f"Runs of its kind took {about} here. " if about else ""
        most = _about(self.most_seconds).removeprefix(", ").removeprefix("about ")
        return f"{takes}It is stopped after {most}, or at {self.most_mb / 1000:,.1f} GB of memory."


def waiting() -> list[int]:
    """Ids of the runs that workers were told of, in the order in which they have their turn."""
    running = Run.everywhere.filter(state=Run.State.RUNNING).values_list("workspace", "owner")
    people = Counter(running)
    enqueued = Run.everywhere.filter(state=Run.State.PENDING, enqueued_at__isnull=False)
    rows = enqueued.order_by("created_at", "pk").values_list("pk", "workspace", "owner", "sweep")
    teams: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for place, (pk, team, owner, _) in enumerate(sorted(rows, key=_of_sweep)):
        teams[team].append((people[team, owner], place, pk))
        people[team, owner] += 1  # what goes before counts as going, so that they take turns
    going = Counter(team for team, _ in running)
    turns = [
        (going[team] + i, place, pk)
        for team, waiting_runs in teams.items()
        for i, (_, place, pk) in enumerate(sorted(waiting_runs))
    ]
    return [pk for *_, pk in sorted(turns)]


def _of_sweep(row: tuple[Any, ...]) -> bool:
    return row[-1] is not None


def wait_of(run: Run) -> Wait:
    """How many runs have their turn before ``run``, and for about how long they take."""
    order = waiting()
    ahead = order[: order.index(run.pk)] if run.pk in order else []
    kinds = Counter(Run.everywhere.filter(pk__in=ahead).values_list("kind", flat=True))
    kinds.update(Run.everywhere.filter(state=Run.State.RUNNING).values_list("kind", flat=True))
    took = {kind: _took(kind) for kind in {*kinds, run.kind}}
    seconds = None
    if all(took[kind] is not None for kind in kinds):
        work = sum(count * (took[kind] or 0.0) for kind, count in kinds.items())
        seconds = work / settings.HEADROOM_WORKER_CONCURRENCY
    most = settings.HEADROOM_MAX_RUN_SECONDS, settings.HEADROOM_MAX_RUN_MB
    return Wait(len(ahead), seconds, took[run.kind], *most)


def check_room(owner: User | None, more: int = 1) -> None:
    """Raise NotReady where so many more runs of this owner are more than may wait at once."""
    most, count = settings.HEADROOM_MAX_WAITING_RUNS, waiting_of(owner)
    if count + more > most:
        asked = f"This asks for {more:,} runs. " if more > 1 else ""
        raise NotReady(
            f"{asked}{count:,} of your runs wait already, and {most:,} may "
            "(HEADROOM_MAX_WAITING_RUNS); wait for some to end, or cancel those that you no longer "
            "need."
        )


def waiting_of(owner: User | None) -> int:
    """How many of their runs workers were told of, and have not begun."""
    pending = Run.everywhere.filter(state=Run.State.PENDING, owner=owner, enqueued_at__isnull=False)
    return pending.count()


def _took(kind: str) -> float | None:
    ended = Run.everywhere.filter(kind=kind, state=Run.State.COMPLETED, started_at__isnull=False)
    spans = ended.order_by("-pk").values_list("started_at", "finished_at")[:REMEMBERED]
    seconds = [(end - begin).total_seconds() for begin, end in spans if begin and end]
    return median(seconds) if seconds else None


def _about(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return ", under a minute"
    minutes = math.ceil(seconds / 60)
    return f", about {minutes:,} min" if minutes < 120 else f", about {minutes / 60:.0f} h"
