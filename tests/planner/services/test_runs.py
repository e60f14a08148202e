"""Life of a run: claimed once, watched, ended in one way, taken up again after a dead worker."""

import time
from datetime import timedelta
from types import SimpleNamespace

import polars as pl
import pytest
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerAway

from planner.config.celery import app as celery_app
from planner.domain.outcome import Outcome
from planner.domain.progress import silent
from planner.domain.run_parts import IN_PROCESS
from planner.domain.whatif.settings import Axis
from planner.errors import KeyReused, NotAllowed, NotReady, PlannerError, RunCancelled
from planner.models import Run, User
from planner.services import arrays, execution, runs, worker
from planner.services.run_parts import SharedParts, worker_id
from planner.services.run_queue import LONG, SHORT
from planner.services.scenarios import document_run, scenario_run
from planner.services.whatif import sweep_create
from planner.storage import row_arrays
from tests.at_once import at_once
from tests.planner.samples import DOCUMENT

State = Run.State
KILLED = runs.WorkerEnd("was killed by signal 9 (SIGKILL)")


@pytest.fixture
def run(planner, scenario):
    return scenario_run(scenario=scenario, owner=planner, kind=Run.Kind.PLAN)


def now_is(run, **fields):
    Run.objects.filter(pk=run.pk).update(**fields)
    run.refresh_from_db()


def body(monkeypatch, does):
    """Let the work of every run be ``does(run, progress)``."""
    monkeypatch.setattr(worker, "run_body", lambda *, run, progress, parts: does(run, progress))


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_one_gets_the_run(planner, monkeypatch):
    monkeypatch.setattr(runs, "run_enqueue", lambda *, run_id: None)  # a real worker would be a 5th
    run = document_run(document=DOCUMENT, owner=planner, kind=Run.Kind.PLAN)
    claims = at_once(4, lambda _: worker.run_claim(run_id=run.pk))
    assert len([row for row in claims if row is not None]) == 1


def test_a_completed_run_keeps_its_result_and_log(run, monkeypatch):
    def work(run, progress):
        progress(0.25, "Counting")
        progress(0.5, "Counting")
        progress(7.0, "Solving")
        return {"kind": "plan", "figure": 1}

    body(monkeypatch, work)
    over = worker.run_execute(run_id=run.pk)
    assert (over.state, over.progress, over.stage) == (State.COMPLETED, 1.0, "Done")
    assert over.result == {"kind": "plan", "figure": 1}
    assert [line.split(" ", 1)[1] for line in over.log.splitlines()] == ["Counting", "Solving"]
    assert over.finished_at is not None and over.is_finished


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (PlannerError("inner detail"), State.FAILED),
        (MemoryError("inner detail"), State.FAILED),
        (ZeroDivisionError("inner detail"), State.ERRORED),
    ],
)
def test_only_a_bug_keeps_a_traceback_apart_from_its_sentence(run, monkeypatch, error, state):
    def broken(run, progress):
        raise error

    body(monkeypatch, broken)
    over = worker.run_execute(run_id=run.pk)
    assert (over.state, over.result) == (state, {})
    assert ("inner detail" in over.problem) == isinstance(error, PlannerError)
    assert ("inner detail" in over.traceback) == (state == State.ERRORED)
    assert over.problem


def test_a_waiting_run_is_cancelled_at_once_and_never_carried_out(run, planner, monkeypatch):
    body(monkeypatch, lambda run, progress: pytest.fail("it was cancelled"))
    assert runs.run_cancel(run=run, user=planner).state == State.CANCELLED
    assert run.finished_at is not None and planner.username in run.problem
    assert worker.run_execute(run_id=run.pk).state == State.CANCELLED


def test_a_running_run_stops_at_its_next_report(run, planner, monkeypatch):
    reports = []

    def work(run, progress):
        for i in range(10):
            if i == 3:
                runs.run_cancel(run=Run.objects.get(pk=run.pk), user=planner)
            progress(i / 10, f"Step {i}")
            reports.append(i)
        return {}

    body(monkeypatch, work)
    over = worker.run_execute(run_id=run.pk)
    assert over.state == State.CANCELLED and planner.username in over.problem
    assert reports[-1] < 9
    assert over.result == {}


def test_a_run_that_is_over_cannot_be_cancelled(run, planner):
    for state in (State.COMPLETED, State.FAILED, State.ERRORED, State.CANCELLED):
        now_is(run, state=state)
        with pytest.raises(NotReady, match="is over"):
            runs.run_cancel(run=run, user=planner)
        run.refresh_from_db()
        assert run.state == state


def test_a_worker_that_lost_its_run_changes_nothing_at_its_end(run, monkeypatch):
    def work(run, progress):
        # Meanwhile it was taken for dead and another worker has the run.
        Run.objects.filter(pk=run.pk).update(attempts=2, stage="By another")
        return {"late": True}

    body(monkeypatch, work)
    worker.run_execute(run_id=run.pk)
    run.refresh_from_db()
    assert (run.state, run.stage, run.result) == (State.RUNNING, "By another", {})


def test_a_worker_that_lost_its_run_while_it_writes_spoils_nothing(run, monkeypatch):
    """Taken for dead, it goes on once another has completed the run."""
    tables = {"plan": pl.DataFrame({"a": [1]})}
    monkeypatch.setattr(execution, "_run_pipeline", lambda *_: Outcome({}, tables))
    first, write, done = worker.run_claim(run_id=run.pk), row_arrays.tables_write, []

    def late(store, tables):
        if not done:
            done.append(store)
            now_is(run, state=State.PENDING)
            assert worker.run_execute(run_id=run.pk).state == State.COMPLETED
            raise KeyboardInterrupt  # killed after it has removed what lay there
        write(store, tables)

    monkeypatch.setattr(row_arrays, "tables_write", late)
    with pytest.raises(KeyboardInterrupt):
        execution.run_body(run=first, progress=silent, parts=IN_PROCESS)
    write(done[0], tables)  # or not killed
    run.refresh_from_db()
    assert run.store not in done
    assert row_arrays.table_read(run.store, "plan")["a"].to_list() == [1]
    arrays.orphans_sweep(min_age_s=-1.0)
    assert row_arrays.exists(run.store) and not row_arrays.exists(done[0])


def dead(run, **fields):
    """As a killed worker leaves it."""
    long_ago = timezone.now() - timedelta(seconds=runs.STALE_AFTER_S + 1)
    changes = {"enqueued_at": long_ago, **fields}
    now_is(run, state=State.RUNNING, heartbeat_at=long_ago, **changes)


def test_a_run_whose_worker_died_is_taken_up_again(
    run, monkeypatch, django_capture_on_commit_callbacks
):
    dead(run, attempts=1)
    with django_capture_on_commit_callbacks() as messages:
        assert runs.runs_sweep() == 1
        assert runs.runs_sweep() == 0
    assert len(messages) == 1
    run.refresh_from_db()
    assert run.state == State.PENDING
    body(monkeypatch, lambda run, progress: {"kind": "plan"})
    over = worker.run_execute(run_id=run.pk)
    assert (over.state, over.attempts) == (State.COMPLETED, 2)


def test_a_run_that_kills_its_workers_is_given_up(run):
    for killed in range(runs.MAX_FAILURES + 1):
        assert run.state == State.PENDING and run.failures == killed
        worker.run_claim(run_id=run.pk)
        runs.worker_ended(worker=worker_id(), end=KILLED)
        run.refresh_from_db()
    assert run.state == State.ERRORED and run.finished_at is not None
    assert KILLED.cause in run.problem


def test_outages_and_lost_hosts_never_give_a_run_up(run):
    for _ in range(3 * runs.MAX_FAILURES):
        worker.run_claim(run_id=run.pk)
        runs.worker_ended(worker=worker_id(), end=runs.NO_DATABASE)
        worker.run_claim(run_id=run.pk)
        run.refresh_from_db()
        dead(run)
        assert runs.runs_sweep() == 1
        run.refresh_from_db()
        assert (run.state, run.failures) == (State.PENDING, 0)


def test_a_cancelled_run_whose_worker_died_is_cancelled(run):
    dead(run, attempts=1, cancel_requested=True)
    assert runs.runs_sweep() == 0
    run.refresh_from_db()
    assert run.state == State.CANCELLED


def test_a_run_of_a_command_that_was_killed_ends_in_words(run):
    """It stayed "running" for good, or went to a worker that nobody waited for."""
    dead(run, attempts=1, enqueued_at=None)
    assert runs.runs_sweep() == 0
    run.refresh_from_db()
    assert run.state == State.FAILED and "Call it again" in run.problem


def test_runs_that_a_killed_command_had_yet_to_begin_end_too(run, planner):
    long_ago = timezone.now() - timedelta(seconds=runs.ABANDONED_S + 1)
    axes = [Axis("seed", (1, 2))]
    cells = sweep_create(owner=planner, document=DOCUMENT, axes=axes, enqueue=False).runs.all()
    now_is(run, enqueued_at=None, created_at=long_ago)
    cells.update(created_at=long_ago)
    cells.filter(cell=0).update(state=State.COMPLETED, heartbeat_at=timezone.now())
    runs.runs_sweep()
    run.refresh_from_db()
    assert run.state == State.FAILED
    assert cells.get(cell=1).state == State.PENDING  # its command got as far as this just now
    cells.filter(cell=0).update(heartbeat_at=long_ago)
    runs.runs_sweep()
    assert cells.get(cell=1).state == State.FAILED


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_jumps_costs_no_living_worker_its_run(run, monkeypatch, hours):
    """Set forward, every heart seems to have stopped long ago; set back, a dead one's last beat
    lies ahead for hours."""
    beat = timezone.now() - timedelta(hours=hours)
    now_is(run, state=State.RUNNING, heartbeat_at=beat, enqueued_at=beat, attempts=1)

    def beats(_):
        Run.objects.filter(pk=run.pk).update(heartbeat_at=timezone.now())

    monkeypatch.setattr(runs.time, "sleep", beats)
    assert runs.runs_sweep() == 0
    run.refresh_from_db()
    assert run.state == State.RUNNING
    now_is(run, heartbeat_at=beat)
    monkeypatch.setattr(runs.time, "sleep", lambda _: None)
    assert runs.runs_sweep() == 1
    run.refresh_from_db()
    assert run.state == State.PENDING


def test_a_message_that_got_lost_is_sent_again(run, planner, django_capture_on_commit_callbacks):
    """Also while another goes on: the sweep came by the same queue, after it."""
    long = timezone.now() - timedelta(seconds=runs.LOST_S + 1)
    other = document_run(document=DOCUMENT, owner=planner, kind=Run.Kind.PLAN)
    now_is(other, state=State.RUNNING, heartbeat_at=timezone.now(), enqueued_at=long, attempts=1)
    for seconds, lost in ((1, 0), (runs.LOST_S - 2, 0), (runs.LOST_S + 1, 1)):
        now_is(run, enqueued_at=timezone.now() - timedelta(seconds=seconds))
        with django_capture_on_commit_callbacks() as messages:
            assert runs.resend_lost_messages(LONG) == lost
            assert runs.resend_lost_messages(LONG) == 0  # it has just been sent
        assert len(messages) == lost
    expires = celery_app.conf.beat_schedule["runs-sweep-long"]["options"]["expires"]
    assert expires <= runs.LOST_S / 2  # else it may have been sent before what it takes for lost


def test_a_message_too_many_finds_no_run(run, monkeypatch):
    body(monkeypatch, lambda run, progress: {})
    assert worker.run_next(SHORT) is None  # it is no short work
    assert worker.run_next(LONG).pk == run.pk
    assert worker.run_next(LONG) is None
    run.refresh_from_db()
    assert (run.state, run.attempts) == (State.COMPLETED, 1)


def test_a_busy_worker_looks_after_the_runs_of_a_dead_one(run, planner, monkeypatch):
    """All workers being busy, none receives the sweep."""
    other = document_run(document=DOCUMENT, owner=planner, kind=Run.Kind.PLAN)
    claimed = worker.run_claim(run_id=other.pk)
    dead(run, attempts=1)
    monkeypatch.setattr(worker, "SWEEP_S", 0.0)
    monkeypatch.setattr(runs, "CONFIRM_S", 0.0)
    worker._RunWatch(
        SharedParts(claimed, leads=True), None, None
    ).beat()  # of a command: it is no worker
    run.refresh_from_db()
    assert run.state == State.RUNNING
    worker._RunWatch(SharedParts(claimed, leads=True), lambda run: None, None).beat()
    run.refresh_from_db()
    assert run.state == State.PENDING
    other.refresh_from_db()
    assert other.state == State.RUNNING


def test_a_run_waits_for_a_broker_that_is_away(
    scenario, planner, monkeypatch, django_capture_on_commit_callbacks
):
    """It was asked for and is kept; who asked was told of an error of the program."""

    def away(*_, **__):
        raise BrokerAway("Connection refused")

    monkeypatch.setattr(celery_app, "send_task", away)
    with django_capture_on_commit_callbacks(execute=True):
        run = scenario_run(scenario=scenario, owner=planner, kind=Run.Kind.PLAN)
    monkeypatch.undo()
    run.refresh_from_db()
    assert run.state == State.PENDING
    other = document_run(document=DOCUMENT, owner=planner, kind=Run.Kind.PLAN)
    now_is(other, state=State.RUNNING, heartbeat_at=timezone.now(), attempts=1)
    with django_capture_on_commit_callbacks() as sent:
        assert runs.resend_lost_messages(LONG) == 1  # at the next sweep
    assert len(sent) == 1


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_run_whose_database_was_killed_begins_anew(run, monkeypatch, error):
    """It ended as an error of the program."""

    def loses(run, progress):
        raise error("the connection is closed")

    body(monkeypatch, loses)
    for attempt in range(1, 3 * runs.MAX_FAILURES):
        run = worker.run_execute(run_id=run.pk)
        assert (run.state, run.attempts, run.failures) == (State.PENDING, attempt, 0)
        assert run.stage == "Waiting: its worker lost its database"


def test_the_same_key_gives_the_first_run(planner, scenario, colleague):
    def ask(owner=planner, **options):
        return scenario_run(
            scenario=scenario, owner=owner, kind="plan", options=options, idempotency_key="k"
        )

    first = ask(gap=0.1)
    assert ask(gap=0.1) == first
    with pytest.raises(KeyReused, match=f"run {first.pk}"):
        ask(gap=0.2)
    assert ask(owner=colleague, gap=0.1) != first
    assert Run.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_the_same_key_at_the_same_moment_makes_one_run(planner):
    asked = {"document": DOCUMENT, "owner": planner, "kind": "plan", "idempotency_key": "k"}
    assert len({run.pk for run in at_once(4, lambda _: document_run(**asked))}) == 1


def test_an_ingest_does_not_begin_with_a_scenario(planner, scenario):
    with pytest.raises(PlannerError, match="upload"):
        scenario_run(scenario=scenario, owner=planner, kind=Run.Kind.INGEST)


def test_only_what_is_over_is_removed_and_only_by_its_owner(run, planner, colleague):
    with pytest.raises(NotReady, match="Cancel it first"):
        runs.run_delete(run=run, user=planner)
    now_is(run, state=State.FAILED)
    with pytest.raises(NotAllowed):
        runs.run_delete(run=run, user=colleague)
    runs.run_delete(run=run, user=planner)
    assert not Run.objects.exists()
    assert User.objects.count() == 2


def test_a_worker_that_was_given_up_leaves_the_tables_of_the_next_alone(run, monkeypatch):
    old = worker.run_claim(run_id=run.pk)
    now_is(run, state=State.PENDING)
    worker.run_claim(run_id=run.pk)
    monkeypatch.setattr(execution, "_run_pipeline", lambda *_: None)
    with pytest.raises(RunCancelled):
        execution.run_body(run=old, progress=silent, parts=IN_PROCESS)


def test_a_run_that_hangs_is_given_to_another_worker(run, monkeypatch):
    """Two killed children left their sisters waiting on a lock for ever, heartbeats and all."""
    monkeypatch.setattr(worker, "STUCK_S", 0.0)
    monkeypatch.setattr(worker, "IDLE_SHARE", 1e9)  # whatever is computed here is no work
    ended = []

    class Ended(BaseException):
        pass

    def exits(status):
        ended.append(status)
        raise Ended

    monkeypatch.setattr(worker.os, "_exit", exits)
    monkeypatch.setattr(worker.connection, "close", lambda: None)
    claimed = worker.run_claim(run_id=run.pk)
    headway = worker._StuckDetector()
    assert headway.is_stuck()
    with pytest.raises(Ended):
        worker._end_stuck_worker(claimed)
    run.refresh_from_db()
    assert (run.state, len(ended)) == (State.PENDING, 1)
    assert "did nothing" in run.stage


def test_a_run_that_computes_without_a_word_is_left_alone(monkeypatch):
    now, busy = [0.0], [0.0]  # s, of the clock and of a core
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(worker, "cpu_demand_s", lambda except_thread: busy[0])
    headway = worker._StuckDetector()

    def none_after(seconds, share):
        now[0] += seconds
        busy[0] += share * seconds
        return headway.is_stuck()

    assert not none_after(1.0, 0.0)
    for _ in range(5):  # a little is enough
        assert not none_after(2 * worker.STUCK_S, 1.1 * worker.IDLE_SHARE)
    assert not none_after(0.9 * worker.STUCK_S, 0.9 * worker.IDLE_SHARE)
    assert none_after(0.2 * worker.STUCK_S, 0.9 * worker.IDLE_SHARE)
    headway.report()
    assert not headway.is_stuck()


def test_what_threads_compute_is_seen():
    before, until = worker.cpu_demand_s(), time.monotonic() + 120
    while worker.cpu_demand_s() <= before and time.monotonic() < until:
        sum(range(100_000))
    assert worker.cpu_demand_s() > before


def test_a_run_that_waits_for_a_core_is_not_taken_for_one_that_hangs(tmp_path):
    """At a load of fifty a run gets under a twentieth of a core: what it wants counts. The thread
    that watches over it wants little, and not for the run."""
    for thread, line in (
        (7, "1000000000 99000000000 5"),
        (8, "500000000 0 3"),
        (9, "9000000000 0 1"),
    ):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "schedstat").write_text(line)
    assert worker.cpu_demand_s(tmp_path, except_thread=9) == pytest.approx(100.5)
    (tmp_path / "8" / "schedstat").write_text("")  # it ends while it is read
    assert worker.cpu_demand_s(tmp_path, except_thread=9) == pytest.approx(100.0)
    assert worker.cpu_demand_s(tmp_path / "none") > 0  # of a system that does not tell
