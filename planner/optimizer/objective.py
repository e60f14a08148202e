"""What a plan is charged for and may spend: dollars, GPU-hours, energy, carbon, changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer.problem import MEASURES, PlanningProblem, Totals
from simulation.arrays import FloatArray, IntArray

BUDGET, CARBON, CHURN = "budget", "carbon", "churn"
# Start costs are at least this share of the hourly price, so that of two plans that cost the same
# the one that keeps what is running wins. ``true_bound`` takes the hair back out of the bound.
STICKINESS = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Cap:
    """sum per_instance x + sum per_start starts  <=  limit, over the whole plan."""

    family: str
    per_instance: FloatArray  # [l, r, g]
    per_start: FloatArray  # [l, r, g], never below 0
    limit: float


def per_hour(problem: PlanningProblem, measure: str) -> FloatArray:
    """What an instance takes of ``measure`` (usd, gpu_hours, kwh, kg) in an hour, ``[l, r, g]``."""
    shape = problem.usd_per_hour.shape
    if measure == "usd":
        return problem.usd_per_hour
    if measure == "gpu_hours":
        return np.broadcast_to(problem.gpus_per_instance[:, None, :], shape).astype(float)
    kwh = np.zeros(shape) if problem.kw is None else problem.kw
    if measure == "kwh" or problem.kg_per_kwh is None:
        return kwh if measure == "kwh" else np.zeros(shape)
    kg: FloatArray = kwh * problem.kg_per_kwh[None, :, None]
    return kg


def per_start(problem: PlanningProblem, measure: str) -> FloatArray:
    """What a start takes of ``measure``: that of the hours it burns before it serves.

    Those hours are what ``start_usd`` pays for: start_usd / usd_per_hour, 0 for a price of 0.
    """
    if measure == "usd":
        return problem.start_usd
    usd = problem.usd_per_hour
    hours = np.divide(problem.start_usd, usd, out=np.zeros_like(usd), where=usd > 0)
    return hours * per_hour(problem, measure)


def price(problem: PlanningProblem) -> FloatArray:
    """What the objective charges for an instance-hour, ``[l, r, g]``: US dollars by default."""
    return _weighted(problem, per_hour)


def start_price(problem: PlanningProblem) -> FloatArray:
    """What the objective charges for a start, ``[l, r, g]``."""
    return _weighted(problem, per_start)


def start_cost(problem: PlanningProblem) -> FloatArray:
    """What a start adds to the objective: at least the hair of STICKINESS, ``[l, r, g]``."""
    return np.maximum(start_price(problem), STICKINESS * price(problem))


def true_bound(windows: Sequence[PlanningProblem], bound: float) -> float:
    """Lower bound on the true cost from one on the program's objective.

    The objective adds at most hair * usd * starts <= hair * fleet to the true cost, so true cost
    >= objective / (1 + hair); hair is 0 where every start costs STICKINESS of a price or more.
    """
    cheapest = STICKINESS
    for window in windows:
        hourly, start = price(window), start_price(window)
        priced = hourly > 0
        cheapest = float((start[priced] / hourly[priced]).min(initial=cheapest))
    return max(0.0, bound) / (1.0 + STICKINESS - cheapest)


def caps(problem: PlanningProblem) -> tuple[Cap, ...]:
    """The limits on the plan as a whole that the problem sets."""
    limits = []
    for family, limit, measure in (
        (BUDGET, problem.budget_usd, "usd"),
        (CARBON, problem.carbon_kg, "kg"),
    ):
        if np.isfinite(limit):
            hourly, started = per_hour(problem, measure), per_start(problem, measure)
            limits.append(Cap(family, hourly, started, float(limit)))
    if np.isfinite(problem.churn):
        # stops = current + starts - x, so starts + stops = 2 starts - x + current
        ones = np.ones(problem.current.shape)
        limit = float(problem.churn) - float(problem.current.sum())
        limits.append(Cap(CHURN, -ones, 2 * ones, limit))
    return tuple(limits)


def totals(problem: PlanningProblem, target: IntArray) -> Totals:
    """What ``target`` takes of every measure, starts included, and how much it changes."""
    starts = np.maximum(0, target - problem.current)
    stops = np.maximum(0, problem.current - target)
    usd, gpu_hours, kwh, kg = (
        float((per_hour(problem, m) * target + per_start(problem, m) * starts).sum())
        for m in MEASURES
    )
    return Totals(usd, gpu_hours, kwh, kg, int(starts.sum()), int(stops.sum()))


def _weighted(
    problem: PlanningProblem, part: Callable[[PlanningProblem, str], FloatArray]
) -> FloatArray:
    total = np.zeros(problem.usd_per_hour.shape)
    for measure in MEASURES:
        weight: float = getattr(problem.weights, measure)
        if weight > 0:
            total = total + weight * part(problem, measure)
    return total
