"""Carry out runs in a worker: claim a run, watch over it, and end it in exactly one way.

The life cycle is described in ``planner.services.runs``. Here too every step is one
conditional update, and its row count says whether it happened.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import Error, InterfaceError, OperationalError, connection, transaction
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from planner.domain.kinds.registry import SPREAD
from planner.domain.progress import Progress
from planner.domain.run_parts import IN_PROCESS
from planner.errors import EXPECTED, PastLimit, RunCancelled, input_error_of, reason_of
from planner.models import Run, RunPart
from planner.models.workspace import use_workspace
from planner.services import kernel_compilation, runs
from planner.services.database_retry import with_database_retries
from planner.services.execution import run_body
from planner.services.log_format import logging_run
from planner.services.run_limits import ENDED_WITH_RUN, RunLimits
from planner.services.run_parts import (
    NothingToDo,
    SharedParts,
    helpers_needed,
    run_to_help,
    worker_id,
)
from planner.services.run_queue import (
    LONG,
    SHORT,
    WITHOUT_SIMULATOR,
    notify_workers,
    queued_run_ids,
)
from planner.version import code_version

logger = logging.getLogger(__name__)

LOG_LIMIT = 100_000  # characters kept of a run's log
COUNT = re.compile(r"[\d,]+ of [\d,]+")  # such as "3 of 24" in a line of the log
STUCK_S = 120.0  # a run that neither reports nor computes for this long is stuck
CANCEL_GRACE_S = 2.5  # a cancelled run that does not react for this long ends with its worker
POLL_S = 0.5  # between two looks at the queue and the compiler
SWEEP_S = 10.0  # between two sweeps of a busy worker
IDLE_SHARE = 0.05  # work is stuck if it computes, or waits for a core, for less than this share


def _append_log(log: list[str], line: str) -> None:
    """Append a line to the log of a run.

    A count such as ``Planning period 3 of 24`` replaces the line with its previous value.
    """

    def without_count(line: str) -> str:
        """Return a line without its time and its count."""
        _time, _, stage = line.partition(" ")
        return COUNT.sub("", stage)

    if log and COUNT.search(line) and without_count(log[-1]) == without_count(line):
        log.pop()
    log.append(line)


def run_claim(*, run_id: int) -> Run | None:
    """Claim a pending run and return it; None if another worker has it or it was cancelled.

    Its finished parts are kept if the same version of the program computed them.
    """
    now, version = timezone.now(), code_version()
    with transaction.atomic():
        claimed = Run.everywhere.filter(pk=run_id, state=Run.State.PENDING).update(
            state=Run.State.RUNNING,
            started_at=now,
            heartbeat_at=now,
            progress=0.0,
            stage="Starting",
            problem="",
            # Counted in the claim, so that an earlier worker can no longer end the run.
            attempts=F("attempts") + 1,
            worker=worker_id(),
            step=0,
        )
        if not claimed:
            return None
        run = Run.everywhere.select_related("workspace").get(pk=run_id)
        if run.code_version != version:
            run.parts.all().delete()
            Run.everywhere.filter(pk=run_id).update(code_version=version)
        run.parts.exclude(state=RunPart.State.DONE).update(**runs.WAITING_PART)
    return run


def run_execute(
    *, run_id: int, observer: Progress | None = None, raise_errors: bool = False
) -> Run:
    """Claim a run, execute it to its end, and return it; for a command, which waits for the run.

    A run ends as ``failed`` with a message for expected errors, and as ``errored`` with a traceback
    for bugs. With ``raise_errors`` the error is also raised. ``observer`` receives the progress. If
    another worker has the run, return it as it is.
    """
    run = run_claim(run_id=run_id)
    if run is None:
        return Run.everywhere.get(pk=run_id)
    return _carry_out(run, observer, raise_errors=raise_errors)


def run_next(queue: str) -> Run | None:
    """Execute the next run of ``queue`` and return it; if none waits, help with running ones.

    Returns None if none was executed.
    """
    # Retry while the database is away: otherwise the run would wait for the sweep.
    run = with_database_retries(lambda: _claim_next(queue))
    if run is not None:
        if run.kind in SPREAD and helpers_needed():
            notify_workers(run.pk, LONG)  # a free worker prepares in parallel
        return _carry_out(run)
    if queue != LONG:
        return None
    # Help each run once: one that this worker has left may still have parts.
    helped: set[int] = set()
    while True:
        helped_run = with_database_retries(lambda: run_to_help(helped))
        if helped_run is None:
            return None
        helped.add(helped_run.pk)
        _carry_out(helped_run, leads=False)
        if queued_run_ids(LONG):
            return run_next(queue)


def _claim_next(queue: str) -> Run | None:
    """Claim the first run of ``queue`` that no other worker claims before; None if there is none.

    While the simulator is compiled, a worker for short work takes only runs that do not need it, so
    that an upload never waits behind a run that waits for the compiler.
    """
    while waiting_ids := queued_run_ids(queue):
        compiling = queue == SHORT and kernel_compilation.compiled_count() is not None
        if compiling:
            ready = Run.everywhere.filter(pk__in=waiting_ids, kind__in=WITHOUT_SIMULATOR)
            waiting_ids = [*ready.order_by("created_at").values_list("pk", flat=True)]
        for run_id in waiting_ids:
            claimed = run_claim(run_id=run_id)
            if claimed is not None:
                return claimed
        if not compiling:
            return None
        time.sleep(POLL_S)
    return None


def _carry_out(
    run: Run, observer: Progress | None = None, *, raise_errors: bool = False, leads: bool = True
) -> Run:
    """Execute ``run``, store how it ended, and return it.

    With ``leads`` False, only compute parts of the run, which another worker leads and stores (see
    ``run_parts``). ``observer`` receives the progress. With ``raise_errors``, for a command, the
    error of the run is raised too, and all parts are computed in this process. Other callers get
    only errors that end the process, such as KeyboardInterrupt.
    """
    shared = SharedParts(run, leads=leads)
    watcher = _RunWatch(shared, None if raise_errors else _end_stuck_worker, observer)
    with use_workspace(run.workspace), logging_run(run.pk), watcher as watch:
        try:
            if run.kind not in WITHOUT_SIMULATOR:
                has_waited = kernel_compilation.wait_until_compiled(watch.progress)
                if has_waited:  # the estimate of the time left counts only the run's own work
                    shared.active_row().update(started_at=timezone.now())
            parts = IN_PROCESS if raise_errors else shared
            result = run_body(run=run, progress=watch.progress, parts=parts)
        except NothingToDo:  # other workers finish and store the run
            pass
        except BaseException as error:
            shown_error = _end_unfinished(shared, error, in_command=raise_errors)
            if shown_error is error and (raise_errors or not isinstance(error, Exception)):
                raise
            if shown_error is not None and raise_errors:
                raise shown_error from None
        else:
            # A cancel that came too late left its reason.
            _finish(
                shared, Run.State.COMPLETED, shared.led_row(), progress=1.0, result=result,
                problem="",
            )  # fmt: skip
    run.refresh_from_db()
    return run


def _end_unfinished(
    shared: SharedParts, error: BaseException, *, in_command: bool
) -> BaseException | None:
    """Store how a run ended that raised ``error``; return the error that a command shows.

    That is an expected error if ``error`` has one as its cause, else ``error``; None if the run was
    cancelled. ``in_command``: a command executes the run. A run whose worker ends, or loses the
    database, is not ended: it is queued again.
    """
    run = shared.run
    if isinstance(error, RunCancelled):
        # A helper stops for other reasons too, so it ends the run only if somebody cancelled it.
        cancelled_row = shared.active_row().filter(cancel_requested=True)
        row = shared.led_row() if shared.leads else cancelled_row
        _finish(shared, Run.State.CANCELLED, row)
        return None
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C; the sweep handles workers that end
        if in_command:
            _finish(shared, Run.State.CANCELLED)
        return error
    expected = error if isinstance(error, EXPECTED) else input_error_of(error)
    if isinstance(error, MemoryError):
        expected = PastLimit(
            "This run needs more memory than there is here. Choose a shorter window, a smaller "
            "scale or wider bins."
        )
    if expected is not None:
        if expected is not error:
            logger.warning("run %s: %s", run.pk, error, exc_info=error)
        _fail(shared, expected)
    elif isinstance(error, (OperationalError, InterfaceError)) and not in_command:
        logger.warning("run %s: the database was away: %s", run.pk, error)
        # Queue this worker's run and parts again, once the database is back.
        with_database_retries(lambda: runs.worker_ended(worker=worker_id(), end=runs.NO_DATABASE))
    elif isinstance(error, Exception):  # a bug ends this run, not the worker
        if not in_command:
            logger.error("run %s", run.pk, exc_info=error)
        _finish(
            shared,
            Run.State.ERRORED,
            reason="A bug in the program",
            problem=f"A bug in the program stopped this run ({type(error).__name__}); its details "
            "are in the log.",
            traceback="".join(traceback.format_exception(error)),
        )
    return expected or error


def _fail(shared: SharedParts, problem: BaseException) -> None:
    """End the run as failed, with the message of an expected error."""
    _finish(shared, Run.State.FAILED, reason=reason_of(problem), problem=str(problem))


def _finish(
    shared: SharedParts, state: Run.State, rows: QuerySet[Run] | None = None, **fields: Any
) -> None:
    """End the run in ``state`` and delete its parts, if the query ``rows`` still finds it.

    ``rows`` None: if it is still active. ``fields`` are further columns to set.
    """
    # An empty result removes the preview.
    changes = {"result": {}, "heartbeat_at": timezone.now(), **runs.end_columns(state, **fields)}
    ended = shared.active_row() if rows is None else rows
    if with_database_retries(lambda: ended.update(**changes)):
        with_database_retries(lambda: shared.run.parts.all().delete())


def _end_stuck_worker(run: Run) -> None:
    """Queue the run again and end this process, whose work is stuck.

    The supervisor starts another process. A run on which too many workers ended is not queued.
    """
    logger.error(
        "run %s has done nothing for %.0f s: this worker ends, and is to be started again",
        run.pk,
        STUCK_S,
    )
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
    runs.worker_ended(worker=worker_id(), end=runs.WorkerEnd("did nothing for two minutes"))
    _end_worker(os.EX_SOFTWARE)


def _end_worker(status: int) -> None:
    """End this process at once, with the exit status ``status``."""
    connection.close()
    os._exit(status)


def cpu_demand_s(tasks: Path = Path("/proc/self/task"), except_thread: int | None = None) -> float:
    """Return the seconds for which the threads of this process computed or waited for a core.

    Waiting counts because work on a busy machine waits more than it computes. The thread with the
    id ``except_thread`` is left out. Without such figures of the system, return the CPU time.
    """
    nanoseconds = 0
    for path in tasks.glob("*/schedstat"):
        if path.parent.name != str(except_thread):
            with suppress(OSError, ValueError):  # the thread has ended
                computed, waited, *_ = path.read_text(encoding="ascii").split()
                nanoseconds += int(computed) + int(waited)
    return nanoseconds / 1e9 or time.process_time()


class _StuckDetector:
    """A detector of stuck work, which neither reports progress, computes, nor waits for a core.

    Work in a deadlock is stuck. ``is_stuck`` is called from another thread than that of the work,
    and the work of that thread does not count.
    """

    def __init__(self) -> None:
        self.report()

    def report(self) -> None:
        """Note that the work reported progress now."""
        self._since_s = time.monotonic()
        # CPU demand at that time. Read at the next check, because this is called very often.
        self._demand_s: float | None = None

    def is_stuck(self) -> bool:
        """Return whether the work has reported and computed nothing for STUCK_S seconds."""
        now_s = time.monotonic()
        demand_s = cpu_demand_s(except_thread=threading.get_native_id())
        if self._demand_s is None:
            self._demand_s = demand_s
        busy_s = demand_s - self._demand_s
        if busy_s < 0 or busy_s > IDLE_SHARE * (now_s - self._since_s):  # < 0: a thread ended
            self._since_s, self._demand_s = now_s, demand_s
            return False
        return now_s - self._since_s > STUCK_S


class _RunWatch:
    """A thread that writes heartbeats, progress and log of a run, and notices a cancellation.

    Use it as a context around the work. The work calls ``progress`` very often, which only keeps
    the latest value for the thread. ``give_up`` is called when the work is stuck; None: never.
    """

    def __init__(
        self, shared: SharedParts, give_up: Callable[[Run], None] | None, observer: Progress | None
    ) -> None:
        self._run, self._shared = shared.run, shared
        self._give_up = give_up
        self._stuck_detector = _StuckDetector()
        began = shared.run.started_at or timezone.now()
        self._limits = RunLimits((timezone.now() - began).total_seconds())
        self._observer = observer
        self._fraction = 0.0
        self._stage = ""
        self._log: list[str] = []
        self._led = shared.leads
        self._stop = threading.Event()
        self._cancel = threading.Event()
        self._cancelled_at: float | None = None
        self._cancel_noticed = False
        self._swept_at = time.monotonic()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> _RunWatch:
        # Another connection cannot see the transaction of a test, so tests write in this thread.
        self._threaded = not connection.in_atomic_block
        if self._threaded:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread that watches the run, and store its log."""
        self._stop.set()
        if self._threaded:
            self._thread.join()
        if self._shared.leads:
            rows = Run.everywhere.filter(pk=self._run.pk, attempts=self._run.attempts)
            with_database_retries(
                lambda: rows.filter(worker=worker_id()).update(log=self._log_text())
            )

    def progress(self, fraction: float, stage: str) -> None:
        """Store the latest progress; raise RunCancelled or PastLimit if the run must stop."""
        if self._cancel.is_set():
            self._cancel_noticed = True
            raise RunCancelled
        if self._limits.violation:
            raise PastLimit(self._limits.violation)
        self._stuck_detector.report()
        self._fraction = min(1.0, max(0.0, fraction))
        if self._observer:
            self._observer(self._fraction, stage or self._stage)
        if stage and stage != self._stage:
            self._stage = stage
            _append_log(self._log, f"{timezone.now():%H:%M:%S} {stage}")
            if not self._threaded:  # else the heartbeat's thread writes it
                self._write()

    def _beat(self) -> None:
        """Call ``beat`` about once a second until the run ends."""
        wait = 0.5  # early, for polling pages
        while not self._stop.wait(wait):
            wait = 1.0
            self.beat()
        connection.close()

    def beat(self) -> None:
        """Check the run and write its progress; end this process if the run does not stop.

        Without ``_give_up`` a command executes the run, whose process is never ended here.
        """
        if self._give_up and self._stuck_detector.is_stuck():
            self._give_up(self._run)
        try:
            if self._give_up and self._limits.is_ignored():
                # The run is past a limit and does not react.
                _fail(self._shared, PastLimit(self._limits.violation))
                _end_worker(ENDED_WITH_RUN)
            self._write()
            if self._give_up and self._cancel_ignored():
                # A cleanup removes the files of the run later.
                cancelled = self._shared.active_row().filter(cancel_requested=True)
                _finish(self._shared, Run.State.CANCELLED, cancelled)
                _end_worker(ENDED_WITH_RUN)
            # A worker that died is replaced by one that executes the next run, and the queued sweep
            # needs a free worker. So a busy worker looks for lost runs too.
            if self._give_up and time.monotonic() - self._swept_at > SWEEP_S:
                self._swept_at = time.monotonic()
                runs.runs_sweep(confirm_s=runs.CONFIRM_S)
        except Error:  # the database is busy or restarting: the next beat may succeed
            logger.warning("run %s: progress could not be written", self._run.pk)
            connection.close()

    def _cancel_ignored(self) -> bool:
        """Return whether the run goes on although it was cancelled CANCEL_GRACE_S ago.

        Steps such as fits or solvers may not report, and so not notice it, for many seconds.
        """
        cancelled_at = self._cancelled_at
        return (
            cancelled_at is not None
            and not self._cancel_noticed
            and time.monotonic() - cancelled_at > CANCEL_GRACE_S
        )

    def _log_text(self) -> str:
        """Return the log as text, its last LOG_LIMIT characters."""
        return "\n".join(self._log)[-LOG_LIMIT:]

    def _write(self) -> None:
        """Store heartbeat, progress and log of the run, and notice a request to cancel it.

        A helper stores them only while it computes parts, and never the log.
        """
        shared = self._shared
        shared.exchange_progress()
        # A helper that becomes the leader continues the log of the run, not its own.
        if shared.leads and not self._led:
            self._led = True
            self._log[:] = Run.everywhere.get(pk=self._run.pk).log.splitlines()
        if shared.leads or shared.active:  # else the worker has nothing to report
            fields: dict[str, Any] = {
                "heartbeat_at": timezone.now(),
                "progress": Greatest("progress", Value(self._fraction)),  # never a step back
                "stage": self._stage[:120],
            }
            if shared.leads:
                fields["log"] = self._log_text()
                if shared.preview is not None:
                    fields["result"] = {"preview": shared.preview}
            row = shared.led_row() if shared.leads else shared.active_row()
            row.update(**fields)
        # The run is to stop if somebody cancelled it, or if it ended or began again elsewhere.
        stopped = not shared.active_row().filter(cancel_requested=False).exists()
        if stopped and self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            self._cancel.set()
