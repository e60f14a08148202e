"""State the best P:D ratio of models whose plan has prefill and decode pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.domain.pd.figures import BestFigures
from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import pairs_of, usual_instances
from planner.domain.serialise import MERGED, OPTIONAL
from planner.domain.traffic.lengths import Lengths
from planner.inputs.scenario.build import Hardware
from simulation.errors import SimulationError
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRatio:
    """The best ratio of one model's pair of pools, and its tier.

    If there is none, ``note`` says why.
    """

    model: str
    prefill_on: str
    decode_on: str
    instances: int
    by: str = "simulation"
    tier: str | None = field(default=None, metadata={OPTIONAL: True})
    best: BestFigures | None = field(default=None, metadata={MERGED: True, OPTIONAL: True})
    note: str | None = field(default=None, metadata={OPTIONAL: True})


def stated_ratios(
    hardware: Hardware,
    lengths: Sequence[Lengths],
    seed: int,
    shared: Sequence[SharedPrompts | None] = (),
    arrivals: Sequence[Burstiness] = (),
) -> tuple[StatedRatio, ...]:
    """Return the best P:D ratio of every model with prefill and decode pools.

    It is the ratio that ``pd_ratio`` finds by default, for the same number of instances.
    """
    return tuple(
        ratio
        for m in range(len(hardware.models))
        for ratio in _of_model(
            hardware,
            m,
            lengths[m],
            seed,
            shared[m] if shared else None,
            arrivals[m] if arrivals else 1.0,
        )
    )


def _of_model(
    hardware: Hardware,
    m: int,
    lengths: Lengths,
    seed: int,
    shared: SharedPrompts | None,
    burstiness: Burstiness,
) -> Iterator[StatedRatio]:
    """Yield the best P:D ratio of each pair of pools of a model, or a note why there is none."""
    for columns in pairs_of(hardware, m):
        if hardware.columns[columns.prefill].role != "prefill":
            continue
        count = usual_instances(hardware, m, columns)
        stated = StatedRatio(
            model=hardware.models[m].name,
            prefill_on=hardware.columns[columns.prefill].label,
            decode_on=hardware.columns[columns.decode].label,
            instances=count,
        )
        try:
            judged = judge_ratios(hardware, m, columns, lengths, count, seed, shared, burstiness)
        except SimulationError as problem:
            yield replace(stated, note=str(problem))
        else:
            yield replace(stated, tier=judged.service.tier.name, best=BestFigures.of(judged.best))
