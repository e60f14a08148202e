"""State the best P:D ratio of models whose plan has prefill and decode pools."""

from dataclasses import dataclass, field, replace

from planner.domain.pd.figures import BestFigures
from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import (
    MAX_INSTANCES,
    PairColumns,
    pairs_of,
    strictest_split,
    usual_instances,
)
from planner.domain.serialise import MERGED, OPTIONAL
from planner.domain.study import Study
from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.sizing.pd_ratio import PdService
from simulation.sizing.pd_simulation import no_report


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRatio:
    """The best P:D ratio of a model's pair of pools at its most limiting tier.

    If no ratio meets the tier, ``note`` says so.
    """

    model: str
    prefill_on: str
    decode_on: str
    instances: int
    by: str = "simulation"
    tier: str | None = field(default=None, metadata={OPTIONAL: True})
    best: BestFigures | None = field(default=None, metadata={MERGED: True, OPTIONAL: True})
    note: str | None = field(default=None, metadata={OPTIONAL: True})


def stated_ratios(study: Study, target: IntArray) -> tuple[StatedRatio, ...]:
    """Return the best P:D ratio of every model with prefill and decode pools.

    It is the best for the largest number of replicas of both roles in any period and region, at
    most ``MAX_INSTANCES``. ``target [period, model, region, GPU column]`` are the planned
    replicas.
    """
    return tuple(
        _best_ratio_of_pair(study, m, columns, target)
        for m in range(len(study.hardware.models))
        for columns in pairs_of(study.hardware, m)
        if study.hardware.columns[columns.prefill].role == "prefill"
    )


def studied_service(study: Study, m: int, columns: PairColumns, instances: int) -> PdService:
    """Return the service of model ``m`` on a pair of GPU columns, at its most limiting tier.

    Its lengths, shared prompts and arrivals are those of the study's traffic. Raises
    SimulationError if no ratio of ``instances`` replicas meets a tier.
    """
    traffic = study.traffic
    service, _ = strictest_split(
        study.hardware, m, columns, traffic.lengths[m], instances,
        traffic.shared[m] if traffic.shared else None,
        traffic.arrivals[m] if traffic.arrivals else 1.0,
    )  # fmt: skip
    return service


def _best_ratio_of_pair(
    study: Study, m: int, columns: PairColumns, target: IntArray
) -> StatedRatio:
    """Return the best P:D ratio of model ``m`` on a pair of GPU columns.

    It is the best for the most replicas of both roles in any period and region, of ``target
    [period, model, region, GPU column]``. If no ratio meets the SLO, the result has only a note.
    """
    hardware, prefill, decode = study.hardware, columns.prefill, columns.decode
    both_roles = target[:, m, :, prefill] + target[:, m, :, decode]
    planned = int(both_roles.max())  # the most of any period and region
    count = min(planned, MAX_INSTANCES) if planned > 1 else usual_instances(hardware, m, columns)
    stated = StatedRatio(
        model=hardware.models[m].name,
        prefill_on=hardware.columns[prefill].label,
        decode_on=hardware.columns[decode].label,
        instances=count,
    )
    try:
        service = studied_service(study, m, columns, count)
        judged = judge_ratios(service, hardware.routing, count, study.settings.seed, no_report)
    except SimulationError as problem:
        return replace(stated, note=str(problem))
    return replace(stated, tier=judged.service.tier.name, best=BestFigures.of(judged.best))
