"""Compute cost, capacity and GPU use of a target, for solvers, greedy plans and sentences.

A target is the instances of a plan, ``[model, region, GPU column]``.
"""

import numpy as np

from planner.optimizer.objective import Cap, caps, price, start_price
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import carried_tps
from simulation.arrays import FloatArray, IntArray

TOLERANCE = 1e-6  # share of a demand that may be missing; solvers have the same tolerance


def local_need_tps(problem: PlanningProblem) -> FloatArray:
    """Return the tokens/s that each region must serve itself, ``[model, region]``.

    It is the share ``epsilon`` of the region's peak demand.
    """
    need: FloatArray = problem.epsilon * problem.demand_tps.max(axis=2)
    return need


def global_need_tps(problem: PlanningProblem) -> FloatArray:
    """Return the peak of the demand summed over regions, in tokens/s, ``[model]``."""
    need: FloatArray = problem.demand_tps.sum(axis=1).max(axis=1)
    return need


def local_served_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """Return the input tokens/s that ``target`` can serve in each region, ``[model, region]``.

    The weakest side decides: a group of GPU columns such as prefill or decode.
    """
    served: FloatArray = carried_tps(problem, target).min(axis=0)
    return served


def served_without_largest_region(problem: PlanningProblem, served: FloatArray) -> FloatArray:
    """Return the tokens/s of all regions together, less the largest if a region may be lost.

    The result is ``[model]``. ``served [model, region]`` is the tokens/s of each region.
    """
    remaining: FloatArray = served.sum(axis=1)
    return remaining - served.max(axis=1) if problem.lose_region else remaining


def gpus_used(problem: PlanningProblem, target: IntArray) -> IntArray:
    """Return the GPUs that ``target`` occupies, ``[region, capacity row]``."""
    used: IntArray = np.einsum("lrg,lg->rg", target, problem.gpus_per_instance)
    return used if problem.types is None else by_row(problem, used)


def by_row(problem: PlanningProblem, columns: IntArray) -> IntArray:
    """Return the sums of ``columns [region, GPU column]`` as ``[region, capacity row]``.

    A capacity row is the GPUs that several columns share.
    """
    total = np.zeros_like(problem.capacity_gpus)
    np.add.at(total.T, problem.rows, columns.T)
    return total


def fleet_usd(problem: PlanningProblem, target: IntArray) -> float:
    """Return the charge for an hour of the instances ``target``, in the objective's unit (USD)."""
    return float((price(problem) * target).sum())


def start_usd(problem: PlanningProblem, target: IntArray) -> float:
    """Return the charge for the instances that ``target`` starts, beyond the present fleet."""
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
