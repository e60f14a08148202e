"""Compute use and cost of a plan of all periods."""

from dataclasses import replace

import numpy as np

from planner.optimizer.figures import fleet_usd
from planner.optimizer.objective import per_hour, per_start, price
from planner.optimizer.problem import (
    MEASURES,
    HorizonPlan,
    HorizonProblem,
    PlanningProblem,
    Totals,
    WindowPlan,
)
from planner.optimizer.reservations import cheapest_reservation, reservation_usd
from simulation.arrays import IntArray


def totals(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[Totals, ...]:
    """Return cost, GPU-hours, energy, carbon, starts and stops of each period.

    ``target`` and ``lent`` are ``[period, model, region, GPU column]``. Instances count while they
    are up or starting. Income from lent instances is deducted from the cost, and so is the saving
    by reserved GPUs.
    """
    starts, changes = problem.requested_starts(target), problem.changes(target)
    reserved = reservation_usd(problem, target, cheapest_reservation(problem, target))
    ups = np.maximum(0, changes).sum(axis=(1, 2, 3))
    downs = np.maximum(0, -changes).sum(axis=(1, 2, 3))
    by_period = []
    for period, window in enumerate(problem.windows):
        # Requested in the last ``lead`` periods, this one included, so not up yet.
        starting = starts[max(0, period - problem.lead + 1) : period + 1]
        paid = target[period] + (starting.sum(axis=0) if problem.lead else 0)
        usd, gpu_hours, kwh, kg = (
            _used(window, measure, paid, starts[period]) * problem.hours for measure in MEASURES
        )
        if problem.lend_usd is not None:
            usd -= float((problem.lend_usd * lent[period]).sum()) * problem.hours
        usd += float(reserved[period]) * problem.hours
        by_period.append(Totals(usd, gpu_hours, kwh, kg, int(ups[period]), int(downs[period])))
    return tuple(by_period)


def _used(window: PlanningProblem, measure: str, paid: IntArray, starts: IntArray) -> float:
    """Return the hourly use of a measure by instances ``paid`` for, and by their starts."""
    hourly = (per_hour(window, measure) * paid).sum()
    by_start = (per_start(window, measure) * starts).sum()
    return float(hourly + by_start)


def costs(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[float, float]:
    """Return the objective over all periods, and the part of it for running instances.

    ``target`` and ``lent`` are ``[period, model, region, GPU column]``.
    """
    by_period = totals(problem, target, lent)
    total = sum(
        getattr(problem.first.weights, measure) * getattr(sums, measure)
        for sums in by_period
        for measure in MEASURES
    )
    pairs = zip(problem.windows, target, strict=True)
    fleet = sum(float((price(window) * counts).sum()) * problem.hours for window, counts in pairs)
    return total, fleet


def by_window(problem: HorizonProblem, plan: HorizonPlan) -> tuple[WindowPlan, ...]:
    """Return the plan as one ``WindowPlan`` per period, with hourly figures.

    The proven bound of the horizon is split in proportion to the periods' objectives. Times to
    build and solve, binding constraints and conflicts appear only in the first.
    """
    figures = zip(problem.windows, plan.totals, plan.target, strict=True)
    first, *later = (_window_plan(problem, plan, *of_window) for of_window in figures)
    first = replace(
        first,
        build_seconds=plan.build_seconds,
        solve_seconds=plan.solve_seconds,
        binding=plan.binding,
        conflict=plan.conflict,
    )
    return first, *later


def _window_plan(
    problem: HorizonProblem,
    plan: HorizonPlan,
    window: PlanningProblem,
    sums: Totals,
    target: IntArray,
) -> WindowPlan:
    """Return the plan of one period, whose totals are ``sums``, with hourly figures."""
    share = plan.bound / plan.objective if plan.objective > 0 else 0.0
    weights, fleet = problem.first.weights, fleet_usd(window, target)
    weighted = sum(getattr(weights, measure) * getattr(sums, measure) for measure in MEASURES)
    objective = weighted / problem.hours
    bound = min(objective, objective * share)
    hourly = {measure: getattr(sums, measure) / problem.hours for measure in MEASURES}
    return WindowPlan(
        status=plan.status,
        target=target,
        objective_usd=objective,
        fleet_usd=fleet,
        bound_usd=bound,
        gap=(objective - bound) / fleet if fleet > 0 else 0.0,
        solver=plan.solver,
        build_seconds=0.0,
        solve_seconds=0.0,
        binding=(),
        conflict="",
        totals=replace(sums, **hourly),
    )
