"""What must carry the demand at once: prefill and decode, and owned instances for their share.

A region serves what the weakest of its sides carries: prefill columns with those that do both,
decode columns with those that do both (their KV cache does not cross regions), and, where spot may
carry only a share, the owned ones by the rest of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.pools import carried_by_pools
from planner.optimizer.problem import DECODE, PREFILL, PlanningProblem
from simulation.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Columns that together must carry ``share`` of what a region serves."""

    columns: BoolArray  # [g]
    share: float  # above 0
    name: str  # in words: "prefill"; "" where there is only one side


def sides(problem: PlanningProblem) -> tuple[Side, ...]:
    """The sides of ``problem``; a single one without stages and limits on spot."""
    every = np.ones(len(problem.gpus), dtype=bool)
    staged = [Side(every, 1.0, "")]
    if problem.stages is not None and problem.stages.any():
        staged = [
            Side(problem.stages != DECODE, 1.0, "prefill"),
            Side(problem.stages != PREFILL, 1.0, "decode"),
        ]
    owned = []
    if problem.spot is not None and problem.spot.any() and problem.spot_share < 1:
        share = 1.0 - problem.spot_share
        owned = [
            Side(side.columns & ~problem.spot, share, f"{side.name} on owned GPUs".strip())
            for side in staged
        ]
    return (*staged, *owned)


def carried_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """What each side of ``target`` lets a region serve, shape ``[s, l, r]``, input tokens/s."""
    pools = carried_by_pools(problem, target)
    return np.stack([(pools * side.columns).sum(axis=2) / side.share for side in sides(problem)])
