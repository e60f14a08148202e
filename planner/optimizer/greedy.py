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
from planner.optimizer.pools import carried, curve, fewest
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.sides import carried_tps, sides
from simulation.arrays import FloatArray, IntArray

ROUNDING = 1e-12  # share of a need

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
        for lost in everywhere if problem.lose_region else ():
            others = [region for region in everywhere if region != lost]
            cover(problem, costs, target, free, model, others, float(total[model]))
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
        able = (problem.theta_tps[model] > 0) & side.columns
        places = [(region, int(gpu)) for region in regions for gpu in np.flatnonzero(able)]
        lost = side.lost.tolist()
        served = sum(
            carried(problem, model, p[1], int(target[model][p]), lost[p[1]]) for p in places
        )
        missing = need * side.share - served
        short = _add(problem, costs, target, free, model, places, missing, shared, lost, one=one)
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
    lost: Sequence[int],
    *,
    one: bool,
) -> float:
    """Add instances of ``model`` at ``places`` until they serve ``need`` more; what is left."""
    size, rows = problem.gpus_per_instance[model], problem.rows

    def running(place: Place) -> int:
        return int(problem.current[model][place] - target[model][place])

    def room(place: Place) -> int:
        by_limit = int(problem.maximum[model][place] - target[model][place])
        return min(by_limit, int(free[place[0], rows[place[1]]] // size[place[1]]))

    def step(place: Place) -> tuple[float, int, float]:
        """Charge per token/s of as many instances as ``need`` takes whole, one at least; how many
        these are; and what they add."""
        held, present, most = int(target[model][place]), running(place), room(place)
        start = 0.0 if present > 0 else float(costs[1][model][place])
        charge = (float(costs[0][model][place]) + start) / float(shared[place[1]])
        gone = lost[place[1]]
        before = carried(problem, model, place[1], held, gone)
        most = min(most, max(1, fewest(problem, model, place[1], before + need, gone) - held))
        most = 1 if one else min(most, present) if present > 0 else most
        adds = curve(problem, model, place[1], held + most, gone)[held + 1 :] - before
        count = max(1, int(np.searchsorted(adds, need * (1 + ROUNDING), side="right")))
        added = float(adds[count - 1])
        return charge * count / max(min(added, need), ROUNDING * need), count, added

    slack = TOLERANCE * max(need, 0.0)
    while need > slack:
        open_places = [place for place in places if room(place) > 0]
        if not open_places:
            return need
        # One instance that finishes the job is priced whole, the others by the tokens they serve.
        steps = {place: step(place) for place in open_places}
        best = min(open_places, key=lambda place: steps[place][0])
        _, count, added = steps[best]
        target[model][best] += count
        free[best[0], rows[best[1]]] -= count * size[best[1]]
        need -= added
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
    served_by = carried_tps(problem, target)  # by side
    every = sides(problem)
    droppable = np.argwhere(target > problem.minimum)
    prices = hourly[tuple(droppable.T)]
    for model, region, gpu in droppable[np.argsort(-prices, kind="stable")]:
        mine, serves = served_by[:, model, region], served_by[:, model].min(axis=0)
        others = np.delete(
            serves, region
        )  # what they serve, the best of them lost where one may be
        others = others.sum() - (others.max(initial=0.0) if problem.lose_region else 0.0)
        least = min(float(mine.min()), max(local[model, region], total[model] - others))
        held, fewer = int(target[model, region, gpu]), int(problem.minimum[model, region, gpu])
        drops = {}  # by side: tokens/s, by how many go, from none
        for at, side in enumerate(every):
            if side.columns[gpu]:
                pool = curve(problem, model, gpu, held, int(side.lost[gpu])) / side.share
                drops[at] = pool[held] - pool[fewer : held + 1][::-1]
        count = min(
            int(np.searchsorted(drop, max(0.0, mine[at] - least), side="right")) - 1
            for at, drop in drops.items()
        )
        target[model, region, gpu] -= count
        for at, drop in drops.items():
            served_by[at, model, region] -= drop[count]
