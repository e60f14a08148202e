"""Find a quick target without a solver: the cheapest cover per model and region."""

import numpy as np

from planner.optimizer.covering import Covering, Needs
from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.objective import price
from planner.optimizer.pools import capacity_curve, carried_by_pools
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import carried_tps, role_sides
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
    local_tps, joint_tps = local_need_tps(problem), global_need_tps(problem)
    # Cover the local demand by region: models with few columns first, then the largest demand.
    choices = np.broadcast_to(column_choices[:, None], local_tps.shape)
    models_by_turn = np.lexsort((-local_tps, choices), axis=0)  # [turn, region]
    for model_by_region in models_by_turn:
        own_tps = local_tps[model_by_region, range(len(model_by_region))]
        regions = np.flatnonzero(own_tps > 0)
        covering.cover(Needs(model_by_region[regions], regions[:, None], own_tps[regions]))
    all_regions = list(range(len(problem.regions)))
    for model in np.lexsort((-joint_tps, column_choices)):
        if joint_tps[model] <= 0:
            continue
        covering.cover(Needs.one(model, all_regions, float(joint_tps[model])))
        lost_regions = all_regions if problem.lose_region else []
        for lost_region in lost_regions:
            other_regions = [region for region in all_regions if region != lost_region]
            covering.cover(Needs.one(model, other_regions, float(joint_tps[model])))
    _Removal(problem, covering.target, local_tps, joint_tps).remove_dearest_first()
    return covering.target


class _Removal:
    """A fleet from which unneeded instances are removed while all demand stays covered.

    ``target [model, region, GPU column]`` are its instances, and changes in place. ``local [model,
    region]`` and ``joint [model]`` are the demands in tokens/s. A side is a group of GPU columns,
    such as those of prefill.
    """

    def __init__(
        self, problem: PlanningProblem, target: IntArray, local: FloatArray, joint: FloatArray
    ) -> None:
        self.problem, self.target, self.local, self.joint = problem, target, local, joint
        self.sides = role_sides(problem)
        self.served_tps = carried_tps(problem, target)  # [side, model, region]

    def remove_dearest_first(self) -> None:
        """Remove the most instances of each pool, the dearest pool first."""
        removable = np.argwhere(self._removable())
        prices = price(self.problem)[tuple(removable.T)]
        for model, region, column in removable[np.argsort(-prices, kind="stable")].tolist():
            self._remove_from(model, region, column)

    def _remove_from(self, model: int, region: int, column: int) -> None:
        """Remove the most instances of a pool that leave every side with enough.

        A side is the GPU columns of one role, such as prefill.
        """
        required = self._required_tps(model, region)
        pool = model, region, column
        present, minimum = int(self.target[pool]), int(self.problem.minimum[pool])
        removed = present - minimum
        lost_by_side = {}
        for index, side in enumerate(self.sides):
            if side.columns[column]:
                lost_count = int(side.lost[column])
                curve = capacity_curve(self.problem, model, column, present, lost_count)
                pool_tps = curve / side.share  # of 0 to ``present`` instances
                # The tokens/s that the side loses with 0, 1, 2, ... instances less. They rise.
                lost_tps = pool_tps[present] - pool_tps[minimum : present + 1][::-1]
                spare_tps = max(0.0, self.served_tps[index, model, region] - required)
                removable_count = (
                    int((lost_tps <= spare_tps).sum()) - 1
                )  # 0 instances less: no count
                removed = min(removed, removable_count)
                lost_by_side[index] = lost_tps
        self.target[pool] -= removed
        for index, lost_tps in lost_by_side.items():
            self.served_tps[index, model, region] -= lost_tps[removed]

    def _required_tps(self, model: int, region: int) -> float:
        """Return what a region has to serve: its own demand, and the joint one others cannot."""
        served_tps = self.served_tps[:, model].min(axis=0)
        others_by_region = np.delete(served_tps, region)
        others_tps = float(others_by_region.sum())
        if self.problem.lose_region:  # the largest of them
            others_tps -= others_by_region.max(initial=0.0)
        demand_here = max(self.local[model, region], self.joint[model] - others_tps)
        return float(min(served_tps[region], demand_here))

    def _removable(self) -> BoolArray:
        """Return True for pools that can lose an instance with all demand still covered.

        The shape is ``[model, region, GPU column]``. Each pool is tested as if no other pool lost
        an instance. A removal never makes another pool removable.
        """
        served_tps = self.served_tps.min(axis=0)  # [model, region] by the weakest side
        # What the other regions serve, less the largest of them if it may be lost.
        others_tps = served_tps.sum(axis=1, keepdims=True) - served_tps
        if self.problem.lose_region:
            others_tps = others_tps - _largest_other_region(served_tps)
        # A region has to serve its own demand, and the joint demand that others cannot.
        demand_here = np.maximum(self.local, self.joint[:, None] - others_tps)
        required_tps = np.minimum(served_tps, demand_here)
        removable = self.target > self.problem.minimum
        for side, side_tps in zip(self.sides, self.served_tps, strict=True):
            carried_tps = carried_by_pools(self.problem, self.target, side.lost)
            lost_tps = carried_tps - carried_by_pools(self.problem, self.target - 1, side.lost)
            spare_tps = (side_tps - required_tps) * (1 + ROUNDING) + ROUNDING * side_tps
            removable &= ~side.columns | (lost_tps / side.share <= spare_tps[..., None])
        return removable


def _largest_other_region(served: FloatArray) -> FloatArray:
    """Return, for each region, the tokens/s of the largest other region, ``[model, region]``.

    ``served [model, region]`` is in tokens/s. The result is 0 with a single region.
    """
    if served.shape[1] == 1:
        return np.zeros(served.shape)
    largest_region = np.argsort(served, axis=1)[:, -1:]
    second_largest, largest = np.split(np.sort(served, axis=1)[:, -2:], 2, axis=1)
    is_largest = np.arange(served.shape[1]) == largest_region
    return np.where(is_largest, second_largest, largest)
