"""A quick target without a solver: the cheapest cover per model and region within the limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.optimizer.figures import (
    TOLERANCE,
    global_need_tps,
    gpus_used,
    local_need_tps,
    local_served_tps,
)
from planner.optimizer.objective import price, start_price
from planner.optimizer.problem import FloatArray, IntArray, PlanningProblem

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
    gpus = range(len(problem.gpus))
    regions = range(len(problem.regions))

    for model, region in _in_order(choices[:, None] + np.zeros_like(local), local):
        places = [(region, gpu) for gpu in gpus]
        served = float(target[model, region] @ problem.theta_tps[model])
        cover(problem, costs, target, free, model, places, float(local[model, region]) - served)
    for (model,) in _in_order(choices, total):
        places = [(region, gpu) for region in regions for gpu in gpus]
        served = float((target[model] @ problem.theta_tps[model]).sum())
        cover(problem, costs, target, free, model, places, float(total[model]) - served)
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
    places: Sequence[Place],
    need: float,
    *,
    one: bool = False,
) -> float:
    """Add instances of ``model`` at ``places`` until they serve ``need`` more tokens/s.

    Changes ``target`` and ``free``, by ``one`` instance at most if so asked; returns what is left.
    """
    theta, size = problem.theta_tps[model], problem.gpus_per_instance[model]

    def running(place: Place) -> int:
        return int(problem.current[model][place] - target[model][place])

    def room(place: Place) -> int:
        by_limit = int(problem.maximum[model][place] - target[model][place])
        return min(by_limit, int(free[place] // size[place[1]]))

    def charge(place: Place) -> float:
        start = 0.0 if running(place) > 0 else float(costs[1][model][place])
        return float(costs[0][model][place]) + start

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
        free[best] -= count * size[best[1]]
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
    spare_local = local_served_tps(problem, target) - local
    spare_total = spare_local.sum(axis=1) + local.sum(axis=1) - total
    droppable = np.argwhere(target > problem.minimum)
    prices = hourly[tuple(droppable.T)]
    for model, region, gpu in droppable[np.argsort(-prices, kind="stable")]:
        theta = problem.theta_tps[model, gpu]
        spare = min(spare_local[model, region], spare_total[model])
        above_minimum = target[model, region, gpu] - problem.minimum[model, region, gpu]
        count = min(int(max(0.0, spare) // theta), int(above_minimum))
        target[model, region, gpu] -= count
        spare_local[model, region] -= count * theta
        spare_total[model] -= count * theta
