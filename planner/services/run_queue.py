"""Choose the run that a free worker takes next, and estimate the wait of the others.

A message to a queue says that a run waits, not which: its receiver takes the run of that queue
whose turn it is. First comes the workspace with the fewest running runs, in it the owner with the
fewest, then the run that waited longest. Runs of sweeps come after single runs, so a sweep of
hundreds of runs does not block other users. There is a queue for short runs and one for long runs.
A worker of the short queue takes no long run.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from statistics import median

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from planner.errors import NotReady
from planner.models import Run, User
from planner.selectors.queue_statistics import recent_durations
from planner.services.messages import BrokerAway, send_task

logger = logging.getLogger(__name__)
SHORT, LONG = "short", "long"
SHORT_KINDS = (Run.Kind.INGEST, Run.Kind.SIZE, Run.Kind.FORECAST)
WITHOUT_SIMULATOR = (Run.Kind.INGEST, Run.Kind.FORECAST)  # need no compiled simulator
EXECUTE = "planner.tasks.run_execute"  # by name, because services must not import tasks
REMEMBERED_RUNS = 40  # the last completed runs of a kind, from which durations are estimated


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The place of a waiting run in its queue, with its limits."""

    runs: int  # ahead of it: waiting runs, and running ones if no worker is free
    seconds: float | None  # expected wait; None: no completed run to estimate from
    takes_seconds: float | None  # expected duration of the run itself; None as above
    most_seconds: int  # time limit of a run
    most_mb: int  # memory limit of a run

    def sentence(self) -> str:
        """Return the place in the queue, in words."""
        if not self.runs:
            return "Waiting for a worker"
        runs = "1 run" if self.runs == 1 else f"{self.runs:,} runs"
        wait = "" if self.seconds is None else f", {_about(self.seconds)}"
        return f"Queued behind {runs}{wait}"

    def size(self) -> str:
        """Return how long runs of this kind take, and the limits that stop them, in words."""
        usual = self.takes_seconds
        takes = "" if usual is None else f"Usual duration: {_about(usual)}. "
        limit = _duration_words(self.most_seconds)
        return f"{takes}Limits: {limit}, {self.most_mb / 1000:,.1f} GB of memory."


def queued_run_ids(queue: str) -> list[int]:
    """Return the ids of the queued runs of ``queue``, in the order in which they will start.

    First are runs of the workspace, and in it of the owner, with the fewest runs before them. Older
    runs come before newer ones, and all others before those of sweeps.
    """
    running = list(runs_of_queue(queue, Run.State.RUNNING).values_list("workspace", "owner"))
    running_in_workspace = Counter(workspace for workspace, _owner in running)
    # Runs before the next one, by (workspace, owner): the running ones, then also waiting ones.
    earlier_of_owner = Counter(running)
    enqueued = runs_of_queue(queue, Run.State.PENDING).filter(enqueued_at__isnull=False)
    by_age = enqueued.order_by("created_at", "pk").values_list("pk", "workspace", "owner")
    oldest_first = [*by_age.filter(sweep=None), *by_age.exclude(sweep=None)]
    # Runs of a workspace are sorted by (runs of the owner before it, age rank, id of the run).
    waiting: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for age_rank, (run_id, workspace, owner) in enumerate(oldest_first):
        waiting[workspace].append((earlier_of_owner[workspace, owner], age_rank, run_id))
        earlier_of_owner[workspace, owner] += 1
    # All runs are sorted by (runs of the workspace before it, age rank, id of the run).
    turns = []
    for workspace, waiting_runs in waiting.items():
        for earlier, (_, age_rank, run_id) in enumerate(sorted(waiting_runs)):
            turns.append((running_in_workspace[workspace] + earlier, age_rank, run_id))
    return [run_id for _, _, run_id in sorted(turns)]


def runs_of_queue(queue: str, state: str) -> QuerySet[Run]:
    """Return the runs of ``queue`` in ``state``, of all workspaces."""
    rows, short = Run.everywhere.filter(state=state), Q(kind__in=SHORT_KINDS)
    return rows.filter(short) if queue == SHORT else rows.exclude(short)


def wait_of(run: Run) -> QueuePosition:
    """Return the place of a waiting run in its queue, and its limits.

    The expected wait is the sum of the median durations of the runs before it, divided by the
    number of workers.
    """
    queue = queue_of(run.kind)
    order = queued_run_ids(queue)
    run_ids_ahead = order[: order.index(run.pk)] if run.pk in order else []
    running = runs_of_queue(queue, Run.State.RUNNING)
    workers = 1 if queue == SHORT else settings.HEADROOM_WORKER_CONCURRENCY
    ahead_by_kind = Counter(
        Run.everywhere.filter(pk__in=run_ids_ahead).values_list("kind", flat=True)
    )
    if running.count() >= workers:  # else a worker is free
        ahead_by_kind.update(running.values_list("kind", flat=True))
    durations_s = _median_durations({*ahead_by_kind, run.kind})
    wait_s = None
    if ahead_by_kind.keys() <= durations_s.keys():
        wait_s = sum(count * durations_s[kind] for kind, count in ahead_by_kind.items()) / workers
    return QueuePosition(
        runs=ahead_by_kind.total(),
        seconds=wait_s,
        takes_seconds=durations_s.get(run.kind),
        most_seconds=settings.HEADROOM_MAX_RUN_SECONDS,
        most_mb=settings.HEADROOM_MAX_RUN_MB,
    )


def _median_durations(kinds: Iterable[str]) -> dict[str, float]:
    """Return the median seconds of the last completed runs by kind, if there are any."""
    durations_s: dict[str, float] = {}
    for kind in kinds:
        recent = recent_durations(Run.everywhere.filter(kind=kind), REMEMBERED_RUNS)
        run_durations_s = list(chain.from_iterable(recent.values()))
        if run_durations_s:
            durations_s[kind] = median(run_durations_s)
    return durations_s


def check_waiting_limit(owner: User | None, new_runs: int = 1) -> None:
    """Raise NotReady if ``new_runs`` more runs would exceed the owner's limit of waiting runs."""
    limit, count = settings.HEADROOM_MAX_WAITING_RUNS, waiting_count(owner)
    if count + new_runs > limit:
        request_words = f"This request adds {new_runs:,} runs. " if new_runs > 1 else ""
        raise NotReady(
            f"{request_words}{count:,} of your runs are queued (limit {limit:,}, "
            "HEADROOM_MAX_WAITING_RUNS). Wait for some to end, or cancel some."
        )


def waiting_count(owner: User | None) -> int:
    """Return how many runs of the owner are queued and not started; None: runs without an owner."""
    pending = Run.everywhere.filter(state=Run.State.PENDING, owner=owner, enqueued_at__isnull=False)
    return pending.count()


def _about(seconds: float) -> str:
    """Return an estimated duration in words, such as "about 5 min"."""
    return ("about " if seconds >= 60 else "") + _duration_words(seconds)


def _duration_words(seconds: float) -> str:
    """Return a duration in words, such as "under a minute"."""
    if seconds < 60:
        return "under a minute"
    minutes = math.ceil(seconds / 60)
    return f"{minutes:,} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def queue_of(kind: str) -> str:
    """Return the name of the queue for a kind of run."""
    return SHORT if kind in SHORT_KINDS else LONG


def notify_workers(
    run_id: int, queue: str, *, times: int = 1, on_failure: Callable[[], object] | None = None
) -> None:
    """Send ``times`` messages to ``queue`` for a run, once the transaction is committed.

    More messages than needed do no harm. If the broker does not respond, call ``on_failure``.
    """

    def send() -> None:
        """Send the messages."""
        try:
            for _ in range(times):
                send_task(EXECUTE, args=[run_id, queue], queue=queue)
        except BrokerAway as problem:
            logger.warning("run %s waits for the broker: %s", run_id, problem)
            if on_failure is not None:
                on_failure()

    transaction.on_commit(send)
