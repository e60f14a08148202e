"""Make plans to start from or to offer: the greedy plan, and one period after the other."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from planner.optimizer.decomposition import compiled
from planner.optimizer.greedy import greedy_target
from planner.optimizer.problem import FEASIBLE, OPTIMAL, HorizonProblem, PlanningProblem
from planner.optimizer.window import AUTO, DECOMPOSED, can_decompose, solve_window
from simulation.arrays import IntArray

NEAR = 1e-3  # gap of each period's plan


def greedy_plan(problem: HorizonProblem) -> IntArray:
    """Cover the demand of each period greedily, starting from the period before.

    The shape is ``[period, model, region, GPU column]``. Plans are within maximums, and within
    capacity if the minimums are. Some demand may be uncovered.
    """
    targets, current = [], problem.first.current
    for period, window in enumerate(problem.windows):
        current = greedy_target(_window_from(problem, window, period, current))
        targets.append(current)
    return np.stack(targets)


def period_by_period(
    problem: HorizonProblem, *, time_limit_s: float, check: Callable[[], None]
) -> IntArray | None:
    """Plan each period alone, starting from the plan of the one before.

    The shape is ``[period, model, region, GPU column]``. Returns None if a period has no plan
    within its share of ``time_limit_s``. ``check`` may raise to cancel.
    """
    compiled()
    targets, current = [], problem.first.current
    until = perf_counter() + time_limit_s
    for period, window in enumerate(problem.windows):
        limit_s = (until - perf_counter()) / (len(problem.windows) - period)
        if limit_s <= 0:
            return None
        plan = solve_window(
            _window_from(problem, window, period, current),
            gap=NEAR,
            time_limit_s=limit_s,
            method=DECOMPOSED if can_decompose(window) else AUTO,
            check=check,
        )
        if plan.status not in (OPTIMAL, FEASIBLE):
            return None
        current = plan.target
        targets.append(current)
    return np.stack(targets)


def _window_from(
    problem: HorizonProblem, window: PlanningProblem, period: int, current: IntArray
) -> PlanningProblem:
    """Return the window with ``current`` as its fleet.

    Before period ``lead``, no further instance can be up, so maximums are at most ``current``.
    """
    if period >= problem.lead:
        return replace(window, current=current)
    maximum = np.minimum(window.maximum, current)
    return replace(
        window, current=current, maximum=maximum, minimum=np.minimum(window.minimum, maximum)
    )
