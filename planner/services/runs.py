"""The life cycle of a run: asked for, claimed, watched, finished, taken up again.

    pending -> running -> completed | failed | errored | cancelled
       ^          |
       +----------+  its worker stopped giving signs of life

Every step is one conditional update whose row count says whether it happened, so two workers, a
second delivery of a message or a late cancel can never both win.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F
from django.utils import timezone

from planner import storage
from planner.errors import (
    EXPECTED,
    KeyReused,
    NotReady,
    RunCancelled,
    ScenarioError,
)
from planner.models import Run, Scenario, Trace, User
from planner.scenario.document import parse
from planner.services import compiling
from planner.services.access import check_may_plan, check_may_remove
from planner.services.resolution import resolve_scenario
from planner.version import code_version

logger = logging.getLogger(__name__)

Progress = Callable[[float, str], None]  # fraction, stage in words

STALE_AFTER_S = 60.0  # many missed heartbeats: the worker is gone, not merely busy
ENQUEUE_AGAIN_S = 300.0  # a message that was lost on the way
MAX_ATTEMPTS = 3
LOG_LIMIT = 100_000  # characters kept of a run's log


def run_create(
    *,
    owner: User | None,
    kind: str,
    scenario: Scenario | None = None,
    trace: Trace | None = None,
    name: str = "",
    document: str = "",
    options: dict[str, Any] | None = None,
    seed: int = 0,
    idempotency_key: str = "",
    enqueue: bool = True,
) -> Run:
    """Ask for a run; the worker hears of it once the transaction is committed.

    The same ``idempotency_key`` of the same owner gives back the first run instead of a second;
    with another request it raises KeyReused.
    """
    run = Run(
        owner=owner,
        kind=kind,
        scenario=scenario,
        trace=trace,
        name=scenario.name if scenario else trace.file_name[:120] if trace else name,
        document=document or (scenario.document if scenario else ""),
        options=options or {},
        resolved=_resolved(document or (scenario.document if scenario else "")),
        seed=seed,
        code_version=code_version(),
        idempotency_key=idempotency_key,
        stage="Waiting for a worker",
    )
    run.full_clean(validate_constraints=False)
    try:
        with transaction.atomic():
            run.save()
    except IntegrityError:
        if first := run_of_key(run):
            return first
        raise
    if enqueue:
        run_enqueue(run_id=run.pk)
    return run


def _resolved(document: str) -> dict[str, Any]:
    """The user's own hardware that the document names; a document that is not valid is for the
    run to refuse."""
    if not document:
        return {}
    try:
        scenario = parse(document)
    except ScenarioError:
        return {}
    return resolve_scenario(scenario)


def run_of_key(asked: Run) -> Run | None:
    """The run already made under the key of ``asked``; raises KeyReused if it asked for another
    thing."""
    if not asked.idempotency_key:
        return None
    first = Run.objects.filter(owner=asked.owner, idempotency_key=asked.idempotency_key).first()
    if first is not None and _request(first) != _request(asked):
        raise KeyReused(
            f"The idempotency key {asked.idempotency_key!r} belongs to run {first.pk}, which was "
            "asked for with other values; send a new key for a new request."
        )
    return first


def _request(run: Run) -> tuple[Any, ...]:
    """What was asked for. An upload lies under a new name each time, and a scenario that is kept
    may have changed since: neither makes another request."""
    options = {key: value for key, value in run.options.items() if key != "upload"}
    document = "" if run.scenario_id else run.document
    return run.kind, run.scenario_id, run.trace_id, options, document


def run_enqueue(*, run_id: int) -> None:
    """Tell the workers, after commit; safe to repeat, since only one claim succeeds."""
    from planner.tasks import run_execute_task

    Run.objects.filter(pk=run_id).update(enqueued_at=timezone.now())
    transaction.on_commit(lambda: run_execute_task.delay(run_id))


def run_claim(*, run_id: int) -> Run | None:
    """Take a pending run; None when somebody else has it or it was cancelled."""
    now = timezone.now()
    claimed = Run.objects.filter(pk=run_id, state=Run.State.PENDING).update(
        state=Run.State.RUNNING,
        started_at=now,
        heartbeat_at=now,
        progress=0.0,
        stage="Starting",
        problem="",
        attempts=F("attempts") + 1,  # with the claim: a worker given up can no longer end the run
    )
    return Run.objects.get(pk=run_id) if claimed else None


def run_execute(*, run_id: int, observer: Progress | None = None, surface: bool = False) -> Run:
    """Claim the run and carry it out to its end, whatever the end is.

    Expected outcomes are kept as ``failed`` with their sentence, bugs as ``errored`` with their
    traceback. The row is the outcome; with ``surface`` the exception is raised again as well, for
    a caller who waits (command line), and ``observer`` hears of the progress.
    """
    from planner.services.execution import run_body

    run = run_claim(run_id=run_id)
    if run is None:
        return Run.objects.get(pk=run_id)
    with _Watch(run, observer) as watch:
        try:
            if run.kind not in (Run.Kind.INGEST, Run.Kind.FORECAST):
                compiling.wait_until_compiled(watch.progress)
            result = run_body(run=run, progress=watch.progress)
        except RunCancelled:
            _finish(run, Run.State.CANCELLED, stage="Cancelled")
        except KeyboardInterrupt:  # Ctrl-C of a command; a worker's end is for the sweep
            if surface:
                _finish(run, Run.State.CANCELLED, stage="Cancelled")
            raise
        except EXPECTED as problem:
            _finish(run, Run.State.FAILED, stage="Failed", problem=str(problem))
            if surface:
                raise
        except MemoryError:
            want = NotReady(
                "This run needs more memory than there is here; choose a shorter window, a smaller "
                "scale or wider bins."
            )
            _finish(run, Run.State.FAILED, stage="Failed", problem=str(want))
            if surface:
                raise want from None
        except Exception as bug:  # a bug ends this run, not the worker
            if not surface:
                logger.exception("run %s", run.pk)
            _finish(
                run,
                Run.State.ERRORED,
                stage="Error",
                problem=f"An error of the program stopped this run ({type(bug).__name__}); "
                "its details are kept for the developers.",
                traceback="".join(traceback.format_exception(bug)),
            )
            if surface:
                raise
        else:
            _finish(run, Run.State.COMPLETED, stage="Done", progress=1.0, result=result)
    run.refresh_from_db()
    return run


def run_cancel(*, run: Run, user: User) -> Run:
    """Stop a run: at once if no worker has it, else at its next report of progress."""
    check_may_plan(user, "not cancel runs")
    now = timezone.now()
    cancelled = Run.objects.filter(pk=run.pk, state=Run.State.PENDING).update(
        state=Run.State.CANCELLED, finished_at=now, stage="Cancelled", cancel_requested=True
    )
    if not cancelled:
        asked = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING).update(cancel_requested=True)
        if not asked:
            run.refresh_from_db()
            raise NotReady(f"Run {run.pk} is over ({run.get_state_display().lower()}).")
    run.refresh_from_db()
    return run


def run_delete(*, run: Run, user: User) -> None:
    """Remove a finished run and its arrays."""
    check_may_remove(user, run.owner_id, "this run", "started")
    if not run.finished:
        raise NotReady(f"Run {run.pk} is still going; cancel it first.")
    store = run.store
    run.delete()
    storage.remove(store)


def runs_sweep(*, stale_after_s: float = STALE_AFTER_S) -> int:
    """Take up runs whose worker died and messages that got lost; returns how many.

    A run that has killed its worker MAX_ATTEMPTS times is given up with a sentence.
    """
    now = timezone.now()
    taken = 0
    stale = Run.objects.filter(
        state=Run.State.RUNNING, heartbeat_at__lt=now - timedelta(seconds=stale_after_s)
    )
    for run in stale:
        mine = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING, heartbeat_at=run.heartbeat_at)
        if run.cancel_requested:
            mine.update(state=Run.State.CANCELLED, finished_at=now, stage="Cancelled")
        elif run.attempts >= MAX_ATTEMPTS:
            mine.update(
                state=Run.State.ERRORED,
                finished_at=now,
                stage="Error",
                problem=f"The worker died {run.attempts} times on this run, most likely for lack "
                "of memory; try a shorter window or a smaller scale.",
            )
        elif mine.update(state=Run.State.PENDING, stage="Waiting: its worker died"):
            run_enqueue(run_id=run.pk)
            taken += 1
    lost = Run.objects.filter(
        state=Run.State.PENDING, enqueued_at__lt=now - timedelta(seconds=ENQUEUE_AGAIN_S)
    )
    for run in lost:
        run_enqueue(run_id=run.pk)
        taken += 1
    return taken


def _finish(run: Run, state: str, **fields: Any) -> None:
    """Only the worker that still holds the run may end it."""
    Run.objects.filter(pk=run.pk, state=Run.State.RUNNING, attempts=run.attempts).update(
        state=state, finished_at=timezone.now(), heartbeat_at=timezone.now(), **fields
    )


class _Watch:
    """Writes heartbeats, progress and log from a thread of its own, and hears of cancelling.

    ``progress`` is called in the hot path: it only leaves the latest value, and raises
    RunCancelled when the thread has seen that the run is to stop or is no longer ours.
    """

    def __init__(self, run: Run, observer: Progress | None) -> None:
        self._run = run
        self._observer = observer
        self._fraction = 0.0
        self._stage = ""
        self._log: list[str] = []
        self._stop = threading.Event()
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> _Watch:
        # A test's transaction is not visible to another connection: there, write in this thread.
        self._threaded = not connection.in_atomic_block
        if self._threaded:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._threaded:
            self._thread.join()
        self._write(final=True)

    def progress(self, fraction: float, stage: str) -> None:
        if self._cancel.is_set():
            raise RunCancelled
        self._fraction = min(1.0, max(0.0, fraction))
        if self._observer:
            self._observer(self._fraction, stage or self._stage)
        if stage and stage != self._stage:
            self._stage = stage
            self._log.append(f"{timezone.now():%H:%M:%S} {stage}")
            if not self._threaded:
                self._write()

    def _beat(self) -> None:
        wait = 0.5  # soon after the start, then once a second: a page that polls sees it move
        while not self._stop.wait(wait):
            wait = 1.0
            try:
                self._write()
            except DatabaseError:  # busy or restarting: the next beat may get through
                logger.warning("run %s: progress could not be written", self._run.pk)
                connection.close()
        connection.close()

    def _write(self, *, final: bool = False) -> None:
        fields: dict[str, Any] = {"log": "\n".join(self._log)[-LOG_LIMIT:]}
        mine = Run.objects.filter(pk=self._run.pk, attempts=self._run.attempts)
        if not final:
            mine = mine.filter(state=Run.State.RUNNING)
            fields |= {
                "heartbeat_at": timezone.now(),
                "progress": self._fraction,
                "stage": self._stage[:120],
            }
        written = mine.update(**fields)
        if final:
            return
        cancel = Run.objects.filter(pk=self._run.pk, cancel_requested=True).exists()
        if cancel or not written:
            self._cancel.set()
