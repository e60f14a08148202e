"""What a kill leaves in the data directory goes; what somebody speaks of, or writes to, stays."""

import os
import time

from planner.models import Run, Trace
from planner.services.arrays import orphans_sweep
from planner.storage import row_arrays

HOURS_AGO = time.time() - 7200


def put(name: str, *, modified_s: float = HOURS_AGO) -> None:
    path = row_arrays.data_dir() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    for each in (path, path.parent):
        os.utime(each, (modified_s, modified_s))


def test_orphans_go_and_nothing_else(db, planner):
    def trace(name, state=Trace.State.UPLOADED, **fields):
        return Trace.objects.create(
            name=name, file_name=name, sha256=name * 8, bytes=1, state=state, **fields
        )

    ready = trace("a" * 8, Trace.State.READY, store="traces/90001-aaaaaaaaaaaa")
    read, refused = trace("b" * 8), trace("c" * 8, Trace.State.REFUSED)
    Run.objects.create(kind=Run.Kind.INGEST, trace=read, options={"upload": "uploads/going"})
    again = Run.objects.create(kind=Run.Kind.PLAN, attempts=2, store="runs/90005-2")
    Run.objects.create(
        kind=Run.Kind.INGEST,
        trace=refused,
        state=Run.State.FAILED,
        options={"upload": "uploads/refused"},
    )
    stay = {
        f"{ready.store}/meta.json",
        f"traces/{read.pk}-{read.sha256[:12]}.0a1b2c.partial/columns.parquet",
        f"{again.store}/replicas.parquet",
        "uploads/going",
        "uploads/refused",
    }
    go = {
        "traces/90002-abc.0a1b2c.partial/columns.parquet",
        f"{ready.store}.0a1b2c.partial/columns.parquet",  # of a reader that was killed
        "traces/90003-abc/meta.json",
        "runs/90004/replicas.parquet",
        "runs/90005/replicas.parquet",  # of its first attempt
        "uploads/nobody",
        "uploads/tmpxyz.upload",
        "queue/celery/1.part",
    }
    for name in stay | go:
        put(name)
    put("uploads/just-now", modified_s=time.time())
    orphans_sweep()
    left = {name for name in stay | go if (row_arrays.data_dir() / name).exists()}
    assert left == stay
    assert (row_arrays.data_dir() / "uploads/just-now").exists()
