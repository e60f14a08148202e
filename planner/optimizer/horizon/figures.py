"""Compute use and cost of a plan of all periods."""

from dataclasses import replace

import numpy as np

from planner.optimizer.figures import fleet_usd
from planner.optimizer.objective import per_hour, per_start, price
from planner.optimizer.problem import (
    MEASURES,
    HorizonPlan,
    HorizonProblem,
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
    reservation_usd_h = reservation_usd(problem, target, cheapest_reservation(problem, target))
    started = np.maximum(0, changes).sum(axis=(1, 2, 3))
    stopped = np.maximum(0, -changes).sum(axis=(1, 2, 3))
    by_period = []
    for period, window in enumerate(problem.windows):
        # Requested in the last ``lead`` periods, this one included, so not up yet.
        starting = starts[max(0, period - problem.lead + 1) : period + 1]
        paid_instances = target[period] + (starting.sum(axis=0) if problem.lead else 0)
        amounts = []
        for measure in MEASURES:
            by_instances = (per_hour(window, measure) * paid_instances).sum()
            by_starts = (per_start(window, measure) * starts[period]).sum()
            amounts.append(float(by_instances + by_starts) * problem.hours)
        usd, gpu_hours, kwh, kg = amounts
        if problem.lend_usd is not None:
            usd -= float((problem.lend_usd * lent[period]).sum()) * problem.hours
        usd += float(reservation_usd_h[period]) * problem.hours
        changes_now = int(started[period]), int(stopped[period])
        by_period.append(Totals(usd, gpu_hours, kwh, kg, *changes_now))
    return tuple(by_period)


def costs(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[float, float]:
    """Return the objective over all periods, and the part of it for running instances.

    ``target`` and ``lent`` are ``[period, model, region, GPU column]``.
    """
    by_period = totals(problem, target, lent)
    objective = sum(
        getattr(problem.first.weights, measure) * getattr(sums, measure)
        for sums in by_period
        for measure in MEASURES
    )
    fleet = 0.0
    for window, counts in zip(problem.windows, target, strict=True):
        fleet += float((price(window) * counts).sum()) * problem.hours
    return objective, fleet


def by_window(problem: HorizonProblem, plan: HorizonPlan) -> tuple[WindowPlan, ...]:
    """Return the plan as one ``WindowPlan`` per period, with hourly figures.

    The proven bound of the horizon is split in proportion to the periods' objectives. Times to
    build and solve, binding constraints and conflicts appear only in the first.
    """
    proven_share = plan.bound / plan.objective if plan.objective > 0 else 0.0
    plans: list[WindowPlan] = []
    for window, used, target in zip(problem.windows, plan.totals, plan.target, strict=True):
        hourly = {measure: getattr(used, measure) / problem.hours for measure in MEASURES}
        fleet = fleet_usd(window, target)
        weights = problem.first.weights
        weighted = sum(getattr(weights, measure) * getattr(used, measure) for measure in MEASURES)
        objective = weighted / problem.hours
        bound = min(objective, objective * proven_share)
        is_first = not plans
        plans.append(
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
                totals=replace(used, **hourly),
            )
        )
    return tuple(plans)
