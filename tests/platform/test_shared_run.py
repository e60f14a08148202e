"""One run on several workers: the same result, and a killed worker loses only its own part."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import with_traces
from planner.models import Run, RunPart
from planner.services import run_parts, run_queue, runs
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from tests.conftest import database_url
from tests.planner.coarse import coarse_sizes
from tools.example_data import files

ROOT = Path(__file__).parents[2]
WITHIN_S = 240  # of each step, on a busy machine
HORIZON = "horizon: {start: 2024-05-21T08:00:00Z, duration_s: 3600, period_s: 3600}\n"
HORIZON += "test_days: [{kind: past, windows: 1}]\n"
HORIZON += "forecast: {method: last-value, quantile: mean}\n"
WORK = """
import sys, time, django
django.setup()
from planner.models import Run
from planner.services import run_parts
from planner.services.worker import run_next
from tests.planner.coarse import coarse_sizes
encode = run_parts.encode
def encode_slowly(*values):
    time.sleep(0.2)  # so that the test sees on a busy machine, too, who computes a part
    return encode(*values)
run_parts.encode = encode_slowly
print("free", flush=True)
with coarse_sizes():
    for _ in sys.stdin:
        while Run.everywhere.filter(state__in=("pending", "running")).exists():
            run_next("long")
            time.sleep(0.05)
        print("free", flush=True)
"""
TIMES = (
    "seconds",
    "wall_seconds",
    "fit_seconds",
    "solve_seconds",
    "build_seconds",
    "run",
    "peak_rss_mb",
)


@pytest.fixture
def document(tmp_path: Path, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> str:
    # Workers that other tests left running would take part.
    monkeypatch.setattr(runs, "notify_workers", lambda *_, **__: None)
    monkeypatch.setattr(run_queue, "notify_workers", lambda *_, **__: None)
    path = tmp_path / "week.csv"
    files()["small-week.csv"].write_csv(path)
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    text = (ROOT / "docs/examples/first-plan.yml").read_text() + HORIZON
    return with_traces(text, {0: trace.name})


Workers = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def started(django_db_setup: None) -> Iterator[Workers]:
    """Processes of all tests, by name: to import takes longer than to compute."""
    processes: Workers = {}
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.fixture
def workers(started: Workers) -> Workers:
    """Two processes that wait for work, whatever became of those of the test before."""
    lost = [
        name for name in ("one", "two") if name not in started or started[name].poll() is not None
    ]
    for name in lost:
        environment = {"DATABASE_URL": database_url(), "HEADROOM_WORKER_ID": name}
        started[name] = subprocess.Popen(
            [sys.executable, "-c", WORK], env=os.environ | environment, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
    for name in lost:
        wait_until_free(started[name])
    return started


def wait_until_free(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WITHIN_S)[0]
    assert process.stdout.readline() == b"free\n"


@contextmanager
def working(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let these work together until no run is left; wait for those that were not killed."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
    yield
    for process in processes:
        if process.poll() is None:
            wait_until_free(process)


def compare_run(document: str) -> Run:
    run = runs.run_create(
        owner=None,
        kind=Run.Kind.COMPARE,
        document=document,
        options={"policies": ["flat-peak", "lt-i", "reactive"]},
        enqueue=False,
    )
    Run.objects.filter(pk=run.pk).update(enqueued_at=timezone.now())
    run.refresh_from_db()
    return run


def figures(value: Any) -> Any:
    """Return a result without its measured times."""
    if isinstance(value, dict):
        return {key: figures(item) for key, item in value.items() if key not in TIMES}
    return [figures(item) for item in value] if isinstance(value, list) else value


def differences(a: Any, b: Any, place: str = "") -> Iterator[str]:
    """Yield the places where two results differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from differences(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b, strict=True)):
            yield from differences(*pair, f"{place}[{i}]")
    elif a != b:
        yield f"{place}: {a!r} and {b!r}"


def watch(run: Run, until: Callable[[], bool]) -> dict[str, set[str]]:
    """Return which parts each worker was seen computing until ``until``."""
    seen: dict[str, set[str]] = {}
    deadline = time.monotonic() + WITHIN_S
    while not until():
        assert time.monotonic() < deadline, f"{run.state}: {run.stage} {run.problem}"
        for part in RunPart.objects.filter(run=run, state="running").defer("result"):
            seen.setdefault(part.worker, set()).add(f"{part.step}.{part.place}")
        time.sleep(0.02)
        run.refresh_from_db()
    return seen


@pytest.mark.e2e
def test_one_run_on_two_workers_gives_what_it_gives_on_one(
    document: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coarse_sizes(), monkeypatch.context() as patch:
        patch.setattr(run_parts, "helpers_needed", lambda: False)  # parts side by side
        alone = run_execute(run_id=compare_run(document).pk)
    assert alone.state == Run.State.COMPLETED, alone.problem
    shared = compare_run(document)
    with working(*workers.values()):
        seen = watch(shared, lambda: shared.is_finished)
    assert shared.state == Run.State.COMPLETED, shared.problem
    assert set(seen) == {"one", "two"}
    assert not seen["one"] & seen["two"]  # each part is computed once
    assert list(differences(figures(shared.result), figures(alone.result))) == []
    assert not RunPart.objects.exists()
    assert shared.attempts == 1


@pytest.mark.e2e
def test_cancelling_reaches_every_worker(document: str, workers: Workers) -> None:
    run = compare_run(document)
    with working(*workers.values()):
        watch(run, lambda: RunPart.objects.filter(run=run, state="running").count() == 2)
        Run.objects.filter(pk=run.pk).update(cancel_requested=True)
        watch(run, lambda: run.is_finished)
    assert run.state == Run.State.CANCELLED
    assert not RunPart.objects.exists()


@pytest.mark.e2e
def test_a_killed_worker_loses_its_part_and_no_finished_one(
    document: str, workers: Workers
) -> None:
    run, first = compare_run(document), workers["one"]
    done = RunPart.objects.filter(run=run, state="done")

    def held_in_a_part() -> bool:
        first.send_signal(signal.SIGSTOP)  # so that it cannot end the part before it is killed
        held = done.count() >= 2 and run.parts.filter(state="running").exists()
        if not held:
            first.send_signal(signal.SIGCONT)
        return held

    with working(first):
        watch(run, held_in_a_part)
        first.kill()
        first.wait()
    kept = set(done.values_list("pk", flat=True))
    runs.worker_ended(worker="one", end=runs.WorkerEnd("was killed by signal 9 (SIGKILL)"))
    lost = RunPart.objects.get(run=run, failures=1)
    assert lost.state == RunPart.State.WAITING
    with working(workers["two"]):
        seen = watch(run, lambda: run.is_finished)
    assert run.state == Run.State.COMPLETED, run.problem
    assert set(seen) <= {"two"}
    names = {f"{part.step}.{part.place}" for part in RunPart.objects.filter(pk__in=kept)}
    assert not names & seen["two"]
