"""Compute the lowest cost of serving as much as a plan did, with known demand (oracle).

Demand and served demand are in input tokens/s, ``[period, model, region, bin]``.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.domain.forecaster_backtest.replay import LevelPlanner
from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.period_solver import Periods
from planner.domain.progress import Progress
from planner.errors import PlannerError
from planner.optimizer.horizon import HorizonProblem, solve_horizon
from planner.optimizer.horizon.figures import costs
from planner.optimizer.problem import INFEASIBLE, PlanningProblem
from planner.optimizer.roles import carried_tps
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class OracleCost:
    """The cost of a plan, and the lowest cost of serving as much of the actual demand.

    Costs are values of the program's objective.
    """

    plan_usd: float
    least_usd: float  # best plan found
    bound_usd: float  # proven lower bound
    served: float  # share of actual demand that the plan's capacity serves

    @property
    def regret(self) -> float | None:
        """Return the excess cost of the plan as a share of the lowest cost; None if that is 0."""
        return self.plan_usd / self.least_usd - 1.0 if self.least_usd > 0 else None


def oracle_cost(
    level_planner: LevelPlanner, planned_window: PlannedWindow, progress: Progress
) -> OracleCost | None:
    """Return the cost of the plan, and the lowest cost of serving as much of the actual demand.

    None if the objective does not allow a program over the whole horizon, or if no plan was found
    within the time limit.
    """
    inputs, target = level_planner.inputs, planned_window.plan.target
    settings, period_s = inputs.settings, inputs.window.period_s
    actual, served = _actual_and_served(level_planner, planned_window)
    # The problem of serving, with future data, the demand that the plan serves.
    periods = Periods.of(inputs, planned_window.load).problems
    periods_as_served = tuple(
        replace(period, demand_tps=tps) for period, tps in zip(periods, served, strict=True)
    )
    problem = HorizonProblem(periods_as_served, period_s, reroute=settings.reroute)
    plan_usd, _ = costs(problem, target, np.zeros_like(target))
    check = partial(progress, 0.5, "Cheapest with future data")
    try:
        best = solve_horizon(problem, **settings.solver_options, stable=False, check=check)
    except PlannerError:
        return None
    if best.status == INFEASIBLE or best.conflict:
        return None
    total = float(actual.sum())
    return OracleCost(
        plan_usd=plan_usd,
        least_usd=min(best.objective, plan_usd),  # the plan itself serves it too
        bound_usd=best.bound,
        served=float(served.sum()) / total if total > 0 else 1.0,
    )


def actual_tps(inputs: PlanInput, level_planner: LevelPlanner) -> FloatArray:
    """Return the actual demand of interactive tiers; bins that were not observed have 0."""
    window, traffic = inputs.window, inputs.traffic
    periods, bins = len(window.period_starts_s), window.bins_per_period
    tps = np.zeros((periods, *inputs.current.shape[:2], bins))
    for _, rolled in level_planner.rolled:
        m, r = traffic.model_and_region(rolled.series.key)
        tps[:, m, r] += np.nan_to_num(rolled.actual).reshape(periods, bins) / window.bin_s
    return tps


def served_tps(
    problem: PlanningProblem, target: IntArray, actual_tps: FloatArray, *, elsewhere: bool
) -> FloatArray:
    """Return the part of the demand of a period that its replicas ``target`` serve.

    ``actual_tps`` and the result are ``[model, region, bin]``. Each region serves up to its own
    capacity. With ``elsewhere``, requests may go to other regions: a bin is served in full if all
    regions together have the capacity, and each can serve its local minimum.
    """
    # All arrays are [model, region, bin], with one bin or region if they hold for all. The capacity
    # is the lesser of prefill and decode.
    capacity = carried_tps(problem, target).min(axis=0)[:, :, None]
    at_home = np.minimum(actual_tps, capacity)
    if not elsewhere:
        return np.asarray(at_home, np.float64)
    all_fit = (actual_tps.sum(axis=1) <= capacity.sum(axis=1) * (1 + 1e-9))[:, None]
    local_minimum = actual_tps * problem.epsilon
    minima_fit = (local_minimum <= capacity * (1 + 1e-9)).all(axis=1)[:, None]
    return np.asarray(np.where(all_fit & minima_fit, actual_tps, at_home), np.float64)


def covered_share(level_planner: LevelPlanner, planned_window: PlannedWindow) -> float:
    """Return the share of the actual demand that is in bins that the plan serves in full."""
    actual, served = _actual_and_served(level_planner, planned_window)
    total = float(actual.sum())
    in_full = served >= actual * (1 - 1e-9)
    return float(actual[in_full].sum()) / total if total > 0 else 1.0


def _actual_and_served(
    level_planner: LevelPlanner, planned_window: PlannedWindow
) -> tuple[FloatArray, FloatArray]:
    """Return (actual demand, the part of it that the plan serves)."""
    inputs = level_planner.inputs
    actual, target = actual_tps(inputs, level_planner), planned_window.plan.target
    problems = Periods.of(inputs, planned_window.load).problems
    elsewhere = inputs.settings.reroute is None and len(inputs.traffic.regions) > 1
    served = [
        served_tps(problem, target[period], actual[period], elsewhere=elsewhere)
        for period, problem in enumerate(problems)
    ]
    return actual, np.stack(served)
