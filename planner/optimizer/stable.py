"""Of the plans no dearer than the gap allows, one that starts and stops the fewest instances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pulp

from planner.optimizer.figures import fleet_usd, is_feasible, start_usd
from planner.optimizer.model import start_cost
from planner.optimizer.objective import price
from planner.optimizer.problem import FEASIBLE, OPTIMAL, PlanningProblem
from planner.optimizer.program import AT_MOST, Program
from planner.optimizer.solvers import SOLVERS, Outcome
from simulation.arrays import IntArray


def fewest_changes(
    program: Program,
    outcome: Outcome,
    *,
    solver: str,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
) -> Outcome:
    """``outcome`` with a target of fewer starts and stops, where one costs no more than
    bound (1 + gap), or than the target does already. ``program`` gets a row and another objective.
    """
    problem = program.problem
    if outcome.target is None or not gap > 0 or not changed(problem, outcome.target):
        return outcome
    cost = _cost(problem, outcome.target)
    allowed = max(cost, outcome.bound * (1 + gap))
    usd, start = price(problem), start_cost(problem)
    terms = [(x, float(usd[cell]) / allowed) for cell, x in program.x.items()]
    terms += [(one, float(start[cell]) / allowed) for cell, one in program.starts.items()]
    program.lp.addConstraint(
        pulp.LpConstraint(pulp.LpAffineExpression(terms), AT_MOST, "no_dearer", 1.0 + 1e-9)
    )
    # Stops are current + starts - x; of plans with as few changes the cheaper one.
    fewest = [(x, float(usd[cell]) / allowed - 1.0) for cell, x in program.x.items()]
    fewest += [(one, float(start[cell]) / allowed + 2.0) for cell, one in program.starts.items()]
    program.lp.setObjective(pulp.LpAffineExpression(fewest))
    found = SOLVERS[solver](program, gap=gap, time_limit_s=time_limit_s, check=check)
    target = found.target
    if (
        found.status not in (OPTIMAL, FEASIBLE)
        or target is None
        or changed(problem, target) >= changed(problem, outcome.target)
        or not is_feasible(problem, target)
        or _cost(problem, target) > allowed * (1 + 1e-6)
    ):
        return outcome
    return Outcome(outcome.status, target, outcome.bound)


def changed(problem: PlanningProblem, target: IntArray) -> int:
    """Instances started and stopped."""
    return int(np.abs(target - problem.current).sum())


def _cost(problem: PlanningProblem, target: IntArray) -> float:
    return fleet_usd(problem, target) + start_usd(problem, target)
