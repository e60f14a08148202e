"""Every ratio of prefill to decode of two pools, and the best: the one word that ``pd-ratio``,
results of plans and the pressure test have on it.

A ratio carries what the lesser of its two pools does, by the curves that plans are sized by; the
best of them, its neighbours and whatever lies uphill are simulated with both pools at once, and
then that counts. Where a pool meets its part of the tier nowhere, closed forms stand in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from planner.scenario.build import Hardware
from planner.studies.pd.service import PairColumns, strictest_split
from planner.studies.sizing.curves import CurveKey, digest_of, pair_of_curves
from planner.studies.traffic.lengths import Lengths
from simulation.errors import SimulationError
from simulation.fleet import Routing
from simulation.sizing.pd_judge import ReportProgress, judged
from simulation.sizing.pd_ratio import Best, PdService, Ratio, best_of, ratios, splits
from simulation.sizing.pool import rate_of
from simulation.sizing.trial import SharedPrompts

KEPT = 64  # judgements


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Of so many instances; ratios by rising number of prefill instances."""

    service: PdService
    closed: tuple[Ratio, ...]  # by closed forms
    pools: tuple[Ratio, ...]  # by what each of the two pools carries
    simulated: tuple[Ratio, ...]  # of them, those simulated with both pools
    best: Best


@dataclass(frozen=True, slots=True)
class _PairKey:
    digest: str
    service: PdService = field(compare=False)
    routing: Routing = field(compare=False)
    instances: int = field(compare=False)
    seed: int = field(compare=False)
    told: ReportProgress = field(compare=False)


def judgement(
    hardware: Hardware,
    m: int,
    columns: PairColumns,
    lengths: Lengths,
    instances: int,
    seed: int,
    shared: SharedPrompts | None = None,
    report: ReportProgress = lambda done: None,
) -> Judgement:
    """At the interactive tier at which the best ratio carries least by closed forms; once per
    process for what it depends on. What prompts of ``shared`` requests share is cached where the
    model's serving caches prefixes; those are then the requests, whatever ``lengths`` says. Raises
    SimulationError where no ratio carries anything."""
    service, _ = strictest_split(hardware, m, columns, lengths, instances, shared)
    routing, work = hardware.routing, service.workload
    identity = (
        service.prefill, service.decode, work.isl, work.osl, service.blocks, service.tier,
        service.link, service.batching, routing, instances, seed,
    )  # fmt: skip
    return _judged(_PairKey(digest_of(identity), service, routing, instances, seed, report))


@lru_cache(maxsize=KEPT)
def _judged(pair: _PairKey) -> Judgement:
    service = pair.service
    closed = ratios(service, splits(pair.instances))
    try:
        lengths = (service.workload.isl, service.workload.osl)
        sides = CurveKey(
            service.prefill, lengths, service.tier, pair.seed, "prefill", None, service.batching,
            routing=pair.routing, blocks=service.blocks,
        )  # fmt: skip
        prefill, decode = pair_of_curves(
            sides,
            replace(sides, profile=service.decode, role="decode", link=service.link, blocks=None),
        )
    except SimulationError:
        pools = closed
    else:
        pools = [
            _lesser(service, row, rate_of(prefill[0], row.prefill), rate_of(decode[0], row.decode),
                    (prefill[1], decode[1]))
            for row in closed
        ]  # fmt: skip
    simulated = judged(service, pools, seed=pair.seed, routing=pair.routing, report=pair.told)
    return Judgement(
        service, tuple(closed), tuple(pools), tuple(simulated), best_of(simulated, service)
    )


def _lesser(
    service: PdService, row: Ratio, prefill: float, decode: float, bound: tuple[str, str]
) -> Ratio:
    """``row`` with what its two pools carry by themselves, requests/s, and what bounds each."""
    rate = min(prefill, decode)
    first = bool(prefill <= decode)
    return replace(
        row,
        max_rps=rate,
        max_tps=rate * service.tokens,
        side="prefill" if first else "decode",
        bound_by=bound[0] if first else bound[1],
    )
