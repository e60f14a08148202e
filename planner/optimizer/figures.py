"""What a target costs, serves and occupies, on arrays: shared by solver, greedy and sentences."""

from __future__ import annotations

import numpy as np

from planner.optimizer.objective import Cap, caps, price, start_price
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.sides import carried_tps
from simulation.arrays import FloatArray, IntArray

TOLERANCE = 1e-6  # share of a demand that counts as served; solvers work to 1e-6 themselves


def local_need_tps(problem: PlanningProblem) -> FloatArray:
    """``epsilon * max_w rho[l, r, w]``: what each region must serve itself, shape ``[l, r]``."""
    need: FloatArray = problem.epsilon * problem.demand_tps.max(axis=2)
    return need


def global_need_tps(problem: PlanningProblem) -> FloatArray:
    """``max_w sum_r rho[l, r, w]``: what all regions must serve together, shape ``[l]``."""
    need: FloatArray = problem.demand_tps.sum(axis=1).max(axis=1)
    return need


def local_served_tps(problem: PlanningProblem, target: IntArray) -> FloatArray:
    """Input tokens/s that ``target`` serves, on its weakest side, shape ``[l, r]``."""
    served: FloatArray = carried_tps(problem, target).min(axis=0)
    return served


def without_a_region(problem: PlanningProblem, served: FloatArray) -> FloatArray:
    """Of what regions serve, ``[l, r]``, what is left without the worst one to lose, where one may
    be lost, ``[l]``."""
    left: FloatArray = served.sum(axis=1)
    return left - served.max(axis=1) if problem.lose_region else left


def gpus_used(problem: PlanningProblem, target: IntArray) -> IntArray:
    """GPUs that ``target`` occupies, by row of capacity, shape ``[r, t]``."""
    used: IntArray = np.einsum("lrg,lg->rg", target, problem.gpus_per_instance)
    return used if problem.types is None else by_row(problem, used)


def by_row(problem: PlanningProblem, columns: IntArray) -> IntArray:
    """``[r, g]`` added up by row of capacity, ``[r, t]``."""
    total = np.zeros_like(problem.capacity_gpus)
    np.add.at(total.T, problem.rows, columns.T)
    return total


def fleet_usd(problem: PlanningProblem, target: IntArray) -> float:
    """What the objective charges per hour for running ``target``: US dollars by default."""
    return float((price(problem) * target).sum())


def start_usd(problem: PlanningProblem, target: IntArray) -> float:
    """What the objective charges for the GPU time burnt by the instances ``target`` starts."""
    return float((start_price(problem) * np.maximum(0, target - problem.current)).sum())


def spent(problem: PlanningProblem, target: IntArray, cap: Cap) -> float:
    """How much of ``cap`` the plan takes, in the terms of its limit."""
    starts = np.maximum(0, target - problem.current)
    return float((cap.per_instance * target + cap.per_start * starts).sum())


def allowed(cap: Cap) -> float:
    """What counts as within ``cap``."""
    return cap.limit + TOLERANCE * max(1.0, abs(cap.limit))


def is_feasible(problem: PlanningProblem, target: IntArray) -> bool:
    """Whether ``target`` meets every constraint of the program, to ``TOLERANCE``."""
    served = local_served_tps(problem, target)
    enough = 1.0 - TOLERANCE
    return bool(
        np.all(target >= problem.minimum)
        and np.all(target <= problem.maximum)
        and np.all(gpus_used(problem, target) <= problem.capacity_gpus)
        and np.all(served >= local_need_tps(problem) * enough)
        and np.all(served.sum(axis=1) >= global_need_tps(problem) * enough)
        and np.all(without_a_region(problem, served) >= global_need_tps(problem) * enough)
        and all(spent(problem, target, cap) <= allowed(cap) for cap in caps(problem))
    )
