"""How far it goes: requests in one replay, rows of one file, models of one plan, workers.

    python -m bench.scale [--json] [--requests 100000000] [--rows 100000000] [--part NAME]...

Goals are for 100 million; another number is measured as it is and named in ``requests`` and
``rows`` (figures with ``100m`` in their name are then left out). Each part is measured by itself:

- ``replay``: ``requests_100m_seconds`` of a week on two workers, drawing its requests included;
  ``rss_mb`` of all its processes together, ``cpu_seconds``.
- ``stored``: the same week as a file that the product has taken in, and its command ``simulate``
  of the last 6.5 days of it: ``stored_requests``, ``stored_seconds``, ``stored_cpu_seconds`` and
  ``stored_rss_mb`` of the command's process, with the program's own start, reading the trace,
  sizing and the replay.
- ``workers``: ``workers_same_bytes``, 1 where one worker and two give the same result to the last
  byte, and ``speedup_2_workers`` by the wall clock from when workers are ready, of a week of a
  fifth of the requests (each worker looks at every control instant, 40,000 a week, whatever comes:
  of fewer requests that is a larger share); ``workers_cpu_ratio``, CPU of two over CPU of one, says
  what splitting costs whatever else the machine does: 2 over it is the most that the speedup can
  be.
- ``spread``: the README's comparison on one worker of the product and on two, each on a core of its
  own: ``time_over_one_worker``; ``same_bytes``, 1 where results and tables are the same but for
  measured times; ``handover_ms`` of one part, to claim it, store its result and read it.
- ``ingest``: ``ingest_100m_seconds`` and ``ingest_rss_mb`` of a CSV, as ``bin/bench ingest``.
- ``program``: ``gap_1000x200x10``, proven in 60 s by decomposition.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from bench import ingest
from bench.scale import program, spread, storage
from bench.scale.replay import replay
from simulation.errors import SimulationError

GOAL = 100_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=GOAL)
    parser.add_argument("--rows", type=int, default=GOAL)
    parser.add_argument(
        "--part",
        action="append",
        choices=("replay", "stored", "workers", "spread", "ingest", "program"),
    )
    args = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "replay": lambda: _replay(args.requests),
        "stored": lambda: storage.figures(args.requests),
        "workers": lambda: _workers(max(args.requests // 5, 1000)),
        "spread": spread.figures,
        "ingest": lambda: _ingest(args.rows),
        "program": program.figures,
    }
    out: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for name in args.part or parts:
        out |= parts[name]()
        print(f"{name} done", file=sys.stderr, flush=True)
    print(json.dumps(out) if args.json else json.dumps(out, indent=2))


def _replay(requests: int) -> dict[str, Any]:
    replayed = replay(requests, workers=2)
    summary = replayed.summary
    out = {
        "requests": summary["arrived"],
        "seconds": replayed.seconds,
        "rss_mb": replayed.rss_mb,
        "cpu_seconds": replayed.cpu_seconds,
        "completed": summary["completed"],
        "slo_attainment": summary["slo_attainment"],
    }
    return out | ({"requests_100m_seconds": replayed.seconds} if requests == GOAL else {})


def _workers(requests: int) -> dict[str, Any]:
    single, two = (replay(requests, workers) for workers in (1, 2))
    return {
        "workers_same_bytes": int(single.digest == two.digest),
        "speedup_2_workers": single.ready_seconds / two.ready_seconds,
        "workers_cpu_ratio": two.cpu_seconds / single.cpu_seconds,
        "workers_cpu_seconds": single.cpu_seconds,
        "workers_start_seconds": two.seconds - two.ready_seconds,
        "workers_requests": single.summary["arrived"],
    }


def _ingest(rows: int) -> dict[str, Any]:
    ingested = ingest.run(rows)
    out = {"rows": rows, "ingest_seconds": ingested["seconds"], "ingest_rss_mb": ingested["rss_mb"]}
    return out | ({"ingest_100m_seconds": ingested["seconds"]} if rows == GOAL else {})


if __name__ == "__main__":
    try:
        main()
    except SimulationError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
