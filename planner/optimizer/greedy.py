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

ROUNDING = 1e-9  # share of the served tokens/s


def greedy_target(problem: PlanningProblem) -> IntArray:
    """Return the instance counts of a greedy plan, ``[model, region, GPU column]``.

    It is used when a solver has no answer. It starts from the minimums. Then the local demand of
    each region is covered: models with the fewest GPU columns first, then the largest demand. Then
    the joint demand of all regions is covered. Last, unneeded instances are removed. The target
    never exceeds a maximum. It exceeds a capacity only if the minimums alone do. Demand may stay
    uncovered where capacity is short. There is no time limit: 1,000 models in 200 regions take a
    few seconds.
    """
    covering = Covering(problem)
    column_choices = (problem.theta_tps > 0).sum(axis=1)  # of each model
    local, joint = local_need_tps(problem), global_need_tps(problem)
    all_regions = list(range(len(problem.regions)))

    # Models in the order of each region: few choices first, then by falling demand, [place, r].
    order = np.lexsort((-local, np.broadcast_to(column_choices[:, None], local.shape)), axis=0)
    for models in order:  # one model of each region at a time
        regions = np.flatnonzero(local[models, all_regions] > 0)
        models_needed = models[regions]
        covering.cover(Needs(models_needed, regions[:, None], local[models_needed, regions]))
    for model in np.lexsort((-joint, column_choices)):
        if joint[model] <= 0:
            continue
        covering.cover(Needs.one(model, all_regions, float(joint[model])))
        for lost in all_regions if problem.lose_region else ():
            others = [region for region in all_regions if region != lost]
            covering.cover(Needs.one(model, others, float(joint[model])))
    _remove_unneeded(problem, price(problem), covering.target, local, joint)
    return covering.target


def _remove_unneeded(
    problem: PlanningProblem,
    hourly: FloatArray,
    target: IntArray,
    local: FloatArray,
    joint: FloatArray,
) -> None:
    """Remove the dearest instances of ``target`` while all demand stays covered.

    ``target`` changes in place. ``hourly [model, region, GPU column]`` is the price of an instance.
    ``local [model, region]`` and ``joint [model]`` are the demands in tokens/s.
    """
    all_sides = role_sides(problem)
    served_tps = carried_tps(problem, target)  # [side, model, region]
    removable = np.argwhere(_removable(problem, all_sides, served_tps, target, local, joint))
    prices = hourly[tuple(removable.T)]
    for model, region, column in removable[np.argsort(-prices, kind="stable")]:
        served_here = served_tps[:, model, region]  # by side
        elsewhere = np.delete(served_tps[:, model].min(axis=0), region)
        # Capacity of the other regions, without the largest if a region may be lost.
        others_tps = elsewhere.sum()
        if problem.lose_region:
            others_tps -= elsewhere.max(initial=0.0)
        # This region has to serve its own demand, and the joint demand that others cannot.
        demand_here = max(local[model, region], joint[model] - others_tps)
        required = min(float(served_here.min()), demand_here)

        # Remove the most instances that leave every side with enough.
        present = int(target[model, region, column])
        least = int(problem.minimum[model, region, column])
        removed = present - least
        lost_tps = {}  # by side: tokens/s lost with 0, 1, 2, ... instances removed
        for side_index, side in enumerate(all_sides):
            if not side.columns[column]:
                continue
            curve = capacity_curve(problem, model, column, present, int(side.lost[column]))
            pool_tps = curve / side.share  # with 0 to ``present`` instances
            lost = pool_tps[present] - pool_tps[least : present + 1][::-1]
            spare = max(0.0, served_here[side_index] - required)
            removed = min(removed, int((lost <= spare).sum()) - 1)
            lost_tps[side_index] = lost
        target[model, region, column] -= removed
        for side_index, lost in lost_tps.items():
            served_tps[side_index, model, region] -= lost[removed]


def _removable(
    problem: PlanningProblem,
    all_sides: Sequence[Side],
    served_tps: FloatArray,
    target: IntArray,
    local: FloatArray,
    joint: FloatArray,
) -> BoolArray:
    """Return True for pools that can lose an instance with all demand still covered.

    The shape is ``[model, region, GPU column]``. Each pool is tested as if no other pool lost an
    instance. A removal never makes another pool removable. ``served_tps [side, model, region]``,
    ``local [model, region]`` and ``joint [model]`` are in tokens/s. A side is a group of GPU
    columns, such as those of prefill.
    """
    weakest = served_tps.min(axis=0)
    others = weakest.sum(axis=1, keepdims=True) - weakest
    if problem.lose_region:
        others = others - _largest_other_region(weakest)
    # A region has to serve its own demand, and the joint demand that others cannot.
    required = np.minimum(weakest, np.maximum(local, joint[:, None] - others))
    removable = target > problem.minimum
    for side, side_tps in zip(all_sides, served_tps, strict=True):
        carried = carried_by_pools(problem, target, side.lost)
        drop = carried - carried_by_pools(problem, target - 1, side.lost)
        spare = (side_tps - required) * (1 + ROUNDING) + ROUNDING * side_tps
        removable &= ~side.columns | (drop / side.share <= spare[..., None])
    return removable


def _largest_other_region(served: FloatArray) -> FloatArray:
    """Return, for each region, the tokens/s of the largest other region, ``[model, region]``.

    ``served [model, region]`` is in tokens/s. The result is 0 with a single region.
    """
    if served.shape[1] == 1:
        return np.zeros(served.shape)
    largest_region = np.argsort(served, axis=1)[:, -1:]
    second, largest = np.split(np.sort(served, axis=1)[:, -2:], 2, axis=1)
    is_largest = np.arange(served.shape[1]) == largest_region
    return np.where(is_largest, second, largest)
