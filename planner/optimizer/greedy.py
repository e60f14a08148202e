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
    """Return the instance counts of a greedy plan, for when a solver has no answer.

    The shape is ``[model, region, GPU column]``. The minimums come first. Then each region's own
    demand is covered: models with the fewest GPU types first, then the largest demand. Then the
    joint demand of all regions is covered. Last, unneeded instances are removed. The target never
    exceeds a maximum. It stays within each capacity that the minimums respect. Demand may stay
    uncovered where capacity is short. There is no time limit: 1,000 models in 200 regions take a
    few seconds.
    """
    covering = Covering(problem)
    gpu_choices = (problem.theta_tps > 0).sum(axis=1)  # of each model
    local, total = local_need_tps(problem), global_need_tps(problem)
    everywhere = list(range(len(problem.regions)))

    # By region: models with few choices first, then by falling demand, [l, r].
    order = np.lexsort((-local, np.broadcast_to(gpu_choices[:, None], local.shape)), axis=0)
    for models in order:  # the next model of each region
        needed = np.flatnonzero(local[models, everywhere] > 0)
        models_needed = models[needed]
        covering.cover(Needs(models_needed, needed[:, None], local[models_needed, needed]))
    for model in np.lexsort((-total, gpu_choices)):
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

    ``hourly [model, region, GPU column]`` is the price of an instance. ``local [model, region]``
    and ``total [model]`` are the demands in tokens/s.
    """
    served_by = carried_tps(problem, target)  # by side
    all_sides = role_sides(problem)
    droppable = np.argwhere(_removable(problem, all_sides, served_by, target, local, total))
    prices = hourly[tuple(droppable.T)]
    for model, region, gpu in droppable[np.argsort(-prices, kind="stable")]:
        served_here = served_by[:, model, region]  # by side
        elsewhere = np.delete(served_by[:, model].min(axis=0), region)
        # Capacity of the other regions, without the largest if a region may be lost.
        others_tps = elsewhere.sum() - (elsewhere.max(initial=0.0) if problem.lose_region else 0.0)
        # This region has to serve its own demand, and the joint demand that others cannot.
        demand_here = max(local[model, region], total[model] - others_tps)
        required = min(float(served_here.min()), demand_here)
        present = int(target[model, region, gpu])
        least = int(problem.minimum[model, region, gpu])
        lost_tps = {}  # by side: tokens/s lost with 0, 1, 2, ... instances removed
        for side_index, side in enumerate(all_sides):
            if side.columns[gpu]:
                # Tokens/s with 0 to ``present`` instances.
                curve = capacity_curve(problem, model, gpu, present, int(side.lost[gpu]))
                pool_tps = curve / side.share
                lost_tps[side_index] = pool_tps[present] - pool_tps[least : present + 1][::-1]
        # Remove as many as leave every side with enough.
        spare = np.maximum(0.0, served_here - required)  # by side
        removed = min(
            int(np.searchsorted(lost, spare[side_index], side="right")) - 1
            for side_index, lost in lost_tps.items()
        )
        target[model, region, gpu] -= removed
        for side_index, lost in lost_tps.items():
            served_by[side_index, model, region] -= lost[removed]


def _removable(
    problem: PlanningProblem,
    all_sides: Sequence[Side],
    served_by: FloatArray,
    target: IntArray,
    local: FloatArray,
    total: FloatArray,
) -> BoolArray:
    """Return True for pools that can lose an instance with all demand still covered.

    The shape is ``[model, region, GPU column]``. Each pool is tested as if no other pool lost an
    instance. A removal never makes another pool removable. ``served_by [side, model, region]``,
    ``local [model, region]`` and ``total [model]`` are in tokens/s.
    """
    served = served_by.min(axis=0)
    others = served.sum(axis=1, keepdims=True) - served
    if problem.lose_region:
        others = others - _largest_other_region(served)
    # A region has to serve its own demand, and the joint demand that others cannot.
    required = np.minimum(served, np.maximum(local, total[:, None] - others))
    removable = target > problem.minimum
    for side, by_side in zip(all_sides, served_by, strict=True):
        carried = carried_by_pools(problem, target, side.lost)
        drop = carried - carried_by_pools(problem, target - 1, side.lost)
        spare = (by_side - required) * (1 + LOOSE) + LOOSE * by_side
        removable &= ~side.columns | (drop / side.share <= spare[..., None])
    return removable


def _largest_other_region(served: FloatArray) -> FloatArray:
    """Return the tokens/s of the largest region but each one itself, ``[model, region]``.

    ``served`` has the same shape. It is 0 with a single region.
    """
    ranked = np.argsort(served, axis=1)
    largest = np.take_along_axis(served, ranked[:, -1:], axis=1)
    second = np.take_along_axis(served, ranked[:, -2:-1], axis=1)
    is_largest = np.arange(served.shape[1]) == ranked[:, -1:]
    return np.where(is_largest, second if second.size else 0.0, largest)
