"""Compute use and cost of a plan of all periods."""

from dataclasses import replace

import numpy as np

from planner.optimizer.figures import fleet_usd
from planner.optimizer.objective import per_hour, per_start, price
from planner.optimizer.problem import MEASURES, HorizonPlan, HorizonProblem, Totals, WindowPlan
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
    by_period = []
    for period, window in enumerate(problem.windows):
        # Requested in the last ``lead`` periods, this one included, so not up yet.
        starting = starts[max(0, period - problem.lead + 1) : period + 1].sum(axis=0)
        starting = starting if problem.lead else np.zeros_like(starting)
        usd, gpu_hours, kwh, kg = (
            float(
                (per_hour(window, measure) * (target[period] + starting)).sum()
                + (per_start(window, measure) * starts[period]).sum()
            )
            * problem.hours
            for measure in MEASURES
        )
        if problem.lend_usd is not None:
            usd -= float((problem.lend_usd * lent[period]).sum()) * problem.hours
        usd += float(reserved[period]) * problem.hours
        change = changes[period]
        up, down = np.maximum(0, change).sum(), np.maximum(0, -change).sum()
        by_period.append(Totals(usd, gpu_hours, kwh, kg, int(up), int(down)))
    return tuple(by_period)


def costs(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[float, float]:
    """Return the objective over all periods, and the part of it for running instances.

    ``target`` and ``lent`` are ``[period, model, region, GPU column]``.
    """
    by_period = totals(problem, target, lent)
    weights = problem.first.weights
    total = sum(getattr(weights, m) * getattr(period, m) for period in by_period for m in MEASURES)
    fleet = sum(
        float((price(window) * target[period]).sum()) * problem.hours
        for period, window in enumerate(problem.windows)
    )
    return total, fleet


def by_window(problem: HorizonProblem, plan: HorizonPlan) -> tuple[WindowPlan, ...]:
    """Return the plan as one ``WindowPlan`` per period, with hourly figures.

    The proven bound of the horizon is split in proportion to the periods' objectives. Times to
    build and solve, binding constraints and conflicts appear only in the first.
    """
    share = plan.bound / plan.objective if plan.objective > 0 else 0.0
    weights, windows = problem.first.weights, []
    period_hours = problem.hours  # of one period
    for period, (window, sums) in enumerate(zip(problem.windows, plan.totals, strict=True)):
        target, is_first = plan.target[period], period == 0
        fleet = fleet_usd(window, target)
        objective = sum(getattr(weights, m) * getattr(sums, m) for m in MEASURES) / period_hours
        bound = min(objective, objective * share)
        windows.append(
            WindowPlan(
                status=plan.status,
                target=target,
                objective_usd=objective,
                fleet_usd=fleet,
                bound_usd=bound,
                gap=(objective - bound) / fleet if fleet > 0 else 0.0,
                solver=plan.solver,
                build_seconds=plan.build_seconds if is_first else 0.0,
                solve_seconds=plan.solve_seconds if is_first else 0.0,
                binding=plan.binding if is_first else (),
                conflict=plan.conflict if is_first else "",
                totals=replace(sums, **{m: getattr(sums, m) / period_hours for m in MEASURES}),
            )
        )
    return tuple(windows)
