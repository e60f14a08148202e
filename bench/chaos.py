"""Real processes of the product, really killed, with runs in flight: is anything lost or stuck?

    python -m bench.chaos [--json] [--kills 100] [--seed 0] [--bucket] [--team]

A product of its own in a temporary folder (SQLite, queue in a folder). Three kinds of run (ingest,
plan, compare) are kept going while one process after the other is killed outright: a worker, the
web master, a web worker, the scheduler, now and then the supervisor, which is then started again as
systemd would. With ``--bucket`` arrays are kept in an S3-compatible server beside it (moto), and
what rows name must be whole there, and nothing beyond. With ``--team`` it runs on PostgreSQL and
Redis of its own, which are killed too, with all their processes, and started again on what they
left a few seconds later.

- ``kills``: processes killed.
- ``lost``: runs that were asked for and are not there, or completed without what they were for.
- ``doubled``: ingests whose trace has another number of requests than its file, and folders of
  traces and runs beyond one per run.
- ``stuck``: runs that had not ended three minutes after the last kill.
- ``given_up``: runs that ended because their workers died, though no part of them was itself killed
  more than three times; ``killed_out``: those of which one was.
- ``again_s``: the longest that the site did not answer.
"""

import argparse
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.product import ROOT, Product, fresh_folder
from bench.servers import Server, servers

EXAMPLE = ROOT / "docs" / "examples"
IN_FLIGHT = 3
BETWEEN_S = (2.0, 8.0)  # kills
DOWN_S = (0.5, 6.0)  # database or broker
ENDS_WITHIN_S = 180.0
VICTIMS = ("worker", "worker", "worker", "web", "web worker", "scheduler", "supervisor")
HORIZON = "horizon: {start: 2024-05-21T08:00:00Z, duration_s: 7200, period_s: 3600}\n"
HORIZON += "test_days: [{kind: past, windows: 1}]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket", action="store_true", help="keep arrays in a bucket")
    parser.add_argument("--team", action="store_true", help="on PostgreSQL and Redis, killed too")
    args = parser.parse_args()
    random.seed(args.seed)
    with ExitStack() as stack:
        if args.bucket:
            stack.enter_context(bucket())
        beside = stack.enter_context(servers()) if args.team else {}
        stack.enter_context(fresh_folder("chaos", embedded=not args.team))
        figures = measure(args.kills, beside)
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


@contextmanager
def bucket() -> Iterator[None]:
    """Run a bucket server in this process, and name it to processes that start from here."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "HEADROOM_ARRAYS": "s3://chaos/arrays",
        "HEADROOM_ARRAYS_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="chaos")
    yield
    server.stop()


def measure(kills: int, beside: Mapping[str, Server]) -> dict[str, Any]:
    import django

    django.setup()
    from planner.models.workspace import MAIN, enter
    from planner.services import arrays

    enter(MAIN)
    ask = asker()
    product = Product(dict(os.environ))
    killed: Counter[str] = Counter()
    asked: list[int] = []
    began = time.monotonic()
    try:
        while sum(killed.values()) < kills:
            for _ in range(retry_query(_count_unfinished_runs), IN_FLIGHT):
                if (number := retry_query(lambda: ask(len(asked)), several=False)) is not None:
                    asked.append(number)
            time.sleep(random.uniform(*BETWEEN_S))
            product.keep()
            kind = random.choice((*VICTIMS, *beside, *beside))
            if kind in beside:
                beside[kind].kill()
                time.sleep(random.uniform(*DOWN_S))
                beside[kind].start()
            elif not product.kill(kind):
                continue
            killed[kind] += 1
            print(f"{sum(killed.values())}: {kind}", file=sys.stderr, flush=True)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while retry_query(_count_unfinished_runs) and time.monotonic() < deadline:
            time.sleep(1.0)
            product.keep()
    finally:
        product.stop()
    arrays.orphans_sweep(min_age_s=0.0)
    return {
        "kills": sum(killed.values()),
        **_verdict(asked),
        "runs": len(asked),
        "again_s": round(product.longest_s, 1),
        "by_process": dict(killed),
        "seconds": round(time.monotonic() - began, 1),
    }


def retry_query(ask: Callable[[], Any], *, several: bool = True) -> Any:
    """Return the answer of ``ask``, and repeat it while the database is down.

    With ``several`` False, it is tried once, and the answer is None if the database is down.
    """
    from django.db import Error, connection

    while True:
        try:
            return ask()
        except Error:
            connection.close()
            if not several:
                return None
            time.sleep(0.5)


def _count_unfinished_runs() -> int:
    from planner.models import Run

    return Run.objects.filter(state__in=(Run.State.PENDING, Run.State.RUNNING)).count()


def asker() -> Any:
    """Return a function that requests ingest, plan and compare in turn.

    It returns the number of the run.
    """
    from planner.inputs.ingest import IngestOptions
    from planner.inputs.scenario.document import with_traces
    from planner.models import Run, User
    from planner.services.runs import run_create
    from planner.services.traces import trace_ingest_path, trace_upload

    user = User.objects.create_user("chaos", role=User.Role.PLANNER)
    week = trace_ingest_path(path=EXAMPLE / "small-week.csv", options=IngestOptions())
    text = (EXAMPLE / "first-plan.yml").read_text(encoding="utf-8") + HORIZON
    document = with_traces(text, {0: week.name})

    def ask(number: int) -> int:
        if number % 3 == 0:
            name = f"chaos-{number}.csv"
            _, run, _ = trace_upload(
                owner=user, chunks=[_requests(number)], file_name=name,
                options=IngestOptions(name=name),
            )  # fmt: skip
            assert run is not None
            return run.pk
        kind = Run.Kind.PLAN if number % 3 == 1 else Run.Kind.COMPARE
        options = {} if kind == Run.Kind.PLAN else {"policies": ["flat-peak", "lt-i"]}
        return run_create(owner=user, kind=kind, document=document, options=options).pk

    return ask


ROWS = 400_000


def _requests(number: int) -> bytes:
    rows = (f"{second / 10:.1f},{100 + number},10" for second in range(ROWS))
    return "\n".join(("timestamp,input_tokens,output_tokens", *rows)).encode()


def _verdict(asked: list[int]) -> dict[str, int]:
    from planner.models import Run, Trace
    from planner.services.runs import MAX_FAILURES, WORKER_DIED
    from planner.storage import row_arrays

    runs = {run.pk: run for run in Run.objects.filter(pk__in=asked)}
    lost = len(asked) - len(runs)
    given_up = killed_out = doubled = stuck = 0
    for run in runs.values():
        if not run.is_finished:
            stuck += 1
        elif run.state != Run.State.COMPLETED:
            died = run.reason == WORKER_DIED
            lost += not died
            given_up += died and run.failures <= MAX_FAILURES
            killed_out += died and run.failures > MAX_FAILURES
            print(f"run {run.pk}, {run.kind}: {run.problem} {run.traceback}", file=sys.stderr)
        elif run.kind == Run.Kind.INGEST:
            trace = run.trace
            lost += trace is None or trace.state != Trace.State.READY
            doubled += trace is not None and trace.requests != ROWS
        else:
            lost += not row_arrays.tables_list(run.store)
    kept = row_arrays.bucket()
    for name, rows in (("traces", Trace.objects), ("runs", Run.objects)):
        stores = set(rows.exclude(store="").values_list("store", flat=True))
        there = {f"{name}/{path.name}" for path in (row_arrays.data_dir() / name).glob("*")}
        doubled += len((there | set(row_arrays.stores_below(name))) - stores)
    if kept is not None:
        completed = Run.objects.filter(state=Run.State.COMPLETED).exclude(store="")
        ready = Trace.objects.filter(state=Trace.State.READY)
        for rows in (completed, ready):
            lost += sum(
                not kept.has_all_objects(store) for store in rows.values_list("store", flat=True)
            )
    return {
        "lost": lost,
        "doubled": doubled,
        "stuck": stuck,
        "given_up": given_up,
        "killed_out": killed_out,
    }


if __name__ == "__main__":
    main()
