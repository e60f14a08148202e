"""How long a run that is cancelled goes on: a real product, runs cancelled at random moments.

    python -m bench.cancel [--json] [--times 30] [--seed 0]

A product of its own as in ``bench.chaos``, with its three kinds of run in turn (ingest of 400,000
rows, plan, compare), each cancelled up to ``WITHIN_S`` after a worker began it.

- ``cancelled``: runs that ended so; ``slowest_s`` from the request until the row says so, by the
  ``stage`` that the run was in.
- ``ended_before``: runs that were over before they could be cancelled.
- ``left``: files of cancelled runs that were still there at the end.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import defaultdict
from typing import Any

from bench.chaos import asker
from bench.product import Product, fresh_folder

WITHIN_S = 8.0
GIVES_UP_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    with fresh_folder("cancel"):
        figures = measure(args.times)
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def measure(times: int) -> dict[str, Any]:
    import django

    django.setup()
    from planner.errors import NotReady
    from planner.models import Run, User
    from planner.models.workspace import MAIN, enter
    from planner.services.runs import run_cancel

    enter(MAIN)
    ask, user = asker(), User.objects.get()
    product = Product(dict(os.environ))
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    ended_before = asked = 0
    try:
        while sum(map(len, seconds.values())) < times:
            run = Run.objects.get(pk=ask(asked))
            asked += 1
            _wait_until(run, lambda row: row.state != Run.State.PENDING)
            time.sleep(random.uniform(0.0, WITHIN_S))
            run.refresh_from_db()
            stage, began = run.stage, time.monotonic()
            try:
                run_cancel(run=run, user=user)
            except NotReady:
                ended_before += 1
                continue
            _wait_until(run, lambda row: row.is_finished)
            if run.state == Run.State.CANCELLED:
                seconds[f"{run.kind}: {stage}"].append(time.monotonic() - began)
                print(f"{stage}: {seconds[f'{run.kind}: {stage}'][-1]:.2f} s", file=sys.stderr)
            else:
                ended_before += 1
    finally:
        product.stop()
    left = [path for name in ("uploads", "runs") for path in _orphaned_stores(name)]
    return {
        "cancelled": sum(map(len, seconds.values())),
        "slowest_s": round(max(max(spans) for spans in seconds.values()), 2),
        "ended_before": ended_before,
        "left": len(left),
        "stages": {stage: round(max(spans), 2) for stage, spans in sorted(seconds.items())},
    }


def _wait_until(run: Any, done: Any) -> None:
    deadline = time.monotonic() + GIVES_UP_S
    while time.monotonic() < deadline:
        run.refresh_from_db()
        if done(run):
            return
        time.sleep(0.05)
    raise SystemExit(f"run {run.pk} is {run.state} ({run.stage}) after {GIVES_UP_S:.0f} s")


def _orphaned_stores(name: str) -> list[str]:
    """Return folders and files below ``name`` that belong to no completed run."""
    from planner.models import Run
    from planner.storage import row_arrays

    kept = set(Run.objects.filter(state=Run.State.COMPLETED).values_list("store", flat=True))
    return [stored for stored in row_arrays.stores_below(name) if stored not in kept]


if __name__ == "__main__":
    main()
