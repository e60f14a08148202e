"""Find a quick target without a solver: the cheapest cover per model and region."""

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
    _cover_local(covering, local, column_choices)
    all_regions = list(range(len(problem.regions)))
    for model in np.lexsort((-joint, column_choices)):
        if joint[model] <= 0:
            continue
        covering.cover(Needs.one(model, all_regions, float(joint[model])))
        for lost in all_regions if problem.lose_region else ():
            others = [region for region in all_regions if region != lost]
            covering.cover(Needs.one(model, others, float(joint[model])))
    _Removal(problem, covering.target, local, joint).remove_dearest_first()
    return covering.target


def _cover_local(covering: Covering, local: FloatArray, column_choices: IntArray) -> None:
    """Cover the local demand by region: models with few columns first, then the largest demand."""
    choices = np.broadcast_to(column_choices[:, None], local.shape)
    order = np.lexsort((-local, choices), axis=0)  # [place, region] the models of each region
    for models in order:
        regions = np.flatnonzero(local[models, range(len(models))] > 0)
        needed = models[regions]
        covering.cover(Needs(needed, regions[:, None], local[needed, regions]))


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
        """Remove the most instances of a pool that leave every side with enough."""
        required = self._required_tps(model, region)
        cell = model, region, column
        removed = int(self.target[cell] - self.problem.minimum[cell])
        lost_tps = {}  # by side
        for index, side in enumerate(self.sides):
            if side.columns[column]:
                lost = self._lost_tps(side, model, region, column)
                spare = max(0.0, self.served_tps[index, model, region] - required)
                removed = min(removed, int((lost <= spare).sum()) - 1)
                lost_tps[index] = lost
        self.target[cell] -= removed
        for index, lost in lost_tps.items():
            self.served_tps[index, model, region] -= lost[removed]

    def _required_tps(self, model: int, region: int) -> float:
        """Return what a region has to serve: its own demand, and the joint one others cannot."""
        by_region = self.served_tps[:, model].min(axis=0)
        elsewhere = np.delete(by_region, region)
        others_tps = float(elsewhere.sum())
        if self.problem.lose_region:  # the largest of them
            others_tps -= elsewhere.max(initial=0.0)
        demand_here = max(self.local[model, region], self.joint[model] - others_tps)
        return float(min(by_region[region], demand_here))

    def _lost_tps(self, side: Side, model: int, region: int, column: int) -> FloatArray:
        """Return the tokens/s that ``side`` loses with 0, 1, 2, ... instances less of a pool."""
        present = int(self.target[model, region, column])
        least = int(self.problem.minimum[model, region, column])
        curve = capacity_curve(self.problem, model, column, present, int(side.lost[column]))
        pool_tps = curve / side.share  # with 0 to ``present`` instances
        return np.asarray(pool_tps[present] - pool_tps[least : present + 1][::-1])

    def _removable(self) -> BoolArray:
        """Return True for pools that can lose an instance with all demand still covered.

        The shape is ``[model, region, GPU column]``. Each pool is tested as if no other pool lost
        an instance. A removal never makes another pool removable.
        """
        weakest = self.served_tps.min(axis=0)
        others = weakest.sum(axis=1, keepdims=True) - weakest
        if self.problem.lose_region:
            others = others - _largest_other_region(weakest)
        # A region has to serve its own demand, and the joint demand that others cannot.
        required = np.minimum(weakest, np.maximum(self.local, self.joint[:, None] - others))
        removable = self.target > self.problem.minimum
        for side, side_tps in zip(self.sides, self.served_tps, strict=True):
            carried = carried_by_pools(self.problem, self.target, side.lost)
            drop = carried - carried_by_pools(self.problem, self.target - 1, side.lost)
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
