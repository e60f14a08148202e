"""Find the capacity of one instance: the largest request rate that meets a tier's SLO."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Routing, Tier
from simulation.metrics import meets_slo
from simulation.percentiles import quantile
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.curves import linear
from simulation.performance.profile import Profile
from simulation.results import COMPLETED, RequestLog, SimulationResult
from simulation.sizing.queueing import decode_bound, largest_rate
from simulation.sizing.trial import (
    Pools,
    RequestDraws,
    Trial,
    extrapolated_share,
    pool_of,
    with_ample_memory,
)
from simulation.sizing.workload import Burstiness
from simulation.trace import Prefixes

Lengths = tuple[npt.ArrayLike, npt.ArrayLike]

PRECISION = 0.01  # relative precision of the rate
REQUESTS = 32_000  # per simulated rate; the second draw has twice as many
MIN_LOAD = 1e-4  # share of the saturated rate at which requests hardly ever meet
# To simulate decode alone, prefill instances (senders) that take almost no time are put before it.
SENDERS = 16  # per decode instance
INSTANT_S = 1e-6  # prefill time, seconds
NO_LIMIT = 1 << 30  # token budget and KV capacity


@dataclass(frozen=True, slots=True)
class Capacity:
    """Largest rate of one instance that meets a tier's SLO, and the latencies there."""

    max_rps: float
    input_tps: float  # input tokens/s at that rate
    ttft_s: float  # quantile at the tier's attainment, at that rate
    tbt_s: float  # same quantile; NaN if every answer has one token
    bound_by: str  # ttft, tbt, e2e, memory or throughput
    attainment: float  # SLO attainment, measured at that rate
    outside: float = 0.0  # share of iterations beyond the profile's measured range, at that rate


@dataclass(frozen=True, slots=True, eq=False)
class SizingCase:
    """What a capacity is measured for: a profile, the requests, and the tier that they must meet.

    ``lengths`` is a sample of (input tokens, output tokens), drawn jointly. If ``blocks`` has the
    prompt blocks, it is a sequence of requests, and shared blocks are cached. If ``blocks`` counts
    cached tokens, they are drawn with the lengths. ``burstiness`` 1 is Poisson arrivals. Another
    number gives gamma-distributed gaps with that squared coefficient of variation, a pattern gives
    arrivals resampled from a trace. A deferrable tier is sized as if its requests had been
    released. For a ``prefill`` instance only TTFT counts. For a ``decode`` instance only TBT
    counts, including the KV transfer over ``link``.
    """

    profile: Profile
    lengths: Lengths
    tier: Tier
    seed: int = 0
    role: str = "both"
    link: KvLink | None = None
    batching: str = "chunked"
    burstiness: Burstiness = 1.0
    routing: Routing | None = None
    blocks: Prefixes | None = None

    @property
    def cached_blocks(self) -> Prefixes | None:
        """Return the blocks that instances cache; decode instances cache none."""
        return None if self.role == "decode" else self.blocks


def capacity(case: SizingCase, *, requests: int = REQUESTS) -> Capacity:
    """Return the largest rate at which one instance meets the tier, by simulation.

    Bisection finds the rate to 1%. Runs share their random numbers: the same requests and unit
    gaps, stretched to the rate. A second draw of twice as many requests must meet the tier too, so
    that a lucky draw near saturation does not set the size. The result never exceeds the saturated
    throughput, measured with all requests queued at the start.

    Raises SimulationError if even the smallest rate misses the SLO.
    """
    profile = case.profile
    trial = case_trial(case, 1, case.seed, requests)
    pools = trial.pools
    saturated = trial.saturated_rps()
    low, high = MIN_LOAD * saturated, saturated
    at_low = trial.at(low)
    if not trial.meets_tier(at_low):
        raise SimulationError(_infeasible_message(profile, trial.tier, at_low))
    at_high = trial.at(high)
    if trial.meets_tier(at_high) and trial.second_draw_meets_tier(high):
        # Counterfactual: if unlimited memory raises the throughput, memory is the constraint.
        ample_rps = trial.saturated_rps(with_ample_memory(pools))
        bound = "memory" if ample_rps > (1.0 + 5 * PRECISION) * saturated else "throughput"
        return _capacity_at(trial, high, at_high, bound)
    # The fluid model's limit is a good first guess of where the SLO breaks.
    guess, _ = largest_rate(profile, float(trial.isl.mean()), float(trial.osl.mean()))
    rate = guess if low < guess < high else (low + high) / 2
    while high - low > PRECISION * high:
        run = trial.at(rate)
        if trial.meets_tier(run) and trial.second_draw_meets_tier(rate):
            low, at_low = rate, run
        else:
            high, at_high = rate, run
        rate = (low + high) / 2
    return _capacity_at(trial, low, at_low, _binding_limit(case, trial, high, at_high))


def _binding_limit(case: SizingCase, trial: Trial, rate: float, run: SimulationResult) -> str:
    """Return what binds at ``rate``, which misses the tier; ``run`` is the first draw there."""
    # If the first draw meets the limits at this rate, only the second shows which one is missed.
    if trial.meets_tier(run):
        run = trial.at(rate, draw=1)
    ample = with_ample_memory(trial.pools)
    if trial.meets_tier(trial.at(rate, ample)) and trial.second_draw_meets_tier(rate, ample):
        return "memory"
    bound = most_missed_limit(run.requests, trial.tier)
    if case.role == "decode":
        return decode_bound(bound, case.profile, trial.tier, *case.lengths)
    return bound


def routing_for(role: str, routing: Routing | None) -> Routing:
    """Return the routing for a trial of ``role``; None: the default of the simulator.

    For decode, requests go to the prefill instances (senders) in turn. These are always equally
    idle, so routing by load would send everything from the first one.
    """
    chosen = routing or Routing()
    return replace(chosen, instance="round-robin") if role == "decode" else chosen


def case_trial(case: SizingCase, instances: int, seed: int, requests: int) -> Trial:
    """Return the trial of ``instances`` instances in the role of the case.

    Its simulations have about ``requests`` requests, drawn with ``seed``.
    """
    pools, lengths, tier = isolated_role(case, instances)
    draws = RequestDraws(
        lengths, seed=seed, requests=requests, burstiness=case.burstiness, blocks=case.cached_blocks
    )
    return Trial(pools, draws, tier, routing_for(case.role, case.routing))


def isolated_role(case: SizingCase, instances: int = 1) -> tuple[Pools, Lengths, Tier]:
    """Return pools, request lengths and tier limits that test the role of ``case`` alone.

    A prefill instance finishes a request at its first token, so its requests have one output token.
    A decode instance receives from prefill instances that take almost no time. Each of these sends
    over its own ``link``.
    """
    profile, lengths, tier, batching = case.profile, case.lengths, case.tier, case.batching
    options: Any = {"batching": batching, "prefix_cache": case.cached_blocks is not None}
    if case.role == "both":
        return (pool_of(profile, instances, **options),), lengths, tier
    if case.role == "prefill":
        isl, _ = lengths
        one_token_each = np.ones(len(np.asarray(isl)), np.int32)
        only_ttft = replace(tier, tbt_s=None, e2e_s=None)
        return (pool_of(profile, instances, **options),), (isl, one_token_each), only_ttft
    instant_prefill = adjust_profile(
        profile,
        curve=linear(0.0, 0.0, INSTANT_S, 0.0),
        max_batch_tokens=NO_LIMIT,
        kv_capacity_tokens=NO_LIMIT,
    )
    own_link = replace(case.link or KvLink(0.0, 1.0), shared_bytes_s=float("inf"))
    pools = (
        pool_of(instant_prefill, SENDERS * instances, role="prefill", link=own_link),
        pool_of(profile, instances, role="decode", batching=batching),
    )
    return pools, lengths, replace(tier, ttft_s=None, e2e_s=None)


def _capacity_at(trial: Trial, rate: float, run: SimulationResult, bound_by: str) -> Capacity:
    """Return the capacity ``rate`` (requests/s) with the latencies of ``run`` at that rate."""
    log, tier = run.requests, trial.tier
    return Capacity(
        max_rps=rate,
        input_tps=rate * float(trial.isl.mean()),
        ttft_s=quantile(log.ttft_s, tier.attainment),
        tbt_s=quantile(log.tbt_s, tier.attainment),
        bound_by=bound_by,
        attainment=float(meets_slo(run).mean()),
        outside=extrapolated_share(run),
    )


class MissedLimit(NamedTuple):
    """A limit of a tier, and the share of requests beyond it."""

    miss_share: float
    limit_s: float


def miss_shares(log: RequestLog, tier: Tier) -> dict[str, MissedLimit]:
    """Return the limits of the tier by name: "ttft", "tbt" and "e2e", as far as it has them."""
    limits = {
        "ttft": (log.ttft_s, tier.ttft_s),
        "tbt": (log.tbt_s, tier.tbt_s),
        "e2e": (log.e2e_s, tier.e2e_s),
    }
    return {
        name: MissedLimit(float((values > limit).mean()), limit)
        for name, (values, limit) in limits.items()
        if limit is not None
    }


def most_missed_limit(log: RequestLog, tier: Tier) -> str:
    """Return the limit that the most requests exceed; "throughput" if none is exceeded."""
    limits = miss_shares(log, tier)
    worst = max(limits, key=lambda name: limits[name].miss_share, default="throughput")
    return worst if limits and limits[worst].miss_share > 0 else "throughput"


def _infeasible_message(profile: Profile, tier: Tier, run: SimulationResult) -> str:
    """Return the message that even the smallest rate misses the tier; ``run`` is at that rate."""
    log = run.requests
    name = most_missed_limit(log, tier)
    pool_words = f"{profile.model} on {profile.tp} x {profile.gpu}"
    if name == "throughput":
        lost = float((log.outcome != COMPLETED).mean())
        return (
            f"{pool_words} cannot meet tier {tier.name}: {lost:.1%} of requests need more than its "
            f"{profile.kv_capacity_tokens} KV tokens. Use more GPUs per replica."
        )
    values = getattr(log, f"{name}_s")
    limit_s = miss_shares(log, tier)[name].limit_s
    label = "TPOT" if name == "tbt" else name.upper()
    return (
        f"{pool_words} cannot meet tier {tier.name}'s {label} limit of {limit_s * 1000:.0f} "
        f"ms even at batch 1: {tier.attainment:.0%} of requests take up to "
        f"{quantile(values, tier.attainment) * 1000:.0f} ms. Use a faster profile or a looser "
        "limit."
    )
