"""The plans between two objectives: how much of one buys how much of the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.objective import per_hour
from planner.optimizer.problem import (
    FEASIBLE,
    MEASURES,
    OPTIMAL,
    PlanningProblem,
    Weights,
    WindowPlan,
)
from planner.optimizer.window import solve_window

NOTHING = dict.fromkeys(MEASURES, 0.0)
CAPPED = {"usd": "budget_usd", "kg": "carbon_kg"}
SLACK = 1e-6  # share by which a cap is widened, since solvers keep rows to a tolerance
TIE = 1e-4  # weight of the capped measure, so that of equal plans the better one is found


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One plan of the front; ``first`` and ``second`` are in the units of the two measures."""

    first: float
    second: float
    first_bound: float  # no plan with this much of the second measure or less takes less
    plan: WindowPlan


def pareto_front(
    problem: PlanningProblem,
    first: str,
    second: str,
    *,
    points: int = 9,
    gap: float = 1e-4,
    time_limit_s: float = 30.0,
    check: Callable[[], None] | None = None,
) -> tuple[ParetoPoint, ...]:
    """The least of measure ``first`` at ``points`` levels of ``second``, both ends included.

    Epsilon constraints (Haimes, Lasdon and Wismer 1971), which find the plans that no weighting
    can; ``second`` is usd or kg, ``first`` any other of usd, gpu_hours, kwh and kg. Rising in
    ``second``; plans that another one beats in both are left out. ``time_limit_s`` is for each.
    Empty where there is no plan, or none within time. Caps of the problem hold; its weights do
    not count.
    """
    if first not in MEASURES or second not in CAPPED or first == second:
        raise ScenarioError(
            f"A front needs two measures, of {', '.join(MEASURES)} and of {', '.join(CAPPED)}: "
            f"not {first!r} and {second!r}."
        )
    if points < 2:
        raise ScenarioError("A front has 2 points or more.")

    scale = {m: float(per_hour(problem, m).mean()) or 1.0 for m in (first, second)}

    def least(of: str, tie: str, level: float) -> WindowPlan | None:
        weights = Weights(**NOTHING | {of: 1.0, tie: TIE * scale[of] / scale[tie]})
        field = CAPPED[second]
        cap = min(level * (1 + SLACK), getattr(problem, field))
        plan = solve_window(
            replace(problem, weights=weights, **{field: cap}),
            gap=gap,
            time_limit_s=time_limit_s,
            check=check,
        )
        return plan if plan.status in (OPTIMAL, FEASIBLE) else None

    def point(plan: WindowPlan) -> ParetoPoint:
        mine, other = getattr(plan.totals, first), getattr(plan.totals, second)
        bound = plan.bound_usd - TIE * scale[first] / scale[second] * other
        return ParetoPoint(mine, other, min(mine, bound), plan)

    lean, cheap = least(second, first, math.inf), least(first, second, math.inf)
    if lean is None or cheap is None:
        return ()
    levels = np.linspace(getattr(lean.totals, second), getattr(cheap.totals, second), points)
    plans = [cheap, *(least(first, second, float(level)) for level in levels[:-1])]
    found = sorted(
        (point(plan) for plan in plans if plan is not None), key=lambda p: (p.second, p.first)
    )
    front: list[ParetoPoint] = []
    for candidate in found:
        if not front or candidate.first < front[-1].first - SLACK * abs(front[-1].first):
            front.append(candidate)
    return tuple(front)
