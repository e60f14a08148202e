"""Whether one could act on what the product recommends, and would be right, on real traffic.

    python -m bench.decisions [--json] [--only NAME ...] [--jobs N] [--rps R]

Every trace of ../shared/data under loose and tight limits and with prefill and decode apart: the
last day (or third of an hour) is the window, and what comes before it is all that is known.
`compare` says which policy to take, tuned and chosen on the days before; then its outcome in the
window stands beside

- the smallest flat fleet as the days before would have it (``worst_cost_over_runnable_flat``),
- the smallest flat fleet found in hindsight (``worst_cost_over_flat``, ``mean_saving_diurnal``),
- the same program with a perfect forecast (``mean_regret``).

Costs are compared at equal attainment: where the recommended policy attains less than the other,
by the fleets' figure at its attainment. ``worst_shortfall_points`` is what its worst tier is below
its target. Traffic is scaled to R requests/s on average.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean

os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[2] / "var" / "numba"))

from bench.decisions.cases import LIMITS, case
from bench.decisions.data import DATA, TRACES
from bench.decisions.outcome import Decision


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names, as in mooncake-pd")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--rps", type=float, default=20.0, help="requests/s on average")
    options = parser.parse_args()
    if not TRACES.exists():
        sys.exit("../shared/data/traces is not here; the bench decides on its traces.")
    cases = [
        (data.name, limits, options.rps)
        for data in DATA
        for limits in LIMITS
        if not options.only or any(part in f"{data.name}-{limits}" for part in options.only)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        found = list(pool.map(case, *zip(*cases, strict=True)))
    done = [decision for decision in found if isinstance(decision, Decision)]
    figures = summed_up(done) | {
        "cases": {decision.name: decision.figures for decision in done},
        "failed": [said for said in found if isinstance(said, str)],
    }
    print(json.dumps(figures, indent=None if options.json else 2))


def summed_up(cases: list[Decision]) -> dict[str, float]:
    def over(which: str) -> list[float]:
        return [c.figures[which] for c in cases if c.figures.get(which) is not None]

    saved = [1 - c.figures["over_flat"] for c in cases if c.diurnal and c.figures["over_flat"]]
    regret = [ratio - 1 for ratio in over("over_perfect")]
    return {
        "worst_cost_over_runnable_flat": max(over("over_runnable_flat"), default=float("nan")),
        "worst_cost_over_flat": max(over("over_flat"), default=float("nan")),
        "mean_saving_diurnal": mean(saved) if saved else float("nan"),
        "worst_shortfall_points": max(over("shortfall_points"), default=float("nan")),
        "mean_regret": mean(regret) if regret else float("nan"),
    }


if __name__ == "__main__":
    main()
