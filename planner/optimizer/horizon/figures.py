"""What a plan of all periods takes, and whether it keeps every row."""

from __future__ import annotations

import numpy as np

from planner.optimizer.horizon.problem import HorizonProblem
from planner.optimizer.horizon.program import Draft, weighed
from planner.optimizer.objective import per_hour, per_start
from planner.optimizer.problem import MEASURES, Totals
from planner.optimizer.sides import carried_tps
from planner.optimizer.solving import LinearProgram
from simulation.arrays import FloatArray, IntArray

ROW_TOLERANCE = 1e-6  # of a row's bound, at least of 1


def changes(problem: HorizonProblem, target: IntArray) -> IntArray:
    """Instances more (above 0) or fewer than the period before, ``[p, l, r, g]``."""
    before = np.concatenate([problem.first.current[None], target[:-1]])
    more: IntArray = target - before
    return more


def asked_for(problem: HorizonProblem, target: IntArray) -> IntArray:
    """Instances asked for in each period so that they are up in time, ``[p, l, r, g]``."""
    up = np.maximum(0, changes(problem, target))
    asked = np.zeros_like(up)
    asked[: len(up) - problem.lead] = up[problem.lead :]
    return asked


def totals(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[Totals, ...]:
    """What each period takes of every measure: instances up and starting, less what lending
    earns."""
    asked, moved = asked_for(problem, target), changes(problem, target)
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
    whole = sum(getattr(weights, m) * getattr(one, m) for one in taken for m in MEASURES)
    fleet = sum(
        float((weighed(window)[0] * target[period]).sum()) * problem.hours
        for period, window in enumerate(problem.windows)
    )
    return whole, fleet


def values_of(draft: Draft, target: IntArray, lent: IntArray, size: int) -> FloatArray:
    """The variables at a plan, ``[n]``; what is unserved or sent elsewhere is left at 0."""
    values, problem = np.zeros(size), draft.problem
    at = (slice(None), draft.model, draft.region, draft.column)
    moved = changes(problem, target)
    values[draft.x] = target[at]
    values[draft.starts] = asked_for(problem, target)[at]
    values[draft.stops] = np.maximum(0, -moved)[at]
    if draft.lent is not None:
        values[draft.lent] = lent[at]
    if draft.served is not None:
        for period, of in enumerate(draft.served):
            carried = carried_tps(problem.first, target[period] - lent[period])
            values[of] = carried.min(axis=0).ravel()
    return values


def keeps(program: LinearProgram, values: FloatArray) -> bool:
    """Whether ``values`` keep every row and bound."""
    activity = program.activity(values)
    return bool(
        np.all(activity >= program.row_lower - _slack(program.row_lower))
        and np.all(activity <= program.row_upper + _slack(program.row_upper))
        and np.all(values >= program.lower - _slack(program.lower))
        and np.all(values <= program.upper + _slack(program.upper))
    )


def _slack(bound: FloatArray) -> FloatArray:
    finite = np.where(np.isfinite(bound), np.abs(bound), 0.0)
    return ROW_TOLERANCE * 10 * np.maximum(1.0, finite)
