"""Choose what to serve when capacity is short: limited mode (methods.md C4).

There are four greedy policies, with the names of the Workload Variant Autoscaler (seed 002, future
work). ``Exact`` is a fifth one: the program of ``solve_horizon`` with a ``priority``.

A workload is a model's local need in one region, or its joint peak beyond the local needs. Its
value per token/s is the model's ``weight``. Models of equal weight form a priority group. With
tiers, a workload is the part of such a need that belongs to tiers of equal weight. A model's most
valuable tiers can then come before another model's, and its other tiers after.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.covering import Covering, Needs
from planner.optimizer.figures import (
    TOLERANCE,
    cap_use,
    global_need_tps,
    gpus_used,
    local_need_tps,
    local_served_tps,
)
from planner.optimizer.objective import caps
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.validation import validate
from simulation.arrays import FloatArray, IntArray

EXACT, NONE, PRIORITY_EXHAUSTIVE, PRIORITY_ROUND_ROBIN, ROUND_ROBIN = POLICIES = (
    "Exact",
    "None",
    "PriorityExhaustive",
    "PriorityRoundRobin",
    "RoundRobin",
)
GREEDY = POLICIES[1:]


@dataclass(frozen=True, slots=True, eq=False)
class LimitedPlan:
    """Instances of a plan and the demand that they leave unserved."""

    target: IntArray  # [l, r, g]
    unserved_tps: FloatArray  # [l, r] of each region's local need
    unserved_joint_tps: FloatArray  # [l] of the joint peak beyond the local needs


@dataclass(frozen=True, slots=True)
class _Workload:
    """A demand to serve: one model in one region, or a joint peak beyond the regional demands."""

    weight: float
    model: int
    region: int  # -1: the joint need, in any region
    need: float  # tokens/s, including those of the model's tiers of higher weight there
    own: float  # tokens/s of ``need`` for the workload's tiers alone


def serve_limited(
    problem: PlanningProblem,
    weight: FloatArray,
    policy: str,
    tier_tps: FloatArray | None = None,
    tier_weights: FloatArray | None = None,
) -> LimitedPlan:
    """Return the instances that serve as much as capacity allows, the most valuable demand first.

    ``weight [model]`` > 0 is the value of a token/s of each model. With ``tier_tps``
    ``[tier, model, region, bin]``, the ``tier_weights`` ``[tier, model]`` replace it. A workload is
    the demand of a model in a region, or the joint peak beyond that. Workloads are served by
    falling weight, then by falling demand. Minimums are always met.

    - ``None`` serves each workload whole or not at all.
    - ``PriorityExhaustive`` serves each as far as capacity allows before the next.
    - ``PriorityRoundRobin`` does so with groups of equal weight. In a group, each workload gets one
      instance per round.
    - ``RoundRobin`` gives each workload, of any weight, one instance per round.

    Raises ``ScenarioError`` for invalid input, including minimums that do not fit.
    """
    validate(problem)
    if np.any(gpus_used(problem, problem.minimum) > problem.capacity_gpus):
        raise ScenarioError("The minimums take more GPUs than there are: lower one of them.")
    if np.isfinite(problem.churn):
        raise ScenarioError("Greedy policies ignore limits on changes. Use Exact.")
    if not _respects_caps(problem, problem.minimum):
        raise ScenarioError("The minimums take more than the budget or carbon cap: raise it.")
    tiers = None if tier_tps is None or tier_weights is None else (tier_tps, tier_weights)
    target = _greedy_by_policy(problem, weight, policy, tiers)
    local, joint = unserved_demand(problem, target)
    target.setflags(write=False)
    return LimitedPlan(target, local, joint)


def unserved_demand(problem: PlanningProblem, target: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the unserved tokens/s of local needs and of joint peaks.

    They are ``[model, region]`` and ``[model]``. What is missing of a local need is not counted
    again for the joint peak.
    """
    served_tps = local_served_tps(problem, target)
    need_tps, peak_tps = local_need_tps(problem), global_need_tps(problem)
    local_missing = np.where(served_tps < need_tps * (1 - TOLERANCE), need_tps - served_tps, 0.0)
    joint_missing = peak_tps - served_tps.sum(axis=1) - local_missing.sum(axis=1)
    return local_missing, np.where(joint_missing > TOLERANCE * peak_tps, joint_missing, 0.0)


def _greedy_by_policy(
    problem: PlanningProblem,
    weight: FloatArray,
    policy: str,
    tiers: tuple[FloatArray, FloatArray] | None,
) -> IntArray:
    """Return the instances that a greedy ``policy`` chooses, ``[model, region, GPU column]``.

    ``tiers`` are the demand and weights by tier, if these replace ``weight``.
    """
    fleet, workloads = _GreedyFleet(problem), _workloads(problem, weight, tiers)
    if policy in (NONE, PRIORITY_EXHAUSTIVE):
        for workload in workloads:
            before = fleet.snapshot()
            if fleet.serve(workload) > 0 and policy == NONE:  # served in part, so not at all
                fleet.restore(before)
                fleet.skip(workload)
        return fleet.target
    if policy == PRIORITY_ROUND_ROBIN:  # workloads of one weight after those of another
        for _, group in groupby(workloads, key=lambda workload: workload.weight):
            fleet.serve_in_turn(list(group))
    else:
        fleet.serve_in_turn(workloads)
    return fleet.target


class _GreedyFleet:
    """The instances chosen so far, ``target [model, region, GPU column]``, minimums included."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem, self._covering = problem, Covering(problem)
        self.target = self._covering.target
        # tokens/s of skipped workloads by model and region; later tiers must not serve them
        self._skipped: dict[tuple[int, int], float] = {}

    def snapshot(self) -> tuple[IntArray, IntArray]:
        """Return copies of the instances and of the free GPUs, for ``restore``."""
        return self.target.copy(), self._covering.free.copy()

    def restore(self, saved: tuple[IntArray, IntArray]) -> None:
        """Go back to the instances and free GPUs of ``saved``."""
        self.target[:], self._covering.free[:] = saved

    def skip(self, workload: _Workload) -> None:
        """Leave ``workload`` unserved, also as a part of the needs of tiers of lower weight."""
        key = workload.model, workload.region
        self._skipped[key] = self._skipped.get(key, 0.0) + workload.own

    def serve_in_turn(self, waiting: list[_Workload]) -> None:
        """Add one instance for each workload in turn, until all are served or none fits."""
        while waiting:
            instances_before = self.target.sum()
            waiting = [workload for workload in waiting if self.serve(workload, single=True) > 0]
            if self.target.sum() == instances_before:
                return

    def serve(self, workload: _Workload, *, single: bool = False) -> float:
        """Add instances for ``workload`` (one if ``single``), as far as GPUs and caps allow.

        Returns the tokens/s that remain unserved. The result is above 0 if a cap, such as the
        budget, ends the addition.
        """
        needs = self._needs(workload)
        if not caps(self._problem):
            return float(self._covering.cover(needs, single=single)[0])
        # Add one instance at a time, so that a step over the budget or carbon cap can be undone.
        while True:
            before = self.snapshot()
            unserved = float(self._covering.cover(needs, single=True)[0])
            if not _respects_caps(self._problem, self.target):
                self.restore(before)
                return max(unserved, TOLERANCE)
            if single or unserved <= 0 or self.target.sum() == before[0].sum():
                return unserved

    def _needs(self, workload: _Workload) -> Needs:
        """Return the need of a workload, without what is skipped or is a workload of its own."""
        problem, model = self._problem, workload.model
        need = workload.need - self._skipped.get((model, workload.region), 0.0)
        if workload.region >= 0:
            return Needs.one(model, (workload.region,), need)
        # A joint demand: unmet local needs are workloads of their own.
        local_tps = local_need_tps(problem)[model]
        served_tps = local_served_tps(problem, self.target)[model]
        need -= float(np.maximum(0.0, local_tps - served_tps).sum())
        return Needs.one(model, range(len(problem.regions)), need)


def _respects_caps(problem: PlanningProblem, target: IntArray) -> bool:
    """Return whether the target respects every plan-wide cap."""
    return all(
        cap_use(problem, target, cap) <= cap.limit * (1 + TOLERANCE) for cap in caps(problem)
    )


def unserved_by_tier(
    local_missing: FloatArray,
    joint_missing: FloatArray,
    tier_tps: FloatArray,
    epsilon: float,
    tier_weights: FloatArray,
) -> FloatArray:
    """Return the unserved tokens/s ``[tier, model]``; tiers of low weight lose first.

    ``local_missing [model, region]`` is the unserved demand of regions. ``joint_missing [model]``
    is the unserved joint peak beyond that. In a region, a tier loses at most the share ``epsilon``
    of its peak there, from ``tier_tps [tier, model, region, bin]``. Over all regions, it loses at
    most its whole demand. ``tier_weights`` are ``[tier, model]``.
    """
    local_need_tps = epsilon * tier_tps.max(axis=3)
    peak_tps = np.maximum(local_need_tps.sum(axis=2), tier_tps.sum(axis=2).max(axis=2))
    unserved = np.zeros(tier_weights.shape)
    for model, joint_missing_tps in enumerate(joint_missing.tolist()):
        lowest_first = np.argsort(tier_weights[:, model], kind="stable").tolist()
        lost_tps = unserved[:, model]  # a view, which is changed in place
        for region, missing_tps in enumerate(local_missing[model].tolist()):
            _lose(lost_tps, missing_tps, local_need_tps[:, model, region], lowest_first)
        _lose(lost_tps, joint_missing_tps, peak_tps[:, model] - lost_tps, lowest_first)
    return unserved


def _lose(
    lost_tps: FloatArray, missing_tps: float, max_tps: FloatArray, tier_order: list[int]
) -> None:
    """Add ``missing_tps`` to what tiers have ``lost_tps``, at most ``max_tps [tier]`` each."""
    for tier in tier_order:
        taken_tps = min(missing_tps, float(max_tps[tier]))
        lost_tps[tier] += taken_tps
        missing_tps -= taken_tps


def _workloads(
    problem: PlanningProblem, weight: FloatArray, tiers: tuple[FloatArray, FloatArray] | None
) -> list[_Workload]:
    """Return the workloads: by falling weight, then regional before joint ones, then large first.

    ``tiers`` are the demand and weights by tier, if these replace ``weight``.
    """
    local, joint = local_need_tps(problem), global_need_tps(problem)
    workloads: list[_Workload] = []
    for model, region in np.argwhere(local > 0).tolist():
        workloads += _split_by_weight(weight, tiers, model, region, float(local[model, region]))
    for (model,) in np.argwhere(joint > 0).tolist():  # -1: of all regions together
        workloads += _split_by_weight(weight, tiers, model, -1, float(joint[model]))
    return sorted(workloads, key=lambda work: (-work.weight, work.region < 0, -work.own))


def _split_by_weight(
    weight: FloatArray,
    tiers: tuple[FloatArray, FloatArray] | None,
    model: int,
    region: int,
    need: float,
) -> Iterator[_Workload]:
    """Split a model's ``need`` (tokens/s) into workloads by the weight of its tiers, highest first.

    ``tiers`` are demand ``[tier, model, region, bin]`` and weights ``[tier, model]``; None: one
    workload of the model's ``weight``. The tiers of at least a given weight together need a share
    of ``need``: their joint peak over that of all tiers. ``region`` -1 stands for the joint peak of
    all regions.
    """
    if tiers is None:
        yield _Workload(float(weight[model]), model, region, need, need)
        return
    tier_tps, tier_weights = tiers
    # Demand ``[tier, bin]`` in the region, or in all regions together.
    demand_tps = tier_tps[:, model, region] if region >= 0 else tier_tps[:, model].sum(axis=1)
    peak = float(demand_tps.sum(axis=0).max())
    if peak <= 0:
        return
    higher_need = 0.0  # of the tiers of higher weight together
    for tier_weight in np.unique(tier_weights[:, model])[::-1]:
        included_tps = demand_tps[tier_weights[:, model] >= tier_weight]
        included_need = need * float(included_tps.sum(axis=0).max()) / peak
        if included_need > higher_need:
            own_need = included_need - higher_need
            yield _Workload(float(tier_weight), model, region, included_need, own_need)
        higher_need = included_need
