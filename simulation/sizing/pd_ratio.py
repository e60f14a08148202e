"""Size every ratio of prefill to decode instances (methods.md D2), and find the best one.

The closed forms of ``batch_queue`` find the largest rate of the prefill pool within the TTFT limit.
For the decode pool they use the TBT limit and include the KV transfer. Both pools together sustain
the smaller rate, or a little less if both are near their limits. ``pd_simulation`` then simulates
the real pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import Profile
from simulation.sizing.batch_queue import Evaluation, evaluate_pool
from simulation.sizing.batch_sizing import PoolSize, size_pool
from simulation.sizing.latencies import transfer_time
from simulation.sizing.spread import sum_of
from simulation.sizing.workload import Burstiness, Workload
from simulation.trace import Prefixes

PRECISION = 0.01  # relative precision of a rate
JOINT = 6  # halvings of the rate if both pools are near their limits
NEAR = 0.8  # lower end of that search, as a share of the smaller rate


@dataclass(frozen=True, slots=True, eq=False)
class PdService:
    """One disaggregated model: prefill and decode profiles, workload, tier and link.

    The two profiles may have different GPU types. With ``blocks`` of the workload's prompts, which
    keep their order, prefill instances cache shared prefixes. The closed forms ignore this cache.
    """

    prefill: Profile
    decode: Profile
    workload: Workload
    tier: Tier
    link: KvLink
    batching: str = "chunked"
    blocks: Prefixes | None = None
    burstiness: Burstiness = 1.0  # in simulations; closed forms use that of the workload

    @property
    def tokens(self) -> float:
        """Return the input and output tokens of a mean request."""
        return self.workload.facts.mean_isl + self.workload.facts.mean_osl


@dataclass(frozen=True, slots=True)
class RatioCapacity:
    """Capacity of ``prefill`` and ``decode`` instances together within the SLO."""

    prefill: int
    decode: int
    max_rps: float
    max_tps: float  # input and output tokens/s at that rate
    bound_by: str  # ttft, tbt, e2e, memory, link or throughput; slo: even the smallest rate misses
    side: str  # prefill or decode: the pool to enlarge
    ttft_s: float  # quantile at the tier's attainment, at that rate
    tbt_s: float
    transfer_s: float  # mean KV transfer, including the wait for the link

    @property
    def share(self) -> float:
        """Return the share of instances that prefill."""
        return self.prefill / (self.prefill + self.decode)


@dataclass(frozen=True, slots=True)
class BestRatio:
    """The ratio with the highest capacity per GPU.

    The other fields are the lost shares of capacity per GPU with one prefill instance fewer or
    more.
    """

    ratio: RatioCapacity
    # Capacity lost with one instance moved to decode; None: no such ratio.
    fewer_prefill: float | None
    more_prefill: float | None


def all_splits(instances: int) -> list[tuple[int, int]]:
    """Return all ways to divide ``instances``, at least one to each role.

    Raises SimulationError for fewer than 2 instances.
    """
    if instances < 2:
        raise SimulationError("Prefill and decode apart need at least 2 instances.")
    return [(p, instances - p) for p in range(1, instances)]


def ratios(service: PdService, pairs: Iterable[tuple[int, int]]) -> list[RatioCapacity]:
    """Return the capacity of every pair (prefill, decode instances) by the closed forms."""
    return [closed_form_ratio(service, p, d) for p, d in pairs]


def closed_form_ratio(service: PdService, prefill: int, decode: int) -> RatioCapacity:
    """Return the capacity of one ratio by the closed forms.

    It is 0 requests/s if even the smallest rate misses the tier.
    """
    try:
        first = _sized_side(service, "prefill", prefill, prefill)
        second = _sized_side(service, "decode", decode, prefill)
    except SimulationError:
        nan = float("nan")
        return RatioCapacity(prefill, decode, 0.0, 0.0, "slo", "", nan, nan, nan)
    first_binds = first.max_rps <= second.max_rps
    bound = first.bound_by if first_binds else second.bound_by
    high = min(first.max_rps, second.max_rps)
    if not first_binds and _link_binds(service, decode, high):
        bound = "link"
    # If both pools are near their limits, they miss it together at a lower rate: bisect.
    rate, low = high, NEAR * high
    for _ in range(JOINT):
        if _joint_attainment(service, prefill, decode, rate) >= service.tier.attainment:
            low = rate
        else:
            high = rate
        if low == high:
            break
        rate = (low + high) / 2
    ttft, tbt = _evaluate_sides(service, prefill, decode, low)
    share = service.tier.attainment
    return RatioCapacity(
        prefill=prefill,
        decode=decode,
        max_rps=low,
        max_tps=low * service.tokens,
        bound_by=bound,
        side="prefill" if first_binds else "decode",
        ttft_s=ttft.ttft.quantile(share),
        tbt_s=tbt.tbt.quantile(share),
        transfer_s=transfer_time(service.link, service.workload.at(low), prefill).mean,
    )


def _link_binds(service: PdService, decode: int, rate: float) -> bool:
    """Return whether the decode pool would sustain more if KV transfers took no time."""
    arriving = service.workload.at((1.0 + 5 * PRECISION) * rate)
    free = evaluate_pool(service.decode, arriving, role="decode", instances=decode)
    return free.attained(service.tier) >= service.tier.attainment


def best_ratio(ratios: Sequence[RatioCapacity], service: PdService) -> BestRatio:
    """Return the ratio with the highest capacity per GPU.

    Raises SimulationError if no ratio has any capacity.
    """
    rows = sorted(ratios, key=lambda ratio: ratio.prefill)
    tps_per_gpu = [per_gpu(service, ratio) for ratio in rows]
    best = int(np.argmax(tps_per_gpu))
    if tps_per_gpu[best] <= 0.0:
        raise SimulationError(
            f"No ratio of {service.prefill.model} meets tier {service.tier.name}, even at a "
            "trickle. Use faster profiles or looser limits."
        )

    def lost(other: int) -> float | None:
        """Return the lost share of capacity per GPU with the ratio at index ``other``."""
        return 1.0 - tps_per_gpu[other] / tps_per_gpu[best] if 0 <= other < len(rows) else None

    return BestRatio(rows[best], lost(best - 1), lost(best + 1))


def per_gpu(service: PdService, ratio: RatioCapacity) -> float:
    """Return the capacity in tokens/s per GPU."""
    gpus = ratio.prefill * service.prefill.tp + ratio.decode * service.decode.tp
    return ratio.max_tps / gpus


def best_split(service: PdService, instances: int) -> RatioCapacity:
    """Return the best ratio of ``instances`` by the closed forms, found by a binary search.

    More prefill instances serve more prompts and leave fewer instances for decode. The best ratio
    is where the two capacities cross.
    """
    low, high = 1, instances - 1
    try:
        while low < high:
            middle = (low + high) // 2
            first, second = (
                _sized_side(service, role, n, middle, explain=False).max_rps
                for role, n in (("prefill", middle), ("decode", instances - middle))
            )
            if first <= second:
                low = middle + 1
            else:
                high = middle
    except SimulationError:
        return closed_form_ratio(service, 1, instances - 1)
    neighbours = [
        closed_form_ratio(service, p, instances - p) for p in (low - 1, low) if 1 <= p < instances
    ]
    return max(neighbours, key=lambda ratio: ratio.max_tps)


def _sized_side(
    service: PdService, role: str, instances: int, senders: int, *, explain: bool = True
) -> PoolSize:
    """Return the largest rate of one role's pool alone, to half of PRECISION.

    ``senders`` is the number of prefill instances whose links feed the decode pool. A prefill pool
    has no link.
    """
    return size_pool(
        service.prefill if role == "prefill" else service.decode,
        service.workload,
        service.tier,
        role=role,
        instances=instances,
        link=service.link if role == "decode" else None,
        senders=senders,
        precision=PRECISION / 2,
        explain=explain,
    )


def _evaluate_sides(
    service: PdService, prefill: int, decode: int, rate: float
) -> tuple[Evaluation, Evaluation]:
    """Return the evaluations of the prefill and the decode pool at ``rate`` requests/s."""
    arriving = service.workload.at(rate)
    return (
        evaluate_pool(service.prefill, arriving, role="prefill", instances=prefill),
        evaluate_pool(service.decode, arriving, role="decode", instances=decode, link=service.link,
                 senders=prefill),
    )  # fmt: skip


def _joint_attainment(service: PdService, prefill: int, decode: int, rate: float) -> float:
    """Return the share of requests within every limit at ``rate`` requests/s."""
    first, second = _evaluate_sides(service, prefill, decode, rate)
    if not first.stable or not second.stable:
        return 0.0
    tier = service.tier
    ttft_and_tbt = first.ttft.within(tier.ttft_s) * second.tbt.within(tier.tbt_s)
    if tier.e2e_s is None:
        return ttft_and_tbt
    return min(ttft_and_tbt, sum_of(first.ttft, second.e2e).within(tier.e2e_s))
