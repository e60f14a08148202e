"""Plan consecutive windows, each from the fleet that the one before requested."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import PlanningProblem, ScalingPlan, WindowPlan
from planner.optimizer.window import solve_window
from simulation.arrays import FloatArray

Solve = Callable[[PlanningProblem, int, Callable[[], None] | None], WindowPlan]
Progress = Callable[[int, int], None]  # windows done, all windows


def plan_single_window(
    problem: PlanningProblem, period: int, check: Callable[[], None] | None
) -> WindowPlan:
    """Plan the window with ``solve_window``."""
    return solve_window(problem, check=check)


def plan_sequence(
    problems: Sequence[PlanningProblem],
    *,
    period_start_s: FloatArray,
    period_s: float,
    solve: Solve = plan_single_window,
    progress: Progress | None = None,
) -> ScalingPlan:
    """Solve ``problems`` in order with ``solve``, which gets the problem, its index and a check.

    The ``current`` of the first problem is the fleet now. Each later ``current`` is replaced by the
    target before it. ``period_start_s`` has shape ``[period]``, in UTC epoch seconds. ``progress``
    is called before the first window, after each one, and regularly within. An exception from it
    ends the sequence (cancel). A window without a feasible plan does not end it. The status records
    that, and the next window starts from the target that was offered instead.
    """
    if not problems:
        raise ScenarioError("There is no window to plan: give a horizon of one period or more.")
    if len(period_start_s) != len(problems):
        raise ScenarioError(f"{len(problems)} windows need one start each.")
    if len({(problem.models, problem.regions, problem.gpus) for problem in problems}) > 1:
        raise ScenarioError("Every window must have the same models, regions and GPU types.")

    windows: list[WindowPlan] = []
    first = problems[0]
    current = first.current
    for solved, problem in enumerate(problems):
        if progress:
            progress(solved, len(problems))
        check = partial(progress, solved, len(problems)) if progress else None
        window = solve(replace(problem, current=current), solved, check)
        windows.append(window)
        current = window.target
    if progress:
        progress(len(problems), len(problems))
    return ScalingPlan(
        models=first.models,
        regions=first.regions,
        gpus=first.gpus,
        gpus_per_instance=first.gpus_per_instance,
        period_start_s=np.asarray(period_start_s, dtype=np.float64),
        period_s=period_s,
        initial=first.current,
        demand_tps=np.stack([problem.demand_tps.max(axis=2) for problem in problems]),
        windows=tuple(windows),
    )
