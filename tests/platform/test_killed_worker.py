"""A worker that is killed outright leaves a run that the next one takes up and ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import with_traces
from planner.models import Run
from planner.services import runs
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from tests.conftest import database_url
from tests.planner.coarse import coarse_sizes
from tools.example_data import files

ROOT = Path(__file__).parents[2]
HORIZON = "horizon: {start: 2024-05-21T08:00:00Z, duration_s: 3600, period_s: 3600}\n"
EXECUTE = "import django, sys; django.setup(); from planner.services.worker import run_execute; "
EXECUTE += "run_execute(run_id=int(sys.argv[1]))"


def _until(run: Run, what: Any) -> None:
    deadline = time.monotonic() + 240
    while not what(run):
        assert time.monotonic() < deadline, f"{run.state}: {run.stage} {run.problem}"
        time.sleep(0.05)
        run.refresh_from_db()


@pytest.mark.e2e
def test_a_killed_worker_is_followed_by_another(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that other tests left running would follow sooner than this one does.
    monkeypatch.setattr(runs, "run_enqueue", lambda *, run_id: None)
    path = tmp_path / "week.csv"
    files()["small-week.csv"].write_csv(path)
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    document = (ROOT / "docs/examples/first-plan.yml").read_text() + HORIZON
    run = runs.run_create(
        owner=None,
        kind=Run.Kind.PLAN,
        document=with_traces(document, {0: trace.name}),
        enqueue=False,
    )
    Run.objects.filter(pk=run.pk).update(enqueued_at=timezone.now())
    environment = {**os.environ, "DATABASE_URL": database_url()}
    process = subprocess.Popen(
        [sys.executable, "-c", EXECUTE, str(run.pk)], env=environment, cwd=ROOT
    )
    _until(run, lambda run: run.progress > 0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run.refresh_from_db()
    assert run.state == Run.State.RUNNING  # nobody could say otherwise

    assert runs.runs_sweep() == 0  # it may only be busy
    time.sleep(1.5)
    monkeypatch.setattr(runs, "STALE_AFTER_S", 1.0)
    runs.runs_sweep()
    run.refresh_from_db()
    assert run.state == Run.State.PENDING

    with coarse_sizes():
        run_execute(run_id=run.pk)  # or a worker that other tests left running took it
    _until(run, lambda run: run.state not in (Run.State.PENDING, Run.State.RUNNING))
    assert run.state == Run.State.COMPLETED, run.problem
    assert run.attempts == 2
    assert run.result["status"] == "optimal"


@pytest.mark.e2e
def test_a_killed_command_cancels_its_run(transactional_db: None) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url()}
    command = [sys.executable, "manage.py", "compare", "docs/examples/first-plan.yml"]
    with subprocess.Popen(command, env=environment, cwd=ROOT) as process:
        deadline = time.monotonic() + 240
        while not (run := Run.objects.filter(kind=Run.Kind.COMPARE, progress__gt=0).first()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
    run.refresh_from_db()
    assert run.state == Run.State.CANCELLED
