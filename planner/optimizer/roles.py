"""Define the sides that must each carry the demand: prefill and decode, and owned instances.

A region serves as much as its weakest side carries. The prefill side is the prefill columns plus
the columns for both roles. The decode side is analogous, since KV cache does not cross regions. If
spot may carry only a share, the owned columns must carry the rest. Spare capacity is a side too:
the same columns with instances gone.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from planner.optimizer.pools import carried_by_pools
from planner.optimizer.problem import DECODE, PREFILL, PlanningProblem
from simulation.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A group of columns, such as prefill, that must carry ``share`` of a region's traffic."""

    columns: BoolArray  # [g]
    share: float  # above 0
    name: str  # for sentences: "for prefill"; "" for a single side
    lost: IntArray  # [g] instances of each pool that are assumed gone


@lru_cache(maxsize=8)  # a problem's sides are needed about ten times, all in one solve
def role_sides(problem: PlanningProblem) -> tuple[Side, ...]:
    """Return the sides: groups of columns that must each have capacity for the whole demand.

    There are several with separate prefill and decode columns, with a limit on spot, or if
    different instances of a region may be lost. Otherwise there is one.
    """
    all_columns = np.ones(len(problem.gpus), dtype=bool)
    none_lost = np.zeros(len(problem.gpus), np.int64)
    by_role = [Side(all_columns, 1.0, "", none_lost)]
    if problem.stages is not None and problem.stages.any():
        by_role = [
            Side(problem.stages != DECODE, 1.0, "for prefill", none_lost),
            Side(problem.stages != PREFILL, 1.0, "for decode", none_lost),
        ]
    owned = []
    if problem.spot is not None and problem.spot.any() and problem.spot_share < 1:
        share = 1.0 - problem.spot_share
        owned = [
            replace(
                side,
                columns=side.columns & ~problem.spot,
                share=share,
                name=f"{side.name} on owned GPUs".strip(),
            )
            for side in by_role
        ]
    return tuple(copy for side in (*by_role, *owned) for copy in _with_losses(problem, side))


def _with_losses(problem: PlanningProblem, side: Side) -> list[Side]:
    """Return a copy of ``side`` for each way to lose instances that the plan must survive.

    ``spare`` instances are lost (N+1: one). By pool there is one way: each pool loses that many.
    By region, a model loses that many of its instances in the region, in any columns.
    """
    if not problem.spare:
        return [side]
    if problem.by_pool:
        return [replace(side, lost=np.full(len(problem.gpus), problem.spare))]
    usable = np.flatnonzero(side.columns & (problem.theta_tps > 0).any(axis=0)).tolist()
    losses = combinations_with_replacement(usable or [0], problem.spare)
    return [replace(side, lost=np.bincount(loss, minlength=len(problem.gpus))) for loss in losses]


def carried_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """Return the input tokens/s that each side of ``target`` lets a region serve.

    The shape is ``[side, model, region]``. A side
    is a group of columns of one role, such as prefill or decode, with one way to lose spare
    instances.
    """
    tps = []
    for side in role_sides(problem):
        of_pools = carried_by_pools(problem, target, side.lost) * side.columns
        # The side does the share of the work of each request, so it supports 1/share as many.
        tps.append(of_pools.sum(axis=2) / side.share)
    return np.stack(tps)
