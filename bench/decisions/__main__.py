"""Whether one could act on what the product recommends, and would be right, on real traffic.

    python -m bench.decisions [--json] [--only NAME ...] [--jobs N] [--rps R] [--unseen]

Every trace of ../shared/data under loose and tight limits and with prefill and decode apart: the
last day (or third of an hour) is the window, and what comes before it is all that is known.
`compare` says which policy to take, tuned and chosen on the days before; then its outcome in the
window stands beside

- the smallest flat fleet as the days before would have it (``worst_cost_over_runnable_flat``),
- the smallest flat fleet found in hindsight (``worst_cost_over_flat``, ``mean_saving_diurnal``),
- the same program with a perfect forecast (``mean_regret``).

Costs are compared at equal attainment, by the product's own figure (methods.md X4,
``results.equal_attainment_savings``): where the two differ by more than 0.2 points, times what the
smallest flat fleet as good as the other costs over the smallest as good as the recommended one.
What serves better than it has to is then held against a fleet that does too, so the same figures
stand beside without that under ``as_paid``: dollars over dollars, whoever serves better. ``untold``
names the cases without a figure, since no flat fleet tells what the difference is worth: one of the
two falls far below its tier.
``worst_shortfall_points`` is what the worst tier is below its target. ``worst_seer_over_flat`` is
the cost over the smallest flat fleet of what turned out cheapest of all that could be run as the
days before had it: no choice among them does better, so what is above 1 there nobody knew.
Traffic is scaled to R requests/s on average. ``--unseen`` takes three traces that the rules were
not written on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[2] / "var" / "numba"))

from bench.decisions.cases import LIMITS, case
from bench.decisions.data import DATA, TRACES, UNSEEN
from bench.decisions.outcome import OTHERS, Decision


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names, as in mooncake-pd")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--rps", type=float, default=20.0, help="requests/s on average")
    parser.add_argument("--unseen", action="store_true", help="traces not used in development")
    options = parser.parse_args()
    if not TRACES.exists():
        sys.exit("../shared/data/traces is not here; the bench decides on its traces.")
    cases = [
        (data.name, limits, options.rps)
        for data in (UNSEEN if options.unseen else DATA)
        for limits in LIMITS
        if not options.only or any(part in f"{data.name}-{limits}" for part in options.only)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        outcomes = list(pool.map(case, *zip(*cases, strict=True)))
    done = [decision for decision in outcomes if isinstance(decision, Decision)]
    figures = summed_up(done) | {
        "cases": {decision.name: decision.figures for decision in done},
        "failed": [failure for failure in outcomes if isinstance(failure, str)],
    }
    print(json.dumps(figures, indent=None if options.json else 2))


def summed_up(cases: list[Decision]) -> dict[str, Any]:
    return {
        **_costs(cases, "over_"),
        "worst_shortfall_points": max(_of(cases, "shortfall_points"), default=nan),
        "untold": [
            f"{case.name}: over_{other}"
            for case in cases
            for other in OTHERS
            if case.figures[f"over_{other}"] is None and case.figures[f"paid_over_{other}"]
        ],
        "worst_seer_over_flat": max(_of(cases, "seer_over_flat"), default=nan),
        "worst_cost_over_seer": max(_of(cases, "over_seer"), default=nan),
        "as_paid": _costs(cases, "paid_over_"),
    }


def _costs(cases: list[Decision], over: str) -> dict[str, float]:
    regret = [ratio - 1 for ratio in _of(cases, f"{over}perfect")]
    saved = [1 - ratio for ratio in _of([case for case in cases if case.diurnal], f"{over}flat")]
    return {
        "worst_cost_over_runnable_flat": max(_of(cases, f"{over}runnable_flat"), default=nan),
        "worst_cost_over_flat": max(_of(cases, f"{over}flat"), default=nan),
        "mean_saving_diurnal": mean(saved) if saved else nan,
        "mean_regret": mean(regret) if regret else nan,
    }


def _of(cases: list[Decision], figure: str) -> list[float]:
    """Of the cases that have it."""
    return [case.figures[figure] for case in cases if case.figures[figure] is not None]


if __name__ == "__main__":
    main()
