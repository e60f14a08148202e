"""Evaluate every P:D ratio of two pools, and find the best.

``pd-ratio``, the results of plans and the pressure test all use this evaluation.

The capacity of a ratio is the lower of its two pools', from the curves that size plans. The best
ratio and its neighbours are then simulated with both pools at once, until no neighbour is better.
The simulated capacity counts. If a pool cannot meet its part of the tier at any rate, the closed
forms replace the curves.
"""

from dataclasses import dataclass, replace

from planner.domain.sizing.curves import pair_of_curves
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

KEPT = 64  # judgements cached per process


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The results of all P:D ratios of a number of instances, by rising count of prefill."""

    service: PdService
    closed: tuple[RatioCapacity, ...]  # by closed forms
    pools: tuple[RatioCapacity, ...]  # by the capacity of each of the two pools
    simulated: tuple[RatioCapacity, ...]  # only those simulated with both pools
    best: BestRatio


def judge_ratios(
    service: PdService,
    routing: Routing,
    instances: int,
    seed: int,
    report: ReportProgress = lambda done: None,
) -> Judgement:
    """Evaluate all P:D ratios of ``instances`` instances of a service at its tier.

    Results are cached per process. If the service's model caches prefixes and the service has
    prompt blocks, shared prompts are cached. Raise SimulationError if no ratio meets the tier.
    """
    return _judge_pair(service, routing, instances, seed, report)


def _inputs(
    service: PdService, routing: Routing, instances: int, seed: int, _: ReportProgress
) -> tuple[object, ...]:
    """Return what an evaluation depends on."""
    work = service.workload
    return (
        service.prefill, service.decode, work.isl, work.osl, service.blocks, service.tier,
        service.link, service.batching, service.burstiness, routing, instances, seed,
    )  # fmt: skip


@cached_by_value(KEPT, _inputs)
def _judge_pair(
    service: PdService, routing: Routing, instances: int, seed: int, report: ReportProgress
) -> Judgement:
    """Evaluate all ratios of a pair of pools, by closed forms, by pool and by simulation.

    If a pool cannot meet its part of the tier, the closed forms count as capacities of the pools.
    """
    closed = ratios(service, all_splits(instances))
    try:
        lengths = (service.workload.isl, service.workload.osl)
        sides = SizingCase(
            service.prefill, lengths, service.tier, seed, "prefill", None, service.batching,
            service.burstiness, routing=routing, blocks=service.blocks,
        )  # fmt: skip
        prefill, decode = pair_of_curves(
            sides,
            replace(sides, profile=service.decode, role="decode", link=service.link, blocks=None),
        )
    except SimulationError:
        pools = closed
    else:
        pools = [
            _limited_by(
                service,
                row,
                curve_capacity(prefill[0], row.prefill),
                curve_capacity(decode[0], row.decode),
                (prefill[1], decode[1]),
            )
            for row in closed
        ]
    simulated = simulate_best_ratios(service, pools, seed=seed, routing=routing, report=report)
    return Judgement(
        service, tuple(closed), tuple(pools), tuple(simulated), best_ratio(simulated, service)
    )


def _limited_by(
    service: PdService, row: RatioCapacity, prefill: float, decode: float, bound: tuple[str, str]
) -> RatioCapacity:
    """Return ``row`` (a ratio) with the lower capacity of its two pools, and what limits that.

    ``prefill`` and ``decode`` are the capacities of the pools in requests/s. ``bound`` names the
    limit of each.
    """
    rate = min(prefill, decode)
    first = bool(prefill <= decode)
    return replace(
        row,
        max_rps=rate,
        max_tps=rate * service.tokens,
        side="prefill" if first else "decode",
        bound_by=bound[0] if first else bound[1],
    )
