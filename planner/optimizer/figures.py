"""Compute cost, capacity and GPU use of a target, for solvers, greedy plans and sentences."""

import numpy as np

from planner.optimizer.objective import Cap, caps, price, start_price
from planner.optimizer.pools import CapacityCurves, fewest_instances
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import Side, carried_tps, role_sides
from simulation.arrays import FloatArray, IntArray

TOLERANCE = 1e-6  # share of a demand that may be missing; solvers have the same tolerance


def local_need_tps(problem: PlanningProblem) -> FloatArray:
    """Return the tokens/s that each region must serve itself, ``[model, region]``.

    It is ``epsilon * max_w rho[l, r, w]``: a share of its peak.
    """
    need: FloatArray = problem.epsilon * problem.demand_tps.max(axis=2)
    return need


def global_need_tps(problem: PlanningProblem) -> FloatArray:
    """Return the joint peak of all regions in tokens/s, ``[l]``: ``max_w sum_r rho[l, r, w]``."""
    need: FloatArray = problem.demand_tps.sum(axis=1).max(axis=1)
    return need


def local_served_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """Return the input tokens/s that ``target`` can serve in each region, ``[model, region]``.

    The weakest side decides, such as prefill or decode.
    """
    served: FloatArray = carried_tps(problem, target).min(axis=0)
    return served


def served_without_largest_region(problem: PlanningProblem, served: FloatArray) -> FloatArray:
    """Return the tokens/s that remain if the largest region is lost, ``[model]``.

    ``served`` is by region, ``[model, region]``. If no region may be lost, it is summed over all
    regions.
    """
    remaining: FloatArray = served.sum(axis=1)
    return remaining - served.max(axis=1) if problem.lose_region else remaining


def gpus_used(problem: PlanningProblem, target: IntArray) -> IntArray:
    """Return the GPUs that ``target`` occupies, by row of capacity, shape ``[region, row]``."""
    used: IntArray = np.einsum("lrg,lg->rg", target, problem.gpus_per_instance)
    return used if problem.types is None else by_row(problem, used)


def by_row(problem: PlanningProblem, columns: IntArray) -> IntArray:
    """Return sums of ``columns [region, GPU column]`` by region and row of capacity."""
    total = np.zeros_like(problem.capacity_gpus)
    np.add.at(total.T, problem.rows, columns.T)
    return total


def fleet_usd(problem: PlanningProblem, target: IntArray) -> float:
    """Return the charge for an hour of the instances ``target``, in US dollars by default.

    Other weights of the objective have other units.
    """
    return float((price(problem) * target).sum())


def min_fleet_usd(problem: PlanningProblem) -> float:
    """Return a lower bound on the hourly cost of any plan of ``problem``, in US dollars.

    It counts whole instances of models that have one column, and fractions of instances otherwise.
    Limits of GPUs, power and cost do not count.
    """
    usd, steepest = problem.usd_per_hour, CapacityCurves.from_problem(problem).steepest
    enough = 1.0 - TOLERANCE
    local, joint = local_need_tps(problem) * enough, global_need_tps(problem) * enough
    by_region = (usd * problem.minimum).sum(axis=2)
    together = np.zeros(len(problem.models))

    def cheapest(i: int, side: Side, column_usd: FloatArray, need: float) -> float:
        """Return the least cost of model ``i``'s instances in ``side`` that serve ``need``."""
        columns = np.flatnonzero(side.columns & (problem.theta_tps[i] > 0))
        if len(columns) == 1:
            k, need = int(columns[0]), need * side.share
            fewest = fewest_instances(problem, i, k, need, int(side.lost[k]))
            return float(column_usd[k]) * fewest
        per_tps = column_usd[columns] / steepest[i, columns]
        return need * side.share * float(per_tps.min(initial=np.inf)) if len(columns) else 0.0

    for side in role_sides(problem):
        for i in range(len(problem.models)):
            # Pools of all regions serve at most what one pool of all their instances serves.
            least = cheapest(i, side, usd[i].min(axis=0), float(joint[i]))
            together[i] = max(together[i], least)
            for j in range(len(problem.regions)):
                least = cheapest(i, side, usd[i, j], float(local[i, j]))
                by_region[i, j] = max(by_region[i, j], least)
    return float(np.maximum(by_region.sum(axis=1), together).sum())


def start_usd(problem: PlanningProblem, target: IntArray) -> float:
    """Return the charge for the starts of ``target``: instances beyond the present fleet."""
    return float((start_price(problem) * np.maximum(0, target - problem.current)).sum())


def cap_use(problem: PlanningProblem, target: IntArray, cap: Cap) -> float:
    """Return how much of ``cap`` the plan ``target`` uses, in the unit of the limit."""
    starts = np.maximum(0, target - problem.current)
    return float((cap.per_instance * target + cap.per_start * starts).sum())


def cap_limit(cap: Cap) -> float:
    """Return the limit of ``cap`` plus the tolerance of solvers."""
    return cap.limit + TOLERANCE * max(1.0, abs(cap.limit))


def is_feasible(problem: PlanningProblem, target: IntArray) -> bool:
    """Return True if ``target`` meets every constraint of the program, within ``TOLERANCE``."""
    served = local_served_tps(problem, target)
    enough = 1.0 - TOLERANCE
    return bool(
        np.all(target >= problem.minimum)
        and np.all(target <= problem.maximum)
        and np.all(gpus_used(problem, target) <= problem.capacity_gpus)
        and np.all(served >= local_need_tps(problem) * enough)
        and np.all(served.sum(axis=1) >= global_need_tps(problem) * enough)
        and np.all(
            served_without_largest_region(problem, served) >= global_need_tps(problem) * enough
        )
        and all(cap_use(problem, target, cap) <= cap_limit(cap) for cap in caps(problem))
    )
