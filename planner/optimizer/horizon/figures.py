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
        paid = target[period]  # instances up or starting
        if problem.lead:
            # Requested in the last ``lead`` periods, this one included, so not up yet.
            paid = paid + starts[max(0, period - problem.lead + 1) : period + 1].sum(axis=0)
        sums = []
        for measure in MEASURES:
            hourly = (per_hour(window, measure) * paid).sum()
            by_start = (per_start(window, measure) * starts[period]).sum()
            sums.append(float(hourly + by_start) * problem.hours)
        usd, gpu_hours, kwh, kg = sums
        if problem.lend_usd is not None:
            usd -= float((problem.lend_usd * lent[period]).sum()) * problem.hours
        usd += float(reserved[period]) * problem.hours
        up, down = np.maximum(0, changes[period]).sum(), np.maximum(0, -changes[period]).sum()
        by_period.append(Totals(usd, gpu_hours, kwh, kg, int(up), int(down)))
    return tuple(by_period)


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
    share = plan.bound / plan.objective if plan.objective > 0 else 0.0
    weights = problem.first.weights
    plans = []
    for window, sums, target in zip(problem.windows, plan.totals, plan.target, strict=True):
        fleet = fleet_usd(window, target)
        weighted = sum(getattr(weights, measure) * getattr(sums, measure) for measure in MEASURES)
        objective = weighted / problem.hours
        bound = min(objective, objective * share)
        hourly = {measure: getattr(sums, measure) / problem.hours for measure in MEASURES}
        of_window = WindowPlan(
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
        plans.append(of_window)
    plans[0] = replace(
        plans[0],
        build_seconds=plan.build_seconds,
        solve_seconds=plan.solve_seconds,
        binding=plan.binding,
        conflict=plan.conflict,
    )
    return tuple(plans)
