"""One comparison on one worker and on two, each pinned to a core of its own."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.chaos import EXAMPLE
from bench.product import ROOT, fresh_folder

WITHIN_S = 900.0
WARM = {"policies": ["flat-peak"]}
TEST_DAYS = [{"kind": "past", "windows": 2}, {"kind": "drawn", "paths": 4}]
TRIVIAL = 200  # parts that compute nothing, to time the hand-over alone
TIMES = {"seconds", "wall_seconds", "fit_seconds", "solve_seconds", "build_seconds", "peak_rss_mb"}


def figures() -> dict[str, Any]:
    """Return ``time_over_one_worker``, ``same_bytes`` and ``handover_ms``."""
    with fresh_folder("spread"):
        import django

        django.setup()
        from planner.models.workspace import MAIN, use_workspace

        with use_workspace(MAIN):
            document = _document()
            runs = {count: _comparison(document, count) for count in (1, 2)}
            took = {count: _seconds(run) for count, run in runs.items()}
            return {
                "time_over_one_worker": round(took[2] / took[1], 3),
                "one_worker_seconds": round(took[1], 1),
                "two_workers_seconds": round(took[2], 1),
                "same_bytes": int(_bytes(runs[1]) == _bytes(runs[2])),
                "handover_ms": round(_handover_ms(), 2),
                "cores": len(os.sched_getaffinity(0)),
            }


def _document() -> str:
    from planner.inputs.ingest import IngestOptions
    from planner.inputs.scenario.document import edit, with_traces
    from planner.services.traces import trace_ingest_path

    week = trace_ingest_path(path=EXAMPLE / "small-week.csv", options=IngestOptions())
    text = (EXAMPLE / "first-plan.yml").read_text(encoding="utf-8")
    return edit(with_traces(text, {0: week.name}), {"test_days": TEST_DAYS})


def _comparison(document: str, workers: int) -> Any:
    """Return the run of the README's example, carried out by ``workers``."""
    from planner.models import Run
    from planner.services.runs import run_create

    with _workers(workers):
        for options in (WARM, {}):  # first a small one, so that workers have loaded the simulator
            run = run_create(owner=None, kind=Run.Kind.COMPARE, document=document, options=options)
            deadline = time.monotonic() + WITHIN_S
            while not run.is_finished and time.monotonic() < deadline:
                time.sleep(0.2)
                run.refresh_from_db()
    if run.state != Run.State.COMPLETED:
        raise SystemExit(f"The comparison ended as {run.state}: {run.problem} {run.traceback}")
    return run


@contextmanager
def _workers(count: int) -> Iterator[None]:
    """Run workers of the long queue, each on one core, and wait until they are ready."""
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for number in range(count):
        ready = os.path.join(os.environ["HEADROOM_DATA_DIR"], f"ready-{number}")
        command = [sys.executable, "-m", "celery", "--quiet", "--app=planner.config.celery"]
        command += ["worker", "--pool=solo", f"--hostname=spread-{number}@%h", "--queues=long"]
        core = cores[number % len(cores)]
        started.append(
            subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                cwd=ROOT,
                env=os.environ | {"HEADROOM_WORKER_READY": ready},
                stdout=sys.stderr,  # standard output is for the figures
            )
        )
        while not os.path.exists(ready):
            time.sleep(0.1)
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=60)


def _seconds(run: Any) -> float:
    return (run.finished_at - run.started_at).total_seconds()


def _bytes(run: Any) -> bytes:
    """Return a run's result and tables, without measured times."""
    from planner.storage import row_arrays

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in TIMES | {"run"}}
        return [plain(item) for item in value] if isinstance(value, list) else value

    tables = [
        row_arrays.table_read(run.store, name).drop(TIMES, strict=False).write_csv()
        for name in sorted(row_arrays.tables_list(run.store))
    ]
    return json.dumps([plain(run.result), tables], sort_keys=True).encode()


def _handover_ms() -> float:
    """Return what it costs to claim a part, store its result and read it: the median of five."""
    from django.utils import timezone

    from planner.domain.progress import silent
    from planner.domain.run_parts import Part
    from planner.models import Run
    from planner.services.run_parts import SharedParts, worker_id

    took = []
    for _ in range(5):
        run = Run.objects.create(
            kind=Run.Kind.COMPARE,
            state=Run.State.RUNNING,
            worker=worker_id(),
            attempts=1,
            heartbeat_at=timezone.now(),
        )
        parts = [
            Part(f"part {number}", lambda _: {"figures": [0.1] * 100}) for number in range(TRIVIAL)
        ]
        began = time.perf_counter()
        SharedParts(run, leads=True).map(parts, silent)
        took.append(1e3 * (time.perf_counter() - began) / TRIVIAL)
        run.delete()
    return statistics.median(took)
