"""Whose run is next, what a waiting one is told, and limits that a run may not pass."""

from dataclasses import asdict
from datetime import timedelta

import pytest
from django.utils import timezone

from planner.domain.whatif.settings import Axis
from planner.errors import NotReady, RunCancelled
from planner.models import Run, Sweep, User
from planner.models.workspace import Workspace, use_workspace
from planner.services import run_limits, run_queue, runs, worker
from planner.services.run_queue import LONG, SHORT
from planner.services.scenarios import document_run
from planner.services.whatif import sweep_create
from planner.tasks import run_execute_task
from tests.planner.samples import DOCUMENT

State = Run.State
pytestmark = pytest.mark.django_db


@pytest.fixture
def other(db):
    return User.objects.create_user("otto", password="a long enough secret", role="planner")


@pytest.fixture
def done(monkeypatch):
    """Ids of the runs in the order in which workers carried them out."""
    order = []
    monkeypatch.setattr(
        worker, "run_body", lambda *, run, progress, parts: order.append(run.pk) or {"kind": "plan"}
    )
    return order


def asked(owner, **more):
    return document_run(document=DOCUMENT, owner=owner, kind=Run.Kind.PLAN, **more)


def cells(owner, count):
    sweep = Sweep.objects.create(name="grid", kind="plan", document=DOCUMENT, axes=[], owner=owner)
    made = [asked(owner) for _ in range(count)]
    Run.objects.filter(pk__in=[run.pk for run in made]).update(sweep=sweep)
    return made


def test_a_sweep_keeps_nobody_from_a_single_answer(planner, other, done):
    grid = cells(planner, 6)
    own_run, theirs = asked(planner), asked(other)
    sent = [*grid, own_run, theirs]  # as the messages come
    for run in sent:
        run_execute_task(run.pk)
    assert sorted(done) == sorted(run.pk for run in sent)  # each once, whatever the order
    assert set(done[:2]) == {own_run.pk, theirs.pk}
    assert done[2:] == [run.pk for run in grid]


def test_owners_take_turns(planner, other, done):
    first = [asked(planner) for _ in range(3)]
    second = [asked(other) for _ in range(3)]
    assert run_queue.queued_run_ids(LONG) == [
        run.pk for pair in zip(first, second, strict=True) for run in pair
    ]
    Run.objects.filter(pk=first[0].pk).update(state=State.RUNNING)
    assert run_queue.queued_run_ids(LONG)[0] == second[0].pk


def test_workspaces_take_turns_and_people_within_them(planner, other, done):
    own_runs = [asked(planner) for _ in range(3)]
    theirs = [asked(other)]
    team = Workspace.objects.create(name="Second", slug="second")
    planner.join(team, "planner")
    with use_workspace(team):
        second = [asked(planner) for _ in range(2)]
    expected = [own_runs[0], second[0], theirs[0], second[1], own_runs[1], own_runs[2]]
    assert run_queue.queued_run_ids(LONG) == [run.pk for run in expected]


def test_runs_of_a_command_are_left_to_it(planner, done):
    run = asked(planner)
    Run.objects.update(enqueued_at=None)
    run_execute_task(run.pk)
    assert done == []


def test_a_waiting_run_is_told_what_comes_before_it(planner, client, settings):
    settings.HEADROOM_MAX_RUN_SECONDS, settings.HEADROOM_MAX_RUN_MB = 5400, 4000
    first, second = asked(planner), asked(planner)
    limits = {"takes_seconds": None, "most_seconds": 5400, "most_mb": 4000}
    assert asdict(run_queue.wait_of(first)) == {"runs": 0, "seconds": 0.0, **limits}
    assert asdict(run_queue.wait_of(second)) == {"runs": 1, "seconds": None, **limits}
    now = timezone.now()
    Run.objects.create(
        kind="plan", state=State.COMPLETED, started_at=now - timedelta(seconds=300), finished_at=now
    )
    assert run_queue.wait_of(second).seconds == pytest.approx(150)  # by two workers
    client.force_login(planner)
    page = client.get(f"/runs/{second.pk}/").content.decode()
    assert run_queue.wait_of(second).sentence() in page and run_queue.wait_of(second).size() in page
    assert client.get(f"/api/v1/runs/{second.pk}/").json()["waits"]["runs"] == 1
    for _ in range(settings.HEADROOM_WORKER_CONCURRENCY):  # now no worker is free
        Run.objects.create(kind="plan", state=State.RUNNING, started_at=now)
    assert run_queue.wait_of(second).runs == 1 + settings.HEADROOM_WORKER_CONCURRENCY


def test_short_work_waits_for_no_simulation(planner):
    for _ in range(5):
        asked(planner)
    Run.objects.create(kind="compare", state=State.RUNNING, started_at=timezone.now())
    upload = Run.objects.create(kind="ingest", enqueued_at=timezone.now(), owner=planner)
    assert run_queue.queued_run_ids(SHORT) == [
        upload.pk
    ] and upload.pk not in run_queue.queued_run_ids(LONG)
    assert run_queue.wait_of(upload).runs == 0


def test_more_than_may_wait_are_refused_with_a_remedy(planner, other, settings):
    settings.HEADROOM_MAX_WAITING_RUNS = 2
    first, _ = asked(planner, idempotency_key="one"), asked(planner)
    with pytest.raises(NotReady, match="2 of your runs"):
        asked(planner)
    assert asked(planner, idempotency_key="one") == first  # asked for already
    asked(other)
    axes = [Axis("seed", (1, 2, 3))]
    settings.HEADROOM_MAX_WAITING_RUNS = 4
    with pytest.raises(NotReady, match=r"3 runs"):
        sweep_create(owner=planner, document=DOCUMENT, axes=axes)
    settings.HEADROOM_MAX_WAITING_RUNS = 5
    sweep_create(owner=planner, document=DOCUMENT, axes=axes)


def test_a_run_past_its_time_or_memory_says_so(planner, settings, monkeypatch):
    monkeypatch.setattr(run_limits, "GRACE_S", -1.0)
    settings.HEADROOM_MAX_RUN_SECONDS = 10**9
    watched = run_limits.RunLimits()
    assert not watched.is_ignored()
    settings.HEADROOM_MAX_RUN_MB = 1
    assert watched.is_ignored()  # this process holds more
    assert "MB of memory, where 1 are allowed (HEADROOM_MAX_RUN_MB)" in watched.violation
    settings.HEADROOM_MAX_RUN_SECONDS = 0
    late = run_limits.RunLimits()
    late.is_ignored()
    assert "HEADROOM_MAX_RUN_SECONDS" in late.violation

    def body(*, run, progress, parts):
        watch = progress.__self__
        watch._limits.is_ignored()
        progress(0.5, "On and on")

    monkeypatch.setattr(worker, "run_body", body)
    over = worker.run_execute(run_id=asked(planner).pk)
    assert (over.state, over.problem) == (State.FAILED, late.violation)
    assert runs.runs_sweep() == 0


def test_a_cancelled_run_that_does_not_hear_it_ends_with_its_worker(planner, monkeypatch):
    """Some steps say nothing for many seconds on a busy machine: cancelling took 9 s."""
    ended = []
    monkeypatch.setattr(worker, "_end_worker", ended.append)
    monkeypatch.setattr(worker, "CANCEL_GRACE_S", -1.0)

    def deaf(*, run, progress, parts):
        watch = progress.__self__
        Run.objects.filter(pk=run.pk).update(cancel_requested=True)
        watch.beat()
        return {}

    monkeypatch.setattr(worker, "run_body", deaf)
    run = worker.run_execute(run_id=asked(planner).pk)
    assert (run.state, run.stage, ended) == (
        State.CANCELLED,
        "Cancelled",
        [run_limits.ENDED_WITH_RUN],
    )

    def hearing(*, run, progress, parts):
        watch = progress.__self__
        Run.objects.filter(pk=run.pk).update(cancel_requested=True)
        watch._write()
        with pytest.raises(RunCancelled):
            progress(0.5, "On and on")
        watch.beat()
        raise RunCancelled

    monkeypatch.setattr(worker, "run_body", hearing)
    run = worker.run_execute(run_id=asked(planner).pk)
    assert run.state == State.CANCELLED and len(ended) == 1
