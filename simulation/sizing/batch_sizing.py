"""Find the largest rate within a tier's SLO by the closed forms of ``batch_queue``.

This takes milliseconds. ``capacity`` takes tenths of a second and uses simulation.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.profile import Profile
from simulation.sizing.batch_queue import (
    ONE_REPLICA,
    Evaluation,
    PoolShape,
    evaluate_pool,
    saturated_rps,
)
from simulation.sizing.queueing import decode_bound
from simulation.sizing.workload import Workload

PRECISION = 0.002  # relative precision of the rate
# Shares of the saturated rate: beyond the first, queues are too long; at the second, requests
# hardly ever meet.
MAX_LOAD, MIN_LOAD = 0.995, 1e-4
MEMORY_FACTOR = 1_000  # factor on the KV memory, to test whether memory is the binding constraint

Evaluated = Callable[[float], Evaluation]  # returns the evaluation at a rate in requests/s


@dataclass(frozen=True, slots=True, eq=False)
class PoolSize:
    """The largest rate, its binding constraint, and the evaluation at that rate.

    ``bound_by`` is ttft, tbt, e2e, memory or throughput.
    """

    max_rps: float
    bound_by: str
    at: Evaluation


def size_pool(
    profile: Profile,
    workload: Workload,
    tier: Tier,
    pool: PoolShape = ONE_REPLICA,
    *,
    precision: float = PRECISION,
    explain: bool = True,
) -> PoolSize:
    """Return the largest requests/s of ``pool`` within ``tier``, to the relative ``precision``.

    Only the tier limits that apply to the role count. Without ``explain`` the binding constraint is
    left empty. Raises SimulationError if even the smallest rate misses the SLO.
    """

    def evaluated(rate: float) -> Evaluation:
        """Return the evaluation of the pool at ``rate`` requests/s."""
        return evaluate_pool(profile, workload.at(rate), pool)

    upper = saturated_rps(profile, workload, pool)
    rates = largest_rate(evaluated, tier, upper, precision)
    if rates is None:
        raise SimulationError(
            f"{profile.model} on {profile.tp} x {profile.gpu} cannot meet tier {tier.name} even "
            "at batch 1. Use a faster profile or a looser limit."
        )
    met_rps, missed_rps = rates
    if not explain:
        return PoolSize(met_rps, "", evaluated(met_rps))
    missed = "throughput"
    if missed_rps < MAX_LOAD * upper:
        missed = most_missed_limit(evaluated(missed_rps), tier)
    bound = binding_limit(missed, profile, workload, tier, missed_rps, pool)
    return PoolSize(met_rps, bound, evaluated(met_rps))


def largest_pool_rate(
    profile: Profile, workload: Workload, tier: Tier, pool: PoolShape, precision: float
) -> float:
    """Return the largest requests/s of ``pool`` within ``tier``, as ``size_pool`` finds it."""
    return size_pool(profile, workload, tier, pool, explain=False, precision=precision).max_rps


def binding_limit(
    missed: str, profile: Profile, workload: Workload, tier: Tier, rate: float, pool: PoolShape
) -> str:
    """Return the binding constraint of ``pool``, which misses the tier at ``rate`` requests/s.

    It is "memory" if more KV memory would allow a higher rate, else the limit ``missed``.
    """
    if pool.role == "decode":
        missed = decode_bound(missed, profile, tier, workload.isl, workload.osl)
    ample = adjust_profile(profile, kv_capacity_tokens=MEMORY_FACTOR * profile.kv_capacity_tokens)
    with_ample = evaluate_pool(ample, workload.at(1.02 * rate), pool)
    return "memory" if with_ample.attainment(tier) >= tier.attainment else missed


def largest_rate(
    evaluated: Evaluated, tier: Tier, limit_rps: float, precision: float = PRECISION
) -> tuple[float, float] | None:
    """Return the largest rate that meets ``tier``, and the smallest one found that does not.

    Both are requests/s. They are equal if the saturated rate ``limit_rps`` is the limit.
    ``evaluated(rate)`` returns the evaluation at a rate. None: even the smallest rate misses the
    tier.
    """
    low, high = MIN_LOAD * limit_rps, MAX_LOAD * limit_rps
    if evaluated(low).attainment(tier) < tier.attainment:
        return None
    if evaluated(high).attainment(tier) >= tier.attainment:
        return high, high
    while high - low > precision * high:
        rate = (low + high) / 2
        if evaluated(rate).attainment(tier) >= tier.attainment:
            low = rate
        else:
            high = rate
    return low, high


def most_missed_limit(evaluation: Evaluation, tier: Tier) -> str:
    """Return the limit that the most requests exceed; "throughput" if the queue is not stable."""
    if not evaluation.stable:
        return "throughput"
    share_within = {
        "ttft": evaluation.ttft.share_within(tier.ttft_s),
        "tbt": evaluation.tbt.share_within(tier.tbt_s),
        "e2e": evaluation.e2e.share_within(tier.e2e_s),
    }
    return min(share_within, key=share_within.__getitem__)
