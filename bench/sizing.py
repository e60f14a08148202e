"""How right the sizes are: the rate that ``capacity`` finds, beside long simulations it never saw.

    python -m bench.sizing [--json] [--cases 60] [--seed 0] [--requests 100000]

Random cases: built-in linear profiles and rooflines of built-in models, lengths lognormal or fixed,
and an SLO that breaks somewhere between a tenth and 95% of the saturated throughput: its limits are
the percentiles of TTFT and TBT simulated at such a rate, one of the two with room to spare. Each
case is then simulated with other lengths, arrivals and seed, and more requests.

- ``median_rate_error``, ``p95_rate_error``: of the largest rate, against the one that bisection
  over the longer simulation finds to within 0.5%.
- ``worst_shortfall_points``: attainment below the tier's target at the sized rate, in points
  (hundredths) of the requests.

- ``closed_rate_error``, ``closed_latency_error``: of the closed forms (batch_queue), by the load at
  the size: median and 95th percentile of the errors of the largest rate, and of the tier's
  percentiles of TTFT and TBT at the sized rate; ``ttft_bias``, ``tbt_bias``: signed medians.
  planner/domain/sizing/size_errors.py states them.
- ``changed_pool_error``: by pool size, median and 95th percentile of the errors of the factors by
  which the planner changes the capacity of pools for other limits and speeds (closed_form.py),
  against simulation of ``--changes`` cases; ``changed_alone_error`` with the factor of one replica.
- ``pd_within_one_step``: of ``--ratios`` seeded services, how many whose ratio of prefill to decode
  by closed forms is within one instance of the one that simulation of all ratios finds best.

The keys of ``bench.bursts`` follow: plans on a perfect forecast, on bursty and on smooth traffic.
``--no-bursts`` leaves them out.

``--json`` prints these keys and, in ``rows``, ``ratios`` and ``bursts``, every case.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.bursts import figures, measured_all
from bench.ratios import pd_cases
from planner.domain.sizing.closed_form import closed_factors
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.hardware import gpus, shape
from planner.inputs.catalogue.measured_profiles import profiles
from simulation.arrays import FloatArray, Int32Array
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.metrics import meets_slo
from simulation.performance.adjusted_profile import scale_profile_times
from simulation.performance.memory import capacity_tokens
from simulation.performance.profile import Profile
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, EngineSettings, GpuSpec, Provenance
from simulation.policies.static import Static
from simulation.results import SimulationResult
from simulation.sizing.batch_queue import evaluate_pool, saturated_rps
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import SizingCase, capacity
from simulation.sizing.pool import pool_curve
from simulation.sizing.workload import Workload
from simulation.trace import Trace

Lengths = tuple[Int32Array, Int32Array]
Row = dict[str, Any]

PRECISION = 0.005  # of the rate that the long simulations find
SAMPLE = 20_000  # pairs of lengths that sizing draws from, as many as a scenario keeps
LOWEST, HIGHEST = 0.1, 0.95  # of the saturated throughput: where the SLO breaks
STEP = 1.1  # of the rate, until the SLO holds on one side and not on the other
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048
LOADS = (0.5, 0.8)  # between which errors of the closed forms are told apart
POOLS = (1, 3, 8, 32)  # instances
CHANGES = ((0.8, 1.0), (1.1, 1.0), (1.5, 1.0), (1.0, 1.15), (1.0, 0.85))  # of limits, of seconds
SIDES = ("ttft", "tbt", "both")
ROOFLINES = (
    ("llama-3.1-8b", "A100-80GB", 1),
    ("llama-3.1-8b", "H100-SXM", 1),
    ("llama-3.1-70b", "H100-SXM", 4),
    ("llama-3.1-70b", "A100-80GB", 8),
)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    profile: Profile
    lengths: Lengths
    tier: Tier
    words: str


def draw_case(index: int, seed: int, known: list[Profile]) -> Case | None:
    """Return a random case; None if its prompts do not fit in memory."""
    rng = np.random.default_rng([seed, index])
    profile = known[int(rng.integers(len(known)))]
    isl = float(np.exp(rng.uniform(np.log(128), np.log(4096))))
    osl = float(np.exp(rng.uniform(np.log(32), np.log(512))))
    spread = float(rng.choice([0.0, 0.5, 1.0]))
    lengths = _sample(isl, osl, spread, SAMPLE, rng)
    attainment = float(rng.choice([0.9, 0.95, 0.99]))
    load, side = float(rng.uniform(LOWEST, HIGHEST)), str(rng.choice(SIDES))
    room = float(rng.uniform(1.2, 2.0))
    try:
        saturated = capacity(
            SizingCase(profile, lengths, Tier("any"), seed=index + 1), requests=8000
        ).max_rps
    except SimulationError:
        return None
    log = _run(profile, lengths, Tier("any"), load * saturated, [seed, index, 1], 64_000).requests
    ttft, tbt = (float(np.nanquantile(values, attainment)) for values in (log.ttft_s, log.tbt_s))
    tier = Tier(
        "slo",
        ttft_s=ttft * (room if side == "tbt" else 1.0),
        tbt_s=tbt * (room if side == "ttft" else 1.0),
        attainment=attainment,
    )
    words = (
        f"{profile.kind} {profile.model} on {profile.tp} x {profile.gpu}, isl {isl:.0f}, "
        f"osl {osl:.0f}, spread {spread:g}, load {load:.2f}, {side}"
    )
    return Case(profile, lengths, tier, words)


def measure_case(case: Case, seed: int, requests: int) -> Row:
    """Return the sized rate, the rate of a long simulation, and the attainment at the first."""
    begun = time.perf_counter()
    sized = capacity(SizingCase(case.profile, case.lengths, case.tier, seed=seed))
    seconds = time.perf_counter() - begun
    true, run = largest_met(case, sized.max_rps, [seed, 2], requests)
    at_sized = float(meets_slo(run).mean())
    return {
        **closed_form_figures(case, true, sized.max_rps, run),
        "case": case.words,
        "percentile": 100 * case.tier.attainment,
        "bound_by": sized.bound_by,
        "sized_rps": sized.max_rps,
        "simulated_rps": true,
        "rate_error": sized.max_rps / true - 1.0,
        "shortfall_points": 100 * max(0.0, case.tier.attainment - at_sized),
        "sizing_seconds": seconds,
    }


def closed_form_figures(case: Case, true_rps: float, rate: float, run: SimulationResult) -> Row:
    """Return the figures of the closed forms, and their errors against ``run`` at ``rate``."""
    work = Workload(*case.lengths)
    most = saturated_rps(case.profile, work)
    seen = evaluate_pool(case.profile, work.at(min(rate, 0.999 * most)))
    share, log = case.tier.attainment, run.requests
    pairs = ((seen.ttft, log.ttft_s), (seen.tbt, log.tbt_s))
    errors = [law.quantile(share) / float(np.nanquantile(v, share)) - 1 for law, v in pairs]
    try:
        guess = size_pool(case.profile, work, case.tier).max_rps
    except SimulationError:
        guess = 0.0
    return {
        "load": true_rps / most,
        "closed_rps": guess,
        "closed_error": guess / true_rps - 1.0,
        "closed_ttft_error": errors[0],
        "closed_tbt_error": errors[1],
    }


def errors_after_changes(case: Case, seed: int) -> list[Row]:
    """Return the errors of pools' capacity factors after changes of limits or of speed."""

    def limits(times: float) -> Tier:
        ttft_s, tbt_s = (None if at is None else times * at
                         for at in (case.tier.ttft_s, case.tier.tbt_s))  # fmt: skip
        return replace(case.tier, ttft_s=ttft_s, tbt_s=tbt_s)

    def simulated_and_closed_rps(profile: Profile, tier: Tier) -> tuple[FloatArray, FloatArray]:
        curve = pool_curve(SizingCase(profile, case.lengths, tier, seed=seed))
        work, n = Workload(*case.lengths), np.array(POOLS) - 1
        closed = [size_pool(profile, work, one, explain=False).max_rps
                  for one in (tier, replace(tier, ttft_s=None))]  # fmt: skip
        return curve.max_rps[n], np.array(closed)

    before, closed_before = simulated_and_closed_rps(case.profile, case.tier)
    rows: list[Row] = []
    for times, slower in CHANGES:
        try:
            after, closed_after = simulated_and_closed_rps(
                scale_profile_times(case.profile, slower), limits(times)
            )
        except SimulationError:
            continue
        factors = closed_factors(closed_before, closed_after)
        simulated = after / before
        rows += [
            {"instances": n, "limits_times": times, "slower": slower,
             "error": float(factors[n - 1] / true - 1.0),
             "alone_error": float(factors[0] / true - 1.0)}
            for n, true in zip(POOLS, simulated.tolist(), strict=True)
        ]  # fmt: skip
    return rows


def by_pool(rows: list[Row]) -> Row:
    """Return median and 95th percentile of the errors of changed capacities, by pool size."""
    return {
        f"changed_{name}": {
            str(n): np.quantile(
                [abs(row[key]) for row in rows if row["instances"] == n], (0.5, 0.95)
            ).tolist()
            for n in POOLS
        }
        for name, key in (("pool_error", "error"), ("alone_error", "alone_error"))
    }


def largest_met(
    case: Case, guess: float, seed: list[int], requests: int
) -> tuple[float, SimulationResult]:
    """Return the largest rate that meets the tier, and the run at ``guess``."""

    def attainment_at(rate: float) -> float:
        run = _run(case.profile, case.lengths, case.tier, rate, seed, requests)
        return float(meets_slo(run).mean())

    run = _run(case.profile, case.lengths, case.tier, guess, seed, requests)
    low = high = guess
    if float(meets_slo(run).mean()) >= case.tier.attainment:
        high *= STEP
        while attainment_at(high) >= case.tier.attainment:
            low, high = high, high * STEP
    else:
        low /= STEP
        while attainment_at(low) < case.tier.attainment:
            low, high = low / STEP, low
    while high - low > PRECISION * low:
        rate = (low + high) / 2
        if attainment_at(rate) >= case.tier.attainment:
            low = rate
        else:
            high = rate
    return low, run


def _sample(isl: float, osl: float, spread: float, n: int, rng: np.random.Generator) -> Lengths:
    def one(median: float, most: int) -> Int32Array:
        values = median * np.exp(spread * rng.standard_normal(n))
        return np.clip(np.rint(values), 1, most).astype(np.int32)

    return one(isl, 16_384), one(osl, 2048)


def _run(
    profile: Profile, lengths: Lengths, tier: Tier, rate: float, seed: list[int], requests: int
) -> SimulationResult:
    """Simulate one instance under Poisson arrivals.

    All rates have the same requests and the same gaps, scaled.
    """
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(lengths[0]), size=requests)
    arrival = np.cumsum(rng.exponential(size=requests)) / rate
    codes = np.zeros(requests, np.int16)
    trace = Trace(
        arrival, lengths[0][rows], lengths[1][rows], codes, codes, codes,
        (profile.model,), ("",), (tier.name,), 0.0, "synthesised: Poisson",
    )  # fmt: skip
    gpu = GpuSpec(profile.gpu, 0.0, 0.0, 0.0, 0.0, Provenance("assumed", "bench: no power asked"))
    fleet = Fleet(
        tiers=(tier,),
        regions=(Region("", 0.0, 1.0),),
        pools=(Pool(profile.model, "", profile, gpu, 1, 1, 1, 0.0, 0.0),),
        latency_s=np.zeros((1, 1)),
    )
    until_s = float(arrival[-1]) + 1.0
    flat = Static([1], interval_s=until_s)
    return simulate(trace, fleet, flat, seed=seed[-1], duration_s=until_s, interval_s=until_s)


def linear_and_roofline_profiles() -> list[Profile]:
    """Return the built-in linear profiles, and about as many roofline profiles."""
    linear: list[Profile] = list(profiles().values())
    made: list[Profile] = []
    for model, gpu, tp in ROOFLINES:
        arrangement = Arrangement(tp=tp)
        kv = capacity_tokens(shape(model), gpus()[gpu], arrangement, 4096, MAX_BATCH_TOKENS)
        made.append(
            roofline_profile(
                shape(model), gpus()[gpu], arrangement, efficiencies(),
                EngineSettings(MAX_BATCH, MAX_BATCH_TOKENS, kv),
            )
        )  # fmt: skip
    return linear + made * (len(linear) // len(made))


def summary(rows: list[Row]) -> Row:
    errors = np.abs([row["rate_error"] for row in rows])
    return {
        "median_rate_error": float(np.median(errors)),
        "p95_rate_error": float(np.quantile(errors, 0.95)),
        "worst_shortfall_points": max(row["shortfall_points"] for row in rows),
        "cases": len(rows),
    }


def by_load(rows: list[Row]) -> Row:
    """Return the errors of the closed forms by the load of the instance at its size."""
    by_range: Row = {"closed_rate_error": {}, "closed_latency_error": {}}
    for low, high in zip((0.0, *LOADS), (*LOADS, np.inf), strict=True):
        in_band = [row for row in rows if low < row["load"] <= high]
        if not in_band:
            continue
        name = f"{low:.0%} to {high:.0%}" if high < np.inf else f"above {low:.0%}"
        rates = np.abs([row["closed_error"] for row in in_band])
        late = np.abs(
            [row[f"closed_{latency}_error"] for row in in_band for latency in ("ttft", "tbt")]
        )
        for key, errors in (("closed_rate_error", rates), ("closed_latency_error", late)):
            by_range[key][name] = {
                "median": float(np.nanmedian(errors)),
                "p95": float(np.nanquantile(errors, 0.95)),
                "cases": len(in_band),
            }
        for latency in ("ttft", "tbt"):
            signed = [row[f"closed_{latency}_error"] for row in in_band]
            by_range["closed_latency_error"][name][f"{latency}_bias"] = float(np.nanmedian(signed))
    return by_range


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.sizing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratios", type=int, default=10, help="services whose P/D ratio is judged")
    parser.add_argument("--changes", type=int, default=20, help="cases with changed limits")
    parser.add_argument("--requests", type=int, default=100_000, help="of each long simulation")
    parser.add_argument("--no-bursts", action="store_true", help="no plans on bursty traffic")
    options = parser.parse_args()
    if options.cases < 1 or options.requests < 1:
        parser.error("--cases and --requests must be at least 1.")
    known, index = linear_and_roofline_profiles(), 0
    rows: list[Row] = []
    changes: list[Row] = []
    while len(rows) < options.cases:
        case = draw_case(index, options.seed, known)
        index += 1
        if case is None:
            continue
        row = measure_case(case, 1000 * options.seed + index, options.requests)
        rows.append(row)
        if len(rows) <= options.changes:
            changes += errors_after_changes(case, index)
        print(
            f"{len(rows):3} {row['case']}: sized {row['sized_rps']:.3f}/s, simulated "
            f"{row['simulated_rps']:.3f}/s ({row['rate_error']:+.1%}), p{row['percentile']:.0f}, "
            f"short by {row['shortfall_points']:.2f} points, bound by {row['bound_by']}, "
            f"{row['sizing_seconds']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    ratios = pd_cases(known, options.ratios, options.seed)
    result = {**summary(rows), **by_load(rows)}
    result |= by_pool(changes) if changes else {}
    result["pd_within_one_step"] = sum(row["steps"] <= 1 for row in ratios)
    result["pd_cases"] = len(ratios)
    bursts = [] if options.no_bursts else measured_all()
    if bursts:
        result |= figures(bursts)
    everything = {**result, "rows": rows, "ratios": ratios, "bursts": bursts, "changes": changes}
    print(json.dumps(everything) if options.json else json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
