"""Size every ratio of prefill to decode instances (methods.md D2), and find the best one.

The closed forms of ``batch_queue`` find the largest rate of the prefill pool within the TTFT limit.
For the decode pool they use the TBT limit and include the KV transfer. Both pools together sustain
the smaller rate, or a little less if both are near their limits. ``pd_simulation`` then simulates
the real pools.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from simulation.bisection import bisect_first
from simulation.digest import cached_by_value
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import Profile
from simulation.sizing.batch_queue import Evaluation, PoolShape, evaluate_pool, saturated_rps
from simulation.sizing.batch_sizing import (
    MAX_LOAD,
    Evaluated,
    binding_limit,
    largest_rate,
    most_missed_limit,
)
from simulation.sizing.latencies import transfer_time
from simulation.sizing.spread import sum_of
from simulation.sizing.workload import Burstiness, Workload
from simulation.trace import Prefixes

PRECISION = 0.01  # relative precision of a rate
# If both pools are near their limits: halvings of the range of rates, and its lower end as a share
# of the smaller rate.
JOINT_STEPS, JOINT_LOWER_SHARE = 6, 0.8
CACHED_SERVICES = 8  # services whose closed forms are cached per process


@dataclass(frozen=True, slots=True, eq=False)
class PdService:
    """A disaggregated model to size: prefill and decode profiles, workload, tier and link.

    The two profiles may have different GPU types. ``blocks`` are those of the workload's prompts,
    which keep their order: prefill instances then cache shared prefixes. The closed forms ignore
    this cache.
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


@dataclass(frozen=True, slots=True)
class BestRatio:
    """The ratio with the highest capacity per GPU, and what is lost with the ratios next to it.

    A loss is a share of the capacity per GPU; None: there is no such ratio.
    """

    ratio: RatioCapacity
    fewer_prefill: float | None  # loss with the next smaller number of prefill instances
    more_prefill: float | None  # loss with the next larger one


def all_splits(instances: int) -> list[tuple[int, int]]:
    """Return all ways to divide ``instances``, at least one to each role."""
    return [(p, instances - p) for p in range(1, instances)]


def ratios(service: PdService, pairs: Iterable[tuple[int, int]]) -> list[RatioCapacity]:
    """Return the capacity of every pair (prefill, decode instances) by the closed forms."""
    return [closed_form_ratio(service, p, d) for p, d in pairs]


@dataclass(frozen=True, slots=True)
class SideLimit:
    """The largest rate at which one pool meets the tier, in requests/s."""

    rate: float
    missing_rate: float  # a slightly higher rate, which misses the tier
    missed: str  # limit missed at that rate, throughput, or slo if every rate misses it


class ClosedForms:
    """Closed forms of a service's two pools; each rate is evaluated once."""

    def __init__(self, service: PdService) -> None:
        self.service = service
        self.prefill = _prefill_pool(service)
        self.decode = cache(self._decode)
        self.prefill_limit = cache(self._prefill_limit)
        self.decode_limit = cache(self._decode_limit)
        self.rate = cache(self._rate)

    def _decode(self, instances: int, senders: int, rate: float) -> Evaluation:
        """Return the evaluation of ``instances`` decode instances at ``rate`` requests/s.

        ``senders`` prefill instances send them KV caches.
        """
        pool = PoolShape("decode", instances, self.service.link, senders)
        return evaluate_pool(self.service.decode, self.service.workload.at(rate), pool)

    def _prefill_limit(self, instances: int) -> SideLimit:
        """Return the largest rate of a prefill pool alone."""
        work, profile = self.service.workload, self.service.prefill
        upper = saturated_rps(profile, work, PoolShape("prefill", instances))
        return self._limit(lambda rate: self.prefill(instances, rate), upper, upper)

    def _decode_limit(self, prefill: int, decode: int) -> SideLimit:
        """Return the largest rate of a decode pool, at most that of its prefill pool."""
        service = self.service
        pool = PoolShape("decode", decode, service.link, prefill)
        upper = saturated_rps(service.decode, service.workload, pool)
        most = min(upper, self.prefill_limit(prefill).rate / MAX_LOAD)
        return self._limit(lambda rate: self.decode(decode, prefill, rate), upper, most)

    def _limit(self, evaluated: Evaluated, upper: float, most: float) -> SideLimit:
        """Return the largest rate of a pool within the tier, at most ``most``.

        ``evaluated(rate)`` returns its evaluation, and ``upper`` is its saturated rate. Rates are
        in requests/s.
        """
        tier = self.service.tier
        largest = largest_rate(evaluated, tier, most, PRECISION / 2)
        if largest is None:
            return SideLimit(0.0, 0.0, "slo")
        low, high = largest
        saturated = high >= MAX_LOAD * upper
        return SideLimit(
            low, high, "throughput" if saturated else most_missed_limit(evaluated(high), tier)
        )

    def decode_keeps_up(self, prefill: int, decode: int) -> bool:
        """Return whether the decode pool meets the tier at the prefill pool's largest rate."""
        evaluation = self.decode(decode, prefill, self.prefill_limit(prefill).rate)
        return evaluation.attainment(self.service.tier) >= self.service.tier.attainment

    def _rate(self, prefill: int, decode: int) -> float:
        """Return the largest requests/s of both pools together; 0 if every rate misses."""
        high = self.prefill_limit(prefill).rate
        if high and not self.decode_keeps_up(prefill, decode):
            high = self.decode_limit(prefill, decode).rate
        if not high:
            return 0.0
        # If both pools are near their limits, they miss it together at a lower rate: bisect.
        rate, low = high, JOINT_LOWER_SHARE * high
        for _ in range(JOINT_STEPS):
            if self._joint_attainment(prefill, decode, rate) >= self.service.tier.attainment:
                low = rate
            else:
                high = rate
            if low == high:
                break
            rate = (low + high) / 2
        return low

    def _joint_attainment(self, prefill: int, decode: int, rate: float) -> float:
        """Return the share of requests within every limit at ``rate`` requests/s."""
        prefill_pool, decode_pool = self.prefill(prefill, rate), self.decode(decode, prefill, rate)
        if not prefill_pool.stable or not decode_pool.stable:
            return 0.0
        tier = self.service.tier
        ttft_share = prefill_pool.ttft.share_within(tier.ttft_s)
        ttft_and_tbt_share = ttft_share * decode_pool.tbt.share_within(tier.tbt_s)
        if tier.e2e_s is None:
            return ttft_and_tbt_share
        e2e = sum_of(prefill_pool.ttft, decode_pool.e2e)
        return min(ttft_and_tbt_share, e2e.share_within(tier.e2e_s))

    def best_split(self, instances: int, near: int | None = None) -> tuple[int, float]:
        """Return the prefill instances of the best split of ``instances``, and its requests/s.

        More prefill instances serve more prompts and leave fewer instances for decode. The
        capacities of the two roles cross at the best split. The search begins at ``near`` prefill
        instances. The rate is 0 if the tier is missed there.
        """

        def decode_binds(prefill: int) -> bool:
            """Return whether the decode instances of this split serve less than the others."""
            return not self.decode_keeps_up(prefill, instances - prefill)

        crossing = min(bisect_first(decode_binds, 1, instances, near), instances - 1)
        neighbours = [p for p in (crossing - 1, crossing) if 1 <= p < instances]
        rates = [self.rate(p, instances - p) for p in neighbours]
        best = int(np.argmax(rates))
        return neighbours[best], rates[best]


@lru_cache(maxsize=CACHED_SERVICES)
def closed_forms(service: PdService) -> ClosedForms:
    """Return the closed forms of a service, which are kept for later calls."""
    return ClosedForms(service)


def _prefill_inputs(service: PdService) -> tuple[object, ...]:
    """Return what the closed forms of a prefill pool depend on, as a cache key.

    Output lengths, the decode pool and the tier are not part of it.
    """
    work = service.workload
    return service.prefill, work.isl, work.burstiness, work.cached


@cached_by_value(CACHED_SERVICES, _prefill_inputs)
def _prefill_pool(service: PdService) -> Callable[[int, float], Evaluation]:
    """Return a function that evaluates a prefill pool, given its instances and requests/s."""

    @cache
    def evaluation(instances: int, rate: float) -> Evaluation:
        """Return the evaluation of ``instances`` prefill instances at ``rate`` requests/s."""
        arriving = service.workload.at(rate)
        return evaluate_pool(service.prefill, arriving, PoolShape("prefill", instances))

    return evaluation


def closed_form_ratio(service: PdService, prefill: int, decode: int) -> RatioCapacity:
    """Return the capacity of one ratio by the closed forms.

    It is 0 requests/s if even the smallest rate misses the tier.
    """
    forms = closed_forms(service)
    try:
        rate = forms.rate(prefill, decode)
    except SimulationError:
        rate = 0.0
    if not rate:
        nan = float("nan")
        return RatioCapacity(
            prefill, decode, max_rps=0.0, max_tps=0.0, bound_by="slo", side="", ttft_s=nan,
            tbt_s=nan, transfer_s=nan,
        )  # fmt: skip
    share = service.tier.attainment
    return RatioCapacity(
        prefill=prefill,
        decode=decode,
        max_rps=rate,
        max_tps=rate * service.tokens,
        bound_by=_binding_limit(service, prefill, decode, rate),
        side="prefill" if forms.decode_keeps_up(prefill, decode) else "decode",
        ttft_s=forms.prefill(prefill, rate).ttft.quantile(share),
        tbt_s=forms.decode(decode, prefill, rate).tbt.quantile(share),
        transfer_s=transfer_time(service.link, service.workload.at(rate), prefill).mean,
    )


def _binding_limit(service: PdService, prefill: int, decode: int, rate: float) -> str:
    """Return what binds a ratio at its largest ``rate``."""
    forms, tier = closed_forms(service), service.tier
    if forms.decode_keeps_up(prefill, decode):
        limit, profile = forms.prefill_limit(prefill), service.prefill
        pool = PoolShape("prefill", prefill)
    else:
        # The link binds if the decode pool would sustain more when KV transfers take no time.
        more = service.workload.at((1.0 + 5 * PRECISION) * rate)
        without_link = evaluate_pool(service.decode, more, PoolShape("decode", decode))
        if without_link.attainment(tier) >= tier.attainment:
            return "link"
        limit, profile = forms.decode_limit(prefill, decode), service.decode
        pool = PoolShape("decode", decode, service.link, prefill)
    return binding_limit(limit.missed, profile, service.workload, tier, limit.missing_rate, pool)


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

    def lost_capacity_share(other: int) -> float | None:
        """Return the lost share of capacity per GPU with ratio ``other``; None: there is none."""
        if not 0 <= other < len(rows):
            return None
        return 1.0 - tps_per_gpu[other] / tps_per_gpu[best]

    # The ratios next to the best have one prefill instance less, and one more.
    return BestRatio(rows[best], lost_capacity_share(best - 1), lost_capacity_share(best + 1))


def per_gpu(service: PdService, ratio: RatioCapacity) -> float:
    """Return the capacity of ``ratio`` in tokens/s per GPU."""
    gpus = ratio.prefill * service.prefill.tp + ratio.decode * service.decode.tp
    return ratio.max_tps / gpus


def best_split(service: PdService, instances: int) -> RatioCapacity:
    """Return the capacity of the split of ``instances`` into prefill and decode with most tokens/s.

    The closed forms find the split. If no split is within the limits, it has one prefill instance.
    """
    try:
        prefill, _ = closed_forms(service).best_split(instances)
    except SimulationError:
        prefill = 1
    return closed_form_ratio(service, prefill, instances - prefill)
