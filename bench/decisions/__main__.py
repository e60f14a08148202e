"""Check the recommendation of each level of assurance on traffic that it has not seen.

    python -m bench.decisions [--json] [--only NAME ...] [--jobs N] [--rps R] [--unseen]

Every trace of ../shared/data is decided under loose and tight limits and with disaggregated prefill
and decode. The last day (or third of an hour) is the window, and only what comes before it is
known. Costs are as paid. Ratios are over the cases that met the SLO; ``cases`` gives both counts.
``hindsight`` is the minimum static fleet of the window (oracle), and ``oracle`` a plan on a perfect
forecast. ``--unseen`` takes three traces that the rule was not developed on.
"""

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
from bench.decisions.outcome import Decision
from planner.inputs.scenario.schema.test_days import LEVELS


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


def summed_up(decisions: list[Decision]) -> dict[str, Any]:
    """Return the figures of all cases together."""
    figures = [decision.figures for decision in decisions]
    out: dict[str, Any] = {}
    met = {level: [f for f in figures if f["levels"][level]["met"]] for level in LEVELS}
    for level in LEVELS:
        out[f"{level}_met_share"] = _share([f["levels"][level]["met"] for f in figures])
        out[f"{level}_met_share_slower_profile"] = _share(
            [f["levels"][level]["met_slower"] for f in figures]
        )
        out[f"{level}_paid_over_hindsight_mean"] = _mean(
            [f["levels"][level]["usd_without_spare"] / f["hindsight_usd"] for f in met[level]]
        )
    out["balanced_n_plus_1_cost_share"] = _mean([
        f["levels"]["balanced"]["usd"] / f["levels"]["balanced"]["usd_without_spare"] - 1
        for f in met["balanced"]
    ])  # fmt: skip
    out["regret_mean"] = _mean([
        f["levels"]["economy"]["usd"] / f["best_deployable_usd"] - 1
        for f in met["economy"]
        if f["best_deployable_usd"]
    ])  # fmt: skip
    out["never_dearer_than_static"] = max(
        (its["over_static"] for f in figures for its in f["levels"].values() if its["over_static"]),
        default=nan,
    )
    inside = [
        its["cost_in_interval"]
        for f in figures
        for its in f["levels"].values()
        if its["cost_in_interval"] is not None
    ]
    out["interval_coverage"] = _share(inside)
    out["attainment_interval_coverage"] = _share(
        [
            one
            for f in figures
            for its in f["levels"].values()
            for one in its["attainment_in_interval"]
        ]
    )
    out["oracle_beaten_by_max"] = max(
        (
            1 - min(its["usd"] for its in f["levels"].values() if its["met"]) / f["oracle_usd"]
            for f in figures
            if f["oracle_usd"] and any(its["met"] for its in f["levels"].values())
        ),
        default=nan,
    )
    out["cases_met"] = {level: [len(met[level]), len(figures)] for level in LEVELS}
    return out


def _share(values: list[bool]) -> float:
    return mean(values) if values else nan


def _mean(values: list[float]) -> float:
    return mean(values) if values else nan


if __name__ == "__main__":
    main()
