"""Evaluate every P:D ratio of two pools, and find the best.

``pd-ratio``, the results of plans and the pressure test all use this evaluation.

The capacity of a ratio is that of the weaker of its two pools, from the capacity curves that plans
use. The best ratio and its neighbours are then simulated with both pools at once, until no
neighbour is better. The simulated capacity counts. If a pool cannot meet its part of the tier at
any rate, closed forms replace the curves.
"""

from dataclasses import dataclass, replace

from planner.domain.sizing.curves import role_capacity
from simulation.digest import cached_by_value
from simulation.errors import SimulationError
from simulation.fleet import Routing
from simulation.sizing.capacity import SizingCase
from simulation.sizing.pd_ratio import (
    BestRatio,
    PdService,
    RatioCapacity,
    all_splits,
    best_ratio,
    ratios,
)
from simulation.sizing.pd_simulation import ReportProgress, simulate_best_ratios
from simulation.sizing.pool import curve_capacity

CACHED_EVALUATIONS = 64  # evaluations cached per process


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The capacities of all P:D ratios of a number of replicas, by rising count of prefill."""

    service: PdService
    closed: tuple[RatioCapacity, ...]  # by closed forms
    pools: tuple[RatioCapacity, ...]  # by the weaker of the two pools, each simulated alone
    simulated: tuple[RatioCapacity, ...]  # with both pools simulated together, some ratios only
    best: BestRatio


def _cache_key(
    service: PdService, routing: Routing, instances: int, seed: int, _: ReportProgress
) -> tuple[object, ...]:
    """Return the arguments of ``judge_ratios`` on which its result depends, as a cache key."""
    work = service.workload
    return (
        service.prefill, service.decode, work.isl, work.osl, service.blocks, service.tier,
        service.link, service.batching, service.burstiness, routing, instances, seed,
    )  # fmt: skip


@cached_by_value(CACHED_EVALUATIONS, _cache_key)
def judge_ratios(
    service: PdService, routing: Routing, instances: int, seed: int, report: ReportProgress
) -> Judgement:
    """Return the capacity of all P:D ratios of ``instances`` replicas of a service, and the best.

    Capacities are within the limits of the service's tier. If a pool cannot meet its part of the
    tier, the closed forms count as capacities of the pools. ``report`` is called with the share
    that is done. Results are cached per process. Raises SimulationError if no ratio meets the tier.
    """
    closed = ratios(service, all_splits(instances))
    lengths = (service.workload.isl, service.workload.osl)
    prefill = SizingCase(
        service.prefill, lengths, service.tier, seed, "prefill", batching=service.batching,
        burstiness=service.burstiness, routing=routing, blocks=service.blocks,
    )  # fmt: skip
    decode = replace(prefill, profile=service.decode, role="decode", link=service.link, blocks=None)
    try:
        pools = _ratios_by_pool(service, closed, prefill, decode)
    except SimulationError:
        pools = closed
    simulated = simulate_best_ratios(service, pools, seed=seed, routing=routing, report=report)
    return Judgement(
        service, tuple(closed), tuple(pools), tuple(simulated), best_ratio(simulated, service)
    )


def _ratios_by_pool(
    service: PdService, ratios: list[RatioCapacity], prefill: SizingCase, decode: SizingCase
) -> list[RatioCapacity]:
    """Return ``ratios`` with the capacity of the weaker of their two pools, each simulated alone.

    Raises SimulationError if a pool cannot meet its part of the tier at any rate.
    """
    prefill_rps, prefill_limit = role_capacity(prefill)
    decode_rps, decode_limit = role_capacity(decode)
    rows = []
    for ratio in ratios:
        rps, side, limit = curve_capacity(prefill_rps, ratio.prefill), "prefill", prefill_limit
        max_decode_rps = curve_capacity(decode_rps, ratio.decode)
        if max_decode_rps < rps:
            rps, side, limit = max_decode_rps, "decode", decode_limit
        rows.append(
            replace(ratio, max_rps=rps, max_tps=rps * service.tokens, side=side, bound_by=limit)
        )
    return rows
