"""Find a quick target without a solver: the cheapest cover per model and region."""

from collections.abc import Sequence

import numpy as np

from planner.optimizer.covering import Covering, Needs
from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.objective import price
from planner.optimizer.pools import capacity_curve, carried_by_pools
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import Side, carried_tps, role_sides
from simulation.arrays import BoolArray, FloatArray, IntArray

LOOSE = 1e-9  # share of the served traffic that rounding may take


def greedy_target(problem: PlanningProblem) -> IntArray:
    """Return the instance counts of a greedy plan, ``[l, r, g]``, for when a solver has no answer.

    The minimums come first. Then each region's own demand is covered: models with the fewest GPU
    types first, then the largest demand. Then the joint demand of all regions is covered. Last,
    unneeded instances are removed. The target never exceeds a maximum. It stays within each
    capacity that the minimums respect. Demand may stay uncovered where capacity is short. There is
    no time limit: 1,000 models in 200 regions take a few seconds.
    """
    covering = Covering(problem)
    choices = (problem.theta_tps > 0).sum(axis=1)
    local, total = local_need_tps(problem), global_need_tps(problem)
    everywhere = list(range(len(problem.regions)))

    order = np.lexsort((-local, np.broadcast_to(choices[:, None], local.shape)), axis=0)
    for models in order:  # the next model of each region
        needed = np.flatnonzero(local[models, everywhere] > 0)
        models_needed = models[needed]
        covering.cover(Needs(models_needed, needed[:, None], local[models_needed, needed]))
    for model in np.lexsort((-total, choices)):
        if total[model] <= 0:
            continue
        covering.cover(Needs.one(model, everywhere, float(total[model])))
        for lost in everywhere if problem.lose_region else ():
            others = [region for region in everywhere if region != lost]
            covering.cover(Needs.one(model, others, float(total[model])))
    _remove_unneeded(problem, price(problem), covering.target, local, total)
    return covering.target


def _remove_unneeded(
    problem: PlanningProblem,
    hourly: FloatArray,
    target: IntArray,
    local: FloatArray,
    total: FloatArray,
) -> None:
    """Remove the dearest instances of ``target`` while all demand stays covered.

    ``hourly [l, r, g]`` is the price of an instance. ``local [l, r]`` and ``total [l]`` are the
    demands in tokens/s.
    """
    served_by = carried_tps(problem, target)  # by side
    all_sides = role_sides(problem)
    droppable = np.argwhere(_removable(problem, all_sides, served_by, target, local, total))
    prices = hourly[tuple(droppable.T)]
    for model, region, gpu in droppable[np.argsort(-prices, kind="stable")]:
        served, serves = served_by[:, model, region], served_by[:, model].min(axis=0)
        others = np.delete(serves, region)
        # Capacity of the other regions, without the largest if a region may be lost.
        others = others.sum() - (others.max(initial=0.0) if problem.lose_region else 0.0)
        # What this region has to serve: its own demand, and of the joint demand what others miss.
        required = min(float(served.min()), max(local[model, region], total[model] - others))
        present, fewer = int(target[model, region, gpu]), int(problem.minimum[model, region, gpu])
        drops = {}  # by side: tokens/s lost, by number of instances removed
        for side_index, side in enumerate(all_sides):
            if side.columns[gpu]:
                pool = (
                    capacity_curve(problem, model, gpu, present, int(side.lost[gpu])) / side.share
                )
                drops[side_index] = pool[present] - pool[fewer : present + 1][::-1]
        # Remove as many as leave every side with enough.
        count = min(
            int(np.searchsorted(drop, max(0.0, served[side_index] - required), side="right")) - 1
            for side_index, drop in drops.items()
        )
        target[model, region, gpu] -= count
        for side_index, drop in drops.items():
            served_by[side_index, model, region] -= drop[count]


def _removable(
    problem: PlanningProblem,
    all_sides: Sequence[Side],
    served_by: FloatArray,
    target: IntArray,
    local: FloatArray,
    total: FloatArray,
) -> BoolArray:
    """Return True for pools that can lose an instance with all demand still covered, ``[l, r, g]``.

    Each pool is tested as if it alone lost one. Removals elsewhere never make a pool removable that
    was not.
    """
    serves = served_by.min(axis=0)
    others = serves.sum(axis=1, keepdims=True) - serves
    if problem.lose_region:
        ranked = np.argsort(serves, axis=1)
        best = np.take_along_axis(serves, ranked[:, -1:], axis=1)
        second = np.take_along_axis(serves, ranked[:, -2:-1], axis=1)
        first = np.arange(serves.shape[1]) == ranked[:, -1:]
        others = others - np.where(first, second if second.size else 0.0, best)
    required = np.minimum(serves, np.maximum(local, total[:, None] - others))
    removable = target > problem.minimum
    for side, served in zip(all_sides, served_by, strict=True):
        fewer = carried_by_pools(problem, target, side.lost) - carried_by_pools(
            problem, target - 1, side.lost
        )
        spare = (served - required) * (1 + LOOSE) + LOOSE * served
        removable &= ~side.columns | (fewer / side.share <= spare[..., None])
    return removable
