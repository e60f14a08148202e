"""Define the sides: groups of GPU columns that must each have capacity for the demand.

A region serves as much as its weakest side. The prefill side is the prefill columns plus the
columns for both roles. The decode side is analogous, since KV cache does not cross regions. If spot
may carry only a share, the owned columns are a side that must carry the rest. Redundancy makes
sides too: the same columns with instances gone.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from planner.optimizer.pools import carried_by_pools
from planner.optimizer.problem import BOTH, DECODE, PREFILL, PlanningProblem
from simulation.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A group of GPU columns, such as those of prefill, that must carry a share of the traffic."""

    columns: BoolArray  # [g] True for the columns of the side
    share: float  # of each region's traffic, above 0
    lost: IntArray  # [g] instances of each pool that are assumed gone
    stage: int = BOTH  # the role that it has: PREFILL or DECODE; BOTH if all pools serve both
    owned: bool = False  # whether it has only owned columns, and spot carries the rest


@lru_cache(maxsize=8)  # a problem's sides are needed about ten times, all in one solve
def role_sides(problem: PlanningProblem) -> tuple[Side, ...]:
    """Return the sides: groups of GPU columns that must each have capacity for the demand.

    There are several if prefill and decode have separate columns, if spot may carry only a share,
    or if different instances of a region may be lost. Otherwise there is one.
    """
    all_columns = np.ones(len(problem.gpus), dtype=bool)
    none_lost = np.zeros(len(problem.gpus), np.int64)
    sides = [Side(all_columns, 1.0, none_lost)]
    if problem.stages is not None and problem.stages.any():
        sides = [
            Side(problem.stages != DECODE, 1.0, none_lost, PREFILL),
            Side(problem.stages != PREFILL, 1.0, none_lost, DECODE),
        ]
    if problem.spot is not None and problem.spot.any() and problem.spot_share < 1:
        # The owned columns of each role must carry the share that spot may not.
        for side in list(sides):
            owned, share = side.columns & ~problem.spot, 1.0 - problem.spot_share
            sides.append(Side(owned, share, none_lost, side.stage, owned=True))
    return tuple(copy for side in sides for copy in _with_losses(problem, side))


def _with_losses(problem: PlanningProblem, side: Side) -> list[Side]:
    """Return a copy of ``side`` for each way to lose instances that the plan must survive.

    ``problem.spare`` instances are lost (N+1: one). With ``by_pool`` there is one way: each pool
    loses that many. Otherwise a model loses that many of its instances in a region, and each
    combination of GPU columns is a way.
    """
    if not problem.spare:
        return [side]
    if problem.by_pool:
        return [replace(side, lost=np.full(len(problem.gpus), problem.spare))]
    usable_columns = np.flatnonzero(side.columns & (problem.theta_tps > 0).any(axis=0)).tolist()
    losses = combinations_with_replacement(usable_columns or [0], problem.spare)
    return [replace(side, lost=np.bincount(loss, minlength=len(problem.gpus))) for loss in losses]


def carried_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """Return the input tokens/s that each side lets a region serve, ``[side, model, region]``.

    A side is a group of GPU columns of one role, such as prefill or decode, with one way to lose
    spare instances. ``target [model, region, GPU column]`` are the instances.
    """
    tps = []
    for side in role_sides(problem):
        pools_tps = carried_by_pools(problem, target, side.lost) * side.columns
        # The side carries only ``share`` of the traffic, so it allows 1 / share times as much.
        tps.append(pools_tps.sum(axis=2) / side.share)
    return np.stack(tps)
