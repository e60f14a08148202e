"""How right C(n) is: what a pool carries by ``pool_curve``, beside long simulations it never saw.

    python -m bench.pools [--json] [--cases 12] [--seed 0] [--requests 100000]

Cases are the profiles, lengths and limits of ``bench.sizing``, which break for one instance alone
between a tenth and 95% of saturation; in turn mixed, prefill and decode pools. Each is looked at
for some numbers of instances between 1 and 64, those that the curve simulates and those it reads in
between. The longer simulations draw lengths and arrivals one by one, with other seeds; their first
tenth is not judged, since a pool begins empty.

- ``worst_pool_error``: of the largest rate, relative, against the one that meets the tier in the
  longer simulation, to 0.3%, and is no more than what the instances do with queues without end (a
  run of a large pool is over before the queue is); ``median_pool_error`` and ``p95_pool_error``
  likewise.
- ``curve_in_sizes``: CPU time of a whole curve in that of the size of one instance, median.

``--json`` prints these keys and, in ``rows``, every pool.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench.sizing import Case, draw_case, linear_and_roofline_profiles
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Region
from simulation.metrics import meets_slo
from simulation.policies.static import Static
from simulation.sizing.capacity import SizingCase, capacity, isolated_role, routing_for
from simulation.sizing.pool import excess_log_odds, falling_root, pool_curve
from simulation.sizing.trial import RequestDraws, Trial
from simulation.trace import Trace

INSTANCES = (1, 2, 3, 6, 12, 24, 40, 64)
ROLES = ("both", "prefill", "decode")
PRECISION = 0.003  # of the rate that the long simulations find
STEP = 0.03  # of it, until the tier is met on one side and missed on the other
TOP = 4.0  # of the rate by the curve, at which the search for the other ends
EMPTY = 0.1  # share of the requests that come before anything is judged
Row = dict[str, Any]


def rows_of(case: Case, role: str, seed: int, requests: int) -> Iterator[Row]:
    """Yield for each number of instances the rate by the curve and by a longer simulation."""
    begun = time.process_time()
    alone = capacity(SizingCase(case.profile, case.lengths, case.tier, seed=seed, role=role))
    lone_s = time.process_time() - begun
    curve = pool_curve(
        SizingCase(case.profile, case.lengths, case.tier, seed=seed, role=role), alone=alone
    )
    whole_s = time.process_time() - begun
    for n in INSTANCES:
        rate = float(curve.max_rps[n - 1])
        true = rate * largest_met(case, role, n, rate, [seed, 9, n], requests)
        yield {
            "case": f"{role}, {case.words}",
            "instances": n,
            "bound_by": alone.bound_by,
            "curve_rps": rate,
            "simulated_rps": true,
            "each_of_alone": rate / n / alone.max_rps,
            "error": rate / true - 1.0,
            "curve_in_sizes": whole_s / lone_s,
        }


def largest_met(
    case: Case, role: str, n: int, rate: float, seed: list[int], requests: int
) -> float:
    """Return the largest rate that meets the tier, as a multiple of ``rate``."""
    pools, lengths, tier = isolated_role(
        SizingCase(case.profile, case.lengths, case.tier, role=role), n
    )
    rng = np.random.default_rng(seed)
    columns = [np.asarray(column, np.int32) for column in lengths]
    picked = rng.integers(len(columns[0]), size=requests)
    isl, osl = (column[picked] for column in columns)
    arrival = np.cumsum(rng.exponential(size=requests))
    codes = np.zeros(requests, np.int16)
    fleet = Fleet(
        (tier,), (Region("", 0.0, 1.0),), pools, np.zeros((1, 1)), routing_for(role, None)
    )

    def odds(share: float) -> float:
        times = arrival / (share * TOP * rate)
        trace = Trace(
            times, isl, osl, codes, codes, codes, (case.profile.model,), ("",), (tier.name,), 0.0,
            "synthesised: Poisson",
        )  # fmt: skip
        until_s = float(times[-1]) + 1.0
        flat = Static([pool.initial for pool in pools], interval_s=until_s)
        run = simulate(trace, fleet, flat, seed=seed[0], duration_s=until_s, interval_s=until_s)
        return excess_log_odds(
            float(meets_slo(run)[int(EMPTY * requests) :].mean()), requests, tier
        )

    trial = Trial(
        isolated_role(SizingCase(case.profile, case.lengths, case.tier, role=role))[0],
        RequestDraws(lengths, seed=seed[0] + 1, requests=requests), tier, routing_for(role, None),
    )  # fmt: skip
    most = n * trial.saturated_rps() / rate
    return min(most, TOP * falling_root(odds, 1.0 / TOP, STEP / TOP, PRECISION / TOP))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.pools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=100_000, help="of each long simulation")
    options = parser.parse_args()
    if options.cases < 1 or options.requests < 1:
        parser.error("--cases and --requests must be at least 1.")
    known, index, done = linear_and_roofline_profiles(), 0, 0
    rows: list[Row] = []
    while done < options.cases:
        case, role = draw_case(index, options.seed, known), ROLES[done % len(ROLES)]
        index += 1
        if case is None:
            continue
        if role != "both":  # the limit that the role has to do with is the one that breaks
            case = replace(case, tier=_tight(case, role))
        try:
            fresh = list(rows_of(case, role, 1000 * options.seed + index, options.requests))
        except SimulationError as problem:
            print(f"left out: {problem}", file=sys.stderr)
            continue
        done += 1
        rows += fresh
        errors = ", ".join(f"{row['instances']}: {row['error']:+.1%}" for row in fresh)
        print(
            f"{done:3} {fresh[0]['case']}, p{100 * case.tier.attainment:.0f}: {errors}; each of 64 "
            f"carries {fresh[-1]['each_of_alone']:.2f} times what one does alone, "
            f"{fresh[0]['curve_in_sizes']:.1f} sizes' time",
            file=sys.stderr,
            flush=True,
        )
    errors = np.abs(np.array([row["error"] for row in rows]))
    summary = {
        "worst_pool_error": float(errors.max()),
        "p95_pool_error": float(np.quantile(errors, 0.95)),
        "median_pool_error": float(np.median(errors)),
        "curve_in_sizes": float(np.median(np.array([row["curve_in_sizes"] for row in rows]))),
        "cases": done,
        "pools": len(rows),
    }
    print(json.dumps({**summary, "rows": rows}) if options.json else json.dumps(summary, indent=2))
    return 0


def _tight(case: Case, role: str) -> Any:
    tier = case.tier
    if role == "prefill":
        return replace(tier, tbt_s=None)
    return replace(tier, ttft_s=None)


if __name__ == "__main__":
    sys.exit(main())
