"""Parts of a run, computed by every worker that is free (``planner.domain.run_parts``).

A run may split its computation into parts, such as one simulation each, by calling ``map``. Each
call is a step of the run. All workers that help execute the same code. At a ``map`` they claim
parts one by one and store the results. Exactly one worker *leads* the run: it alone may end it. At
first that is the worker that claimed the run. After each ``map``, the first worker that finds all
parts finished leads. The others go on to the next ``map``, unless other work waits for them.

Finished parts stay stored until the run ends, so a run that is taken up again continues from them.
Every change is a conditional update, and its row count says whether it happened.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from planner.domain.encoding import decode, encode
from planner.domain.kinds.registry import SPREAD
from planner.domain.parallel import DEFAULT_THREADS, run_in_parallel
from planner.domain.progress import Progress
from planner.domain.run_parts import Part, Parts
from planner.domain.serialise import as_json
from planner.models import Run, RunPart
from planner.services.database_retry import with_database_retries
from planner.services.run_queue import LONG, notify_workers, queued_run_ids
from planner.version import code_version

T = TypeVar("T")
POLL_S = 0.1
MAX_HELPERS = 32  # most workers that are notified of the parts of a step
JOIN_WITHIN_S = 60.0  # a worker may join a run without parts for this time after its start


class NothingToDo(Exception):
    """An exception for a worker that leaves a run, because others have the remaining parts."""


@cache
def worker_id() -> str:
    """Return the id of this process, by which its supervisor reports its end."""
    return os.environ.get("HEADROOM_WORKER_ID") or uuid4().hex


def helpers_needed() -> bool:
    """Return whether several workers compute a run faster than one.

    Each worker prepares the run for itself. On a single machine that pays only if one worker leaves
    cores idle.
    """
    return bool(settings.REDIS_URL) or (os.cpu_count() or 1) > DEFAULT_THREADS


class SharedParts(Parts):
    """The parts of one run that several workers compute, as this worker sees them."""

    def __init__(self, run: Run, *, leads: bool) -> None:
        self.run, self.leads = run, leads
        self.active: list[RunPart] = []  # the parts that this worker computes now
        self.fraction = 0.0  # progress of the active parts, 0 to 1
        self.other_parts = 0.0  # done parts of this step, and shares of those that others compute
        self.preview: dict[str, Any] | None = None  # figures to show that are not stored yet
        self._step = 0  # number of calls of ``map``

    def active_row(self) -> Any:
        """Return a query for the run's row; it is empty once the run ended or began again."""
        return Run.everywhere.filter(
            pk=self.run.pk, state=Run.State.RUNNING, attempts=self.run.attempts
        )

    def led_row(self) -> Any:
        """Return a query for the run's row; it is empty if this worker does not lead the run."""
        return self.active_row().filter(worker=worker_id()) if self.leads else Run.everywhere.none()

    def map(
        self,
        parts: Sequence[Part[T]],
        progress: Progress,
        *,
        shared: Sequence[Any] = (),
        at_once: int = DEFAULT_THREADS,
    ) -> list[T]:
        """Compute ``parts`` together with other workers; return the results as ``Parts.map`` does.

        Each call is a step of the run. ``at_once`` is the number of parts that this worker computes
        at a time, in threads. Raises NothingToDo if other workers compute the remaining parts and
        other work waits.
        """
        if not parts:
            return []
        if helpers_needed():
            at_once = 1  # other workers use the other cores
        self._step += 1
        self.other_parts = 0.0
        names = [part.name[:200] for part in parts]
        with_database_retries(lambda: self._open(names))
        while not with_database_retries(self._is_step_done):
            if with_database_retries(self._has_other_work):
                raise NothingToDo
            if claimed := with_database_retries(partial(self._claim, at_once)):
                self._compute(claimed, parts, shared, progress)
            else:
                time.sleep(POLL_S)
                progress(self._share(len(parts)), "")
        rows = with_database_retries(lambda: list(self._rows().values_list("name", "result")))
        if [name for name, _ in rows] != names:
            raise NothingToDo  # the worker that leads computes other parts
        # The first worker that finds a step done leads the run from here on.
        self.leads = with_database_retries(self._lead)
        progress(1.0, "")
        return [decode(bytes(result), shared) for _, result in rows]

    def ahead(
        self,
        parts: Sequence[Part[T]],
        *,
        shared: Sequence[Any] = (),
        at_once: int = DEFAULT_THREADS,
    ) -> AbstractContextManager[Callable[[Progress], list[T]]]:
        """Yield a function that computes the parts; see ``Parts.ahead``.

        They are not computed before it is called, because other workers use the other cores.
        """
        del at_once  # one at once, as in ``map``
        return nullcontext(partial(self.map, parts, shared=shared))

    def show(self, preview: Any) -> None:
        """Keep the figures so far, which the next heartbeat stores."""
        self.preview = as_json(preview)

    def close(self) -> None:
        """Raise NothingToDo unless this worker leads, since only the leader continues the run."""
        if not self.leads:
            raise NothingToDo

    def _rows(self) -> Any:
        """Return a query for the parts of this step, in order."""
        return RunPart.objects.filter(run=self.run, step=self._step).order_by("place")

    @transaction.atomic
    def _open(self, names: Sequence[str]) -> None:
        """Create the rows of this step's parts, unless another worker has done so.

        Raises NothingToDo if the run has ended, or if its leader computes other parts.
        """
        if not self.active_row().exists():
            raise NothingToDo
        existing = list(self._rows().values_list("name", flat=True))
        if existing == names:
            return
        if existing and not self.leads:
            raise NothingToDo
        if existing:  # other parts, of an earlier attempt: they and those of later steps are void
            RunPart.objects.filter(run=self.run, step__gte=self._step).delete()
        RunPart.objects.bulk_create(
            (
                RunPart(run=self.run, step=self._step, place=place, name=name)
                for place, name in enumerate(names)
            ),
            ignore_conflicts=True,
        )
        if helpers_needed():
            notify_workers(self.run.pk, LONG, times=min(len(names) - 1, MAX_HELPERS))

    def _is_step_done(self) -> bool:
        """Return whether all parts of this step are done; raise NothingToDo if the run ended."""
        if not self.active_row().exists():
            raise NothingToDo  # the run ended, or began again elsewhere
        return not self._rows().exclude(state=RunPart.State.DONE).exists()

    def _claim(self, at_once: int) -> list[RunPart]:
        """Claim up to ``at_once`` waiting parts and return them; [] if others have taken all."""
        waits = Q(state=RunPart.State.WAITING)
        claimed: list[RunPart] = []
        for part in self._rows().filter(waits).defer("result"):
            # Another worker may have claimed the part since: then no row is updated.
            is_claimed = RunPart.objects.filter(waits, pk=part.pk).update(
                state=RunPart.State.RUNNING,
                worker=worker_id(),
                heartbeat_at=timezone.now(),
                progress=0.0,
            )
            if is_claimed:
                claimed.append(part)
            if len(claimed) == at_once:
                break
        return claimed

    def _compute(
        self,
        claimed: Sequence[RunPart],
        parts: Sequence[Part[T]],
        shared: Sequence[Any],
        progress: Progress,
    ) -> None:
        """Compute the ``claimed`` ones of ``parts`` in threads, and store the results.

        The result of a part that another worker took over is not stored. ``shared`` are objects
        that encoded results refer to.
        """
        names = ", ".join(parts[row.place].name for row in claimed)

        def report(fraction: float, _stage: str) -> None:
            """Report the progress of the step, from that of the claimed parts (0 to 1)."""
            self.fraction = fraction
            progress(self._share(len(parts)), names)

        def encoded(row: RunPart, report: Progress) -> bytes:
            """Compute the part and return its result, encoded."""
            return encode(parts[row.place].compute(report), shared)

        self.fraction, self.active = 0.0, list(claimed)
        try:
            report(0.0, "")
            computations = [partial(encoded, row) for row in claimed]
            results = run_in_parallel(computations, report, at_once=len(computations))
        finally:
            self.active, self.fraction = [], 0.0
        for row, result in zip(claimed, results, strict=True):
            own_part = RunPart.objects.filter(
                pk=row.pk, state=RunPart.State.RUNNING, worker=worker_id()
            )
            done = {"state": RunPart.State.DONE, "result": result, "progress": 1.0, "worker": ""}
            with_database_retries(partial(own_part.update, **done))
        self.other_parts += len(claimed)

    def _share(self, count: int) -> float:
        """Return the share of this step's ``count`` parts that is done, 0 to 1."""
        active_parts = self.fraction * max(1, len(self.active))
        return min(1.0, (self.other_parts + active_parts) / count)

    def exchange_progress(self) -> None:
        """Store this worker's progress and read that of the others; called every second."""
        rows = list(self._rows().values_list("pk", "progress"))
        own = [part.pk for part in self.active]
        self.other_parts = sum(done for pk, done in rows if pk not in own)
        if own:
            RunPart.objects.filter(
                pk__in=own, state=RunPart.State.RUNNING, worker=worker_id()
            ).update(heartbeat_at=timezone.now(), progress=min(1.0, self.fraction))

    def _has_other_work(self) -> bool:
        """Return whether this worker should leave the run, because other work waits.

        Another worker must be running a part of this run, so that the run continues.
        """
        running_parts = self._rows().filter(state=RunPart.State.RUNNING)
        if not running_parts.exclude(worker=worker_id()).exists():
            return False
        if queued_run_ids(LONG):
            return True
        waiting = RunPart.objects.filter(state=RunPart.State.WAITING)
        if waiting.filter(run=self.run, step=self._step).exists():
            return False
        return bool(waiting.exclude(run=self.run).filter(run__state=Run.State.RUNNING).exists())

    def _lead(self) -> bool:
        """Try to lead the run from this step on; return whether this worker is the first to."""
        rows = self.active_row().filter(step=self._step - 1)
        updated_rows = rows.update(
            step=self._step, worker=worker_id(), failures=0, heartbeat_at=timezone.now()
        )
        return bool(updated_rows)


def run_to_help(excluded: Collection[int]) -> Run | None:
    """Return a run whose parts wait for a worker, or may soon wait; None if there is none.

    Runs of another version of the program, and those with ids in ``excluded``, are skipped.
    """
    if not helpers_needed():
        return None
    running = Run.everywhere.filter(
        state=Run.State.RUNNING, enqueued_at__isnull=False, code_version=code_version()
    )
    running = running.exclude(pk__in=excluded).select_related("workspace")
    part = (
        RunPart.objects.filter(state=RunPart.State.WAITING, run__in=running)
        .order_by("run__started_at", "step", "place")
        .first()
    )
    if part is not None:
        return running.get(pk=part.run_id)
    # A run of a kind that has parts, but none yet.
    earliest_start = timezone.now() - timedelta(seconds=JOIN_WITHIN_S)
    return (
        running.filter(kind__in=SPREAD, step=0, parts__isnull=True, started_at__gte=earliest_start)
        .order_by("started_at")
        .first()
    )
