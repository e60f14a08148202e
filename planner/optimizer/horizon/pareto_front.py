"""Trade two objectives off over all periods: the front and its knee."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.horizon.solve import solve_horizon
from planner.optimizer.objective import per_hour
from planner.optimizer.problem import (
    FEASIBLE,
    MEASURES,
    OPTIMAL,
    HorizonPlan,
    HorizonProblem,
    Weights,
)

NOTHING = dict.fromkeys(MEASURES, 0.0)
CAPPED = {"usd": "budget_usd", "kg": "carbon_kg"}
SLACK = 1e-6  # share by which a cap is widened, because solvers keep rows only to a tolerance
TIE = 1e-4  # weight of the capped measure, which decides between plans of equal first measure


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One plan of the front. Figures cover all periods, in the units of the measures."""

    first: float
    second: float
    # lower bound on the first measure, for plans with at most this much of the second
    first_bound: float
    plan: HorizonPlan


def horizon_front(
    problem: HorizonProblem,
    first: str,
    second: str,
    *,
    points: int = 9,
    solver: str = "highs",
    gap: float = 1e-3,
    time_limit_s: float = 20.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[FrontPoint, ...]:
    """Return the least of measure ``first`` at ``points`` levels of ``second`` over all periods.

    The method is epsilon constraints (Haimes, Lasdon and Wismer 1971). It finds plans that no
    weighted sum can. ``second`` is usd or kg; ``first`` is any other of usd, gpu_hours, kwh and kg.

    Points rise in ``second``; dominated plans are omitted. The front is empty if there is no plan,
    or none within the time. Caps of the problem apply; its weights do not. ``time_limit_s`` is for
    each plan. ``progress`` is called between and during them; an exception from it ends the front.
    """
    if first not in MEASURES or second not in CAPPED or first == second:
        raise ScenarioError(
            f"A front needs two measures, of {', '.join(MEASURES)} and of {', '.join(CAPPED)}: "
            f"not {first!r} and {second!r}."
        )
    if points < 2:
        raise ScenarioError("A front has 2 points or more.")
    scale = {m: float(per_hour(problem.first, m).mean()) or 1.0 for m in (first, second)}
    solved = 0

    def least(of: str, tie: str, level: float) -> HorizonPlan | None:
        """Minimise measure ``of`` with the second at most ``level``; None without a plan."""
        nonlocal solved
        progress(solved, points + 1)
        weights = Weights(**NOTHING | {of: 1.0, tie: TIE * scale[of] / scale[tie]})
        windows = tuple(replace(window, weights=weights) for window in problem.windows)
        field = CAPPED[second]
        cap = min(level * (1 + SLACK), getattr(problem, field))
        plan = solve_horizon(
            replace(problem, windows=windows, **{field: cap}),
            solver=solver,
            gap=gap,
            time_limit_s=time_limit_s,
            stable=False,
            check=lambda: progress(solved, points + 1),
        )
        solved += 1
        return plan if plan.status in (OPTIMAL, FEASIBLE) else None

    def point(plan: HorizonPlan) -> FrontPoint:
        """Return the plan as a point of the front, with the tie weight taken out of its bound."""
        of_first, of_second = _total(plan, first), _total(plan, second)
        bound = plan.bound - TIE * scale[first] / scale[second] * of_second
        return FrontPoint(of_first, of_second, min(of_first, max(0.0, bound)), plan)

    lean, cheap = least(second, first, math.inf), least(first, second, math.inf)
    if lean is None or cheap is None:
        return ()
    levels = np.linspace(_total(lean, second), _total(cheap, second), points)
    plans = [cheap, *(least(first, second, float(level)) for level in levels[:-1])]
    candidates = sorted(
        (point(plan) for plan in plans if plan is not None), key=lambda p: (p.second, p.first)
    )
    front: list[FrontPoint] = []
    for candidate in candidates:
        if not front or candidate.first < front[-1].first - SLACK * abs(front[-1].first):
            front.append(candidate)
    return tuple(front)


def knee(points: list[tuple[float, float]]) -> int | None:
    """Return the index of the point furthest below the line between both ends of the front.

    Both measures are scaled to the front (Das, On characterizing the knee of the Pareto curve,
    1999). Returns None with fewer than three points, or for a straight front.
    """
    if len(points) < 3:
        return None
    xy = np.array(points, float)
    spread = xy.max(axis=0) - xy.min(axis=0)
    if np.any(spread <= 0):
        return None
    scaled = (xy - xy.min(axis=0)) / spread
    below = 1.0 - scaled.sum(axis=1)  # the ends lie on x + y = 1
    best = int(np.argmax(below))
    return best if below[best] > SLACK else None


def _total(plan: HorizonPlan, measure: str) -> float:
    return float(sum(getattr(total, measure) for total in plan.totals))
