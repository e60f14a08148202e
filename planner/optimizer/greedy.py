"""A quick target without a solver: the cheapest cover per model and region within the limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.optimizer.figures import (
    TOLERANCE,
    global_need_tps,
    gpus_used,
    local_need_tps,
)
from planner.optimizer.objective import price, start_price
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.sides import carried_tps, sides
from simulation.arrays import FloatArray, IntArray

Place = tuple[int, int]  # r, g


def greedy_target(problem: PlanningProblem) -> IntArray:
    """Instances to hold, shape ``[l, r, g]``; offered where a solver has no answer.

    Minimums first, then every local need (models with the fewest GPU types to choose from, and then
    the largest, before the others), then what the global needs ask for beyond that; last, instances
    that turned out not to be needed go. Never exceeds a maximum, nor a capacity that the minimums
    leave intact; may leave demand uncovered where capacity is short.
    """
    target: IntArray = problem.minimum.copy()
    free: IntArray = problem.capacity_gpus - gpus_used(problem, target)
    choices = (problem.theta_tps > 0).sum(axis=1)
    local, total = local_need_tps(problem), global_need_tps(problem)
    costs = price(problem), start_price(problem)
    everywhere = range(len(problem.regions))

    for model, region in _in_order(choices[:, None] + np.zeros_like(local), local):
        cover(problem, costs, target, free, model, (region,), float(local[model, region]))
    for (model,) in _in_order(choices, total):
        cover(problem, costs, target, free, model, everywhere, float(total[model]))
    _trim(problem, costs[0], target, local, total)
    return target


def _in_order(choices: FloatArray, need: FloatArray) -> list[tuple[int, ...]]:
    """Indices with a need, those with the fewest choices first, then the largest need."""
    order = np.lexsort((-need.ravel(), choices.ravel()))
    indices = (np.unravel_index(i, need.shape) for i in order if need.ravel()[i] > 0)
    return [tuple(int(axis) for axis in index) for index in indices]


def cover(
    problem: PlanningProblem,
    costs: tuple[FloatArray, FloatArray],
    target: IntArray,
    free: IntArray,
    model: int,
    regions: Sequence[int],
    need: float,
    *,
    one: bool = False,
) -> float:
    """Add instances of ``model`` until ``regions`` serve ``need`` tokens/s, on every side.

    Changes ``target`` and ``free`` (by row of capacity), by ``one`` instance at most of every side
    if so asked; returns what is left. Of several sides (prefill and decode, owned and spot) the
    first are the narrowest, and an instance that helps several is charged to each in part.
    """
    parts = sorted(sides(problem), key=lambda side: int(side.columns.sum()))
    shared = np.maximum(1, sum(side.columns.astype(int) for side in parts))
    left = 0.0
    for side in parts:
        theta = problem.theta_tps[model] * side.columns
        places = [(region, int(gpu)) for region in regions for gpu in np.flatnonzero(theta)]
        served = float((target[model, list(regions)] @ theta).sum())
        missing = need * side.share - served
        short = _add(problem, costs, target, free, model, places, missing, shared, one=one)
        left = max(left, short / side.share)
    return left


def _add(
    problem: PlanningProblem,
    costs: tuple[FloatArray, FloatArray],
    target: IntArray,
    free: IntArray,
    model: int,
    places: Sequence[Place],
    need: float,
    shared: IntArray,
    *,
    one: bool,
) -> float:
    """Add instances of ``model`` at ``places`` until they serve ``need`` more; what is left."""
    theta, size, rows = problem.theta_tps[model], problem.gpus_per_instance[model], problem.rows

    def running(place: Place) -> int:
        return int(problem.current[model][place] - target[model][place])

    def room(place: Place) -> int:
        by_limit = int(problem.maximum[model][place] - target[model][place])
        return min(by_limit, int(free[place[0], rows[place[1]]] // size[place[1]]))

    def charge(place: Place) -> float:
        start = 0.0 if running(place) > 0 else float(costs[1][model][place])
        return (float(costs[0][model][place]) + start) / float(shared[place[1]])

    slack = TOLERANCE * max(need, 0.0)
    while need > slack:
        open_places = [place for place in places if theta[place[1]] > 0 and room(place) > 0]
        if not open_places:
            return need
        # One instance that finishes the job is priced whole, the others by the tokens they serve.
        best = min(open_places, key=lambda p: charge(p) / min(theta[p[1]], need))
        count = 1 if one else max(1, int(need // theta[best[1]]))
        count = min(count, room(best), running(best) if running(best) > 0 else count)
        target[model][best] += count
        free[best[0], rows[best[1]]] -= count * size[best[1]]
        need -= count * float(theta[best[1]])
        if one:
            break
    return need if need > slack else 0.0


def _trim(
    problem: PlanningProblem,
    hourly: FloatArray,
    target: IntArray,
    local: FloatArray,
    total: FloatArray,
) -> None:
    """Drop instances that no need rests on, the dearest first."""
    carried = carried_tps(problem, target)  # by side
    spare_total = carried.min(axis=0).sum(axis=1) - total
    takes = np.stack([side.columns / side.share for side in sides(problem)])  # [s, g]
    droppable = np.argwhere(target > problem.minimum)
    prices = hourly[tuple(droppable.T)]
    for model, region, gpu in droppable[np.argsort(-prices, kind="stable")]:
        theta = problem.theta_tps[model, gpu] * takes[:, gpu]
        mine = carried[:, model, region]
        served = mine.min()
        above = mine - max(local[model, region], served - max(0.0, spare_total[model]))
        within = np.divide(above, theta, out=np.full(len(theta), np.inf), where=theta > 0).min()
        above_minimum = target[model, region, gpu] - problem.minimum[model, region, gpu]
        count = int(min(max(0.0, within) // 1, above_minimum))
        target[model, region, gpu] -= count
        carried[:, model, region] = mine - count * theta
        spare_total[model] -= served - carried[:, model, region].min()
