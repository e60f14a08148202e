"""How a worker ended is observed by its supervisor and reaches the run that it had."""

import json
import signal
from pathlib import Path

import pytest
from celery import signals

from planner.config import celery, supervisor
from planner.models import Run
from planner.services import worker
from planner.services.run_parts import worker_id
from planner.services.runs import run_create


def test_the_next_worker_hears_how_the_last_one_ended(tmp_path: Path) -> None:
    """The supervisor names each start of a worker, and tells its successor the observed signal."""
    told = tmp_path / "told"
    code = (
        "import os, signal\n"
        f"file = open({str(told)!r}, 'a')\n"
        "print(os.environ['HEADROOM_WORKER_ID'], os.environ['HEADROOM_WORKER_ENDED'], file=file)\n"
        "file.close()\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    with supervisor.Children() as children:
        children.start("worker", "-c", code, executes_runs=True)
        with pytest.raises(supervisor.Stopped):
            children.watch()
    first, second, *_ = told.read_text().splitlines()
    identity, _, before = second.partition(" ")
    assert first.split() and first.split()[0] != identity
    end = json.loads(before)
    assert end["worker"] == first.split()[0] and "SIGSEGV" in end["cause"]


def test_a_kill_for_memory_is_told_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 1\noom_kill 1\n")
    monkeypatch.setattr(supervisor, "MEMORY_EVENTS", events)
    monkeypatch.setattr(supervisor, "memory_kills", supervisor.MemoryKills())
    by_signal = supervisor.cause_of(-signal.SIGKILL)
    events.write_text("oom 2\noom_kill 2\n")
    by_memory = supervisor.cause_of(-signal.SIGKILL)
    assert "SIGKILL" in by_signal and "memory limit" in by_memory
    assert supervisor.cause_of(-signal.SIGKILL) == by_signal  # it did not rise again


@pytest.mark.django_db
def test_a_worker_that_starts_gives_the_run_of_its_predecessor_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert celery.app  # connects the signals
    asked = run_create(owner=None, kind=Run.Kind.PLAN, document="version: 1\n")
    run = worker.run_claim(run_id=asked.pk)
    assert run is not None and run.worker == worker_id()
    ended = {"worker": worker_id(), "cause": "was killed by signal 9 (SIGKILL)"}
    monkeypatch.setenv("HEADROOM_WORKER_ENDED", json.dumps(ended))
    signals.worker_ready.send(sender=None)
    run.refresh_from_db()
    assert (run.state, run.failures) == (Run.State.PENDING, 1)
    assert "SIGKILL" in run.stage
