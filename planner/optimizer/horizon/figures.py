"""What a plan of all periods takes."""

from __future__ import annotations

import numpy as np

from planner.optimizer.objective import per_hour, per_start, price
from planner.optimizer.problem import MEASURES, HorizonProblem, Totals
from simulation.arrays import IntArray


def totals(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[Totals, ...]:
    """What each period takes of every measure: instances up and starting, less what lending
    earns."""
    asked, moved = problem.asked_for(target), problem.changes(target)
    out = []
    for period, window in enumerate(problem.windows):
        starting = asked[max(0, period - problem.lead + 1) : period + 1].sum(axis=0)
        starting = starting if problem.lead else np.zeros_like(starting)
        usd, gpu_hours, kwh, kg = (
            float(
                (per_hour(window, m) * (target[period] + starting)).sum()
                + (per_start(window, m) * asked[period]).sum()
            )
            * problem.hours
            for m in MEASURES
        )
        if problem.lend_usd is not None:
            usd -= float((problem.lend_usd * lent[period]).sum()) * problem.hours
        up, down = np.maximum(0, moved[period]).sum(), np.maximum(0, -moved[period]).sum()
        out.append(Totals(usd, gpu_hours, kwh, kg, int(up), int(down)))
    return tuple(out)


def costs(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[float, float]:
    """What the objective charges in all, and of it for the instances that are up."""
    taken = totals(problem, target, lent)
    weights = problem.first.weights
    whole = sum(getattr(weights, m) * getattr(period, m) for period in taken for m in MEASURES)
    fleet = sum(
        float((price(window) * target[period]).sum()) * problem.hours
        for period, window in enumerate(problem.windows)
    )
    return whole, fleet
