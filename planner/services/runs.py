"""Create, queue, cancel, remove and resume runs.

    pending -> running -> completed | failed | errored | cancelled
       ^          |
       +----------+  its worker ended, or lost its database

Every step is one conditional update, and its row count says whether it happened. So two
workers, a message delivered twice or a late cancel can never both win.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from planner.domain.serialise import as_json
from planner.errors import KeyReused, NotReady, ScenarioError
from planner.inputs.scenario.document import parse
from planner.models import Proposal, Run, RunPart, Scenario, Sweep, Trace, User
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.run_queue import (
    LONG,
    check_waiting_limit,
    notify_workers,
    queue_of,
    runs_of_queue,
)
from planner.services.scenario_hardware import resolve_scenario
from planner.storage import row_arrays
from planner.version import code_version

STALE_AFTER_S = 40.0  # without a heartbeat for so long, the worker is gone, not just busy
CONFIRM_S = 3.0  # three heartbeats
LOST_S = 20.0  # messages older than this have been received, see resend_lost_messages()
ABANDONED_S = 600.0  # more than the time between two runs of a command
COMMAND_ENDED = {
    "reason": "Its command ended",
    "problem": "The command of this run stopped before the run ended. Call it again, or "
    "run the scenario from its page.",
}
MAX_FAILURES = 3  # after more worker deaths on a run (or part), the run is not tried again
END_STAGES = {
    Run.State.COMPLETED: "Done",
    Run.State.CANCELLED: "Cancelled",
    Run.State.FAILED: "Failed",
    Run.State.ERRORED: "Error",
}


def end_columns(state: Run.State, **more: Any) -> dict[str, Any]:
    """Return the columns of a run that ends now in ``state``, and ``more`` columns."""
    return {"state": state, "stage": END_STAGES[state], "finished_at": timezone.now(), **more}


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
    sweep: Sweep | None = None,
    cell: int | None = None,
    number: int | None = None,
    enqueue: bool = True,
) -> Run:
    """Create a run; with ``enqueue``, notify the workers once the transaction is committed.

    Its inputs are a ``scenario``, a ``trace``, or a ``document`` (YAML) with a ``name``. ``cell``
    is its place in ``sweep``, and ``number`` its key (None: the next one). The same
    ``idempotency_key`` of the same owner returns the first run instead; for a different request it
    raises KeyReused.
    """
    if enqueue and run_with_key(owner, idempotency_key) is None:
        check_waiting_limit(owner)
    document = document or (scenario.document if scenario else "")
    if scenario:
        name = scenario.name
    elif trace:
        name = trace.file_name[:120]
    run = Run(
        pk=number,
        owner=owner,
        kind=kind,
        scenario=scenario,
        trace=trace,
        name=name,
        document=document,
        options=options or {},
        resolved=_resolve_hardware(document),
        seed=seed,
        code_version=code_version(),
        idempotency_key=idempotency_key,
        sweep=sweep,
        cell=cell,
        stage="Waiting for a worker",
    )
    run.full_clean(validate_constraints=False)
    try:
        with transaction.atomic():
            run.save()
            record("run.asked", run, by=owner, kind=kind)
    except IntegrityError:  # another process just used the same idempotency key
        earlier = earlier_run(run)
        if earlier is None:
            raise
        return earlier
    if enqueue:
        run_enqueue(run_id=run.pk)
    return run


def _resolve_hardware(document: str) -> dict[str, Any]:
    """Return the facts of the user's own hardware that the document names, as JSON."""
    if not document:
        return {}
    try:
        scenario = parse(document)
    except ScenarioError:
        return {}  # the run itself reports the error
    resolved: dict[str, Any] = as_json(resolve_scenario(scenario))
    return resolved


def earlier_run(request: Run) -> Run | None:
    """Return the run that was created with the idempotency key of ``request``, an unsaved run.

    None if there is none. Raises KeyReused if that run was a different request.
    """
    first = run_with_key(request.owner, request.idempotency_key)
    if first is not None and _request_values(first) != _request_values(request):
        raise KeyReused.of(request.idempotency_key, f"run {first.pk}")
    return first


def run_with_key(owner: User | None, key: str) -> Run | None:
    """Return the run that ``owner`` created with this idempotency key, or None."""
    if not key:
        return None
    return Run.objects.select_related("sweep").filter(owner=owner, idempotency_key=key).first()


def _request_values(run: Run) -> tuple[Any, ...]:
    """Return the values of a run that must be equal for two requests to be the same."""
    # An upload has a new name each time, and a stored scenario may have changed since.
    options = {key: value for key, value in run.options.items() if key != "upload"}
    document = "" if run.scenario_id else run.document
    return run.kind, run.scenario_id, run.trace_id, options, document


def run_enqueue(*, run_id: int) -> None:
    """Notify the workers after commit; safe to repeat, since only one claim succeeds.

    If the broker does not respond, the periodic sweep notifies them later.
    """
    row = Run.everywhere.filter(pk=run_id)
    row.update(enqueued_at=timezone.now())
    # On failure, the message counts as sent so long ago that the sweep replaces it at once.
    sent_before = timezone.now() - timedelta(seconds=2 * LOST_S)
    notify_workers(
        run_id,
        queue_of(row.values_list("kind", flat=True).get()),
        on_failure=lambda: row.update(enqueued_at=sent_before),
    )


def run_cancel(*, run: Run, user: User) -> Run:
    """Cancel a run: at once if no worker has it, else at its next progress report."""
    check_may_plan(user, refusal="not cancel runs")
    cancelled = runs_cancel(Run.objects.filter(pk=run.pk), problem=f"Cancelled by {user.username}.")
    run.refresh_from_db()
    if not cancelled:
        raise NotReady(f"Run {run.pk} is over ({run.get_state_display().lower()}).")
    record("run.cancelled", run, by=user)
    return run


def runs_cancel(rows: QuerySet[Run], **reason: str) -> int:
    """Cancel waiting runs at once and running ones at their next report; return how many.

    ``reason`` may have the column ``problem``, which says who cancelled them.
    """
    waiting_count = rows.filter(state=Run.State.PENDING).update(
        **end_columns(Run.State.CANCELLED, cancel_requested=True, **reason)
    )
    running = rows.filter(state=Run.State.RUNNING)
    return waiting_count + running.update(cancel_requested=True, **reason)


@transaction.atomic
def run_delete(*, run: Run, user: User) -> None:
    """Remove a finished run and its arrays."""
    check_may_remove(user, run.owner_id, "this run", "started")
    if not run.is_finished:
        raise NotReady(f"Run {run.pk} is still going. Cancel it first.")
    record("run.removed", run, by=user, kind=run.kind)
    run_remove(run=run)


def run_remove(*, run: Run) -> None:
    """Remove a run and its arrays without checking permissions.

    Raises NotReady if a proposal refers to it.
    """
    check_not_proposed(run)
    store = run.store
    run.delete()
    row_arrays.remove(store)


def check_not_proposed(run: Run) -> None:
    """Raise NotReady if a proposal refers to the run."""
    proposal = Proposal.objects.filter(Q(run=run) | Q(base_run=run) | Q(entries__run=run)).first()
    if proposal is not None:
        raise NotReady(f"Run {run.pk} stays: proposal {proposal.pk} is about it.")


def runs_sweep(*, confirm_s: float = 0.0) -> int:
    """Queue runs and parts again whose worker was lost with its host; return how many runs.

    Those without a heartbeat for STALE_AFTER_S count as lost. Busy workers call this too, because
    the queued sweep needs a free worker. A run that was never queued is ended, because the command
    that executed it is gone.

    Clocks may jump. A clock set back leaves heartbeats in the future, which count as none. A clock
    set forward makes all heartbeats look old, so the sweep waits ``confirm_s`` for another one.
    """
    now = timezone.now()
    requeued = 0
    has_old_heartbeat = _is_far_from(now, "heartbeat_at", STALE_AFTER_S)
    stale_runs = list(Run.everywhere.filter(has_old_heartbeat, state=Run.State.RUNNING))
    running_parts = RunPart.objects.filter(state=RunPart.State.RUNNING)
    stale_parts = list(running_parts.filter(has_old_heartbeat).defer("result"))
    if stale_runs or stale_parts:
        time.sleep(confirm_s)
    for run in stale_runs:
        if run_requeue(run=run, end=LOST):
            requeued += 1
    for part in stale_parts:
        # No row is updated if the part has a new heartbeat.
        unchanged = running_parts.filter(pk=part.pk, heartbeat_at=part.heartbeat_at)
        if unchanged.update(**WAITING_PART):
            notify_workers(part.run_id, LONG)
    _end_abandoned(now)
    RunPart.objects.exclude(run__state__in=Run.ACTIVE_STATES).delete()
    return requeued


def resend_lost_messages(queue: str) -> int:
    """Send the message of each waiting run of ``queue`` again that was lost; return how many.

    Call it when a message of the same queue arrives that is at most half of LOST_S old. All earlier
    messages have then been received, so runs that were announced LOST_S ago have none left. An
    extra message does no harm, because its receiver finds no run.
    """
    lost = runs_of_queue(queue, Run.State.PENDING).filter(
        _is_far_from(timezone.now(), "enqueued_at", LOST_S)
    )
    for run in lost:
        run_enqueue(run_id=run.pk)
    return len(lost)


def _is_far_from(now: datetime, column: str, seconds: float) -> Q:
    """Return a filter for rows whose time ``column`` is over ``seconds`` away from ``now``."""
    distance = timedelta(seconds=seconds)
    return Q(**{f"{column}__lt": now - distance}) | Q(**{f"{column}__gt": now + distance})


def _end_abandoned(now: datetime) -> None:
    """End pending runs that a command created and no longer executes, since it has ended.

    A command is alive if it created the run, or executed another run of the same sweep, within
    ABANDONED_S.
    """
    alive_at = Coalesce(Greatest(Max("sweep__runs__heartbeat_at"), "created_at"), "created_at")
    waiting = Run.everywhere.filter(state=Run.State.PENDING, enqueued_at__isnull=True)
    is_abandoned = _is_far_from(now, "alive_at", ABANDONED_S)
    for run in waiting.annotate(alive_at=alive_at).filter(is_abandoned):
        waiting.filter(pk=run.pk).update(**end_columns(Run.State.FAILED, **COMMAND_ENDED))


WAITING_PART = {"state": RunPart.State.WAITING, "worker": "", "progress": 0.0}
REMEDIES = {
    Run.Kind.INGEST: "The file is damaged or expands to more than the memory holds: write it again "
    "as CSV, or split it."
}
DEFAULT_REMEDY = "Choose a shorter window, a smaller scale or wider bins."


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended."""

    cause: str  # such as "was killed by signal 9 (SIGKILL)"
    is_failure: bool = True  # of its run; False for outages of database, broker or host


WORKER_DIED = "Its worker died"
LOST = WorkerEnd("was lost with its host or supervisor", is_failure=False)
NO_DATABASE = WorkerEnd("lost its database", is_failure=False)


def worker_ended(*, worker: str, end: WorkerEnd) -> None:
    """Queue the runs and parts of an ended worker again; fail runs on which too many ended."""
    parts = RunPart.objects.filter(worker=worker, state=RunPart.State.RUNNING)
    for part in parts.select_related("run").defer("result"):
        failures = part.failures + int(end.is_failure)
        if failures > MAX_FAILURES:
            _give_up(part.run, end, f"{part.name}: ", failures)
        elif parts.filter(pk=part.pk).update(failures=failures, **WAITING_PART):
            notify_workers(part.run_id, LONG)
    for run in Run.everywhere.filter(worker=worker, state=Run.State.RUNNING):
        # If other workers have begun the next step, they continue the run.
        if not run.parts.filter(step__gt=run.step).exists():
            run_requeue(run=run, end=end)


def run_requeue(*, run: Run, end: WorkerEnd) -> bool:
    """Queue a run again whose worker ended; return whether it now waits.

    A run that should be cancelled is cancelled instead. One that nobody queued, or on which more
    than MAX_FAILURES workers ended, fails.
    """
    # A query that is empty if the run went on or began again since it was read.
    unchanged_row = Run.everywhere.filter(pk=run.pk, state=Run.State.RUNNING)
    if end is LOST:  # a newer heartbeat means that its worker lives
        unchanged_row = unchanged_row.filter(heartbeat_at=run.heartbeat_at)
    else:
        unchanged_row = unchanged_row.filter(worker=run.worker, attempts=run.attempts)
    failures = run.failures + int(end.is_failure)
    if run.cancel_requested:
        unchanged_row.update(**end_columns(Run.State.CANCELLED))
    elif run.enqueued_at is None:
        unchanged_row.update(**end_columns(Run.State.FAILED, **COMMAND_ENDED))
    elif failures > MAX_FAILURES:
        _give_up(run, end, part_words="", failures=failures)
    elif unchanged_row.update(
        state=Run.State.PENDING,
        failures=failures,
        worker="",
        stage=f"Waiting: its worker {end.cause}"[:120],
    ):
        run_enqueue(run_id=run.pk)
        return True
    return False


def _give_up(run: Run, end: WorkerEnd, part_words: str, failures: int) -> None:
    """End a run as an error, since ``failures`` workers ended on it, the last one as ``end`` says.

    ``part_words`` begins the message: the name of the part and a colon, or "".
    """
    remedy = REMEDIES.get(Run.Kind(run.kind), DEFAULT_REMEDY)
    columns = end_columns(
        Run.State.ERRORED,
        reason=WORKER_DIED,
        failures=failures,
        problem=f"{part_words}{failures} workers in a row ended on this run; the last one "
        f"{end.cause}. {remedy}",
    )
    own_attempt = Run.everywhere.filter(pk=run.pk, attempts=run.attempts)
    own_attempt.filter(state=Run.State.RUNNING).update(**columns)
