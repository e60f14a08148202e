"""Value a change of a limit by planning again with the limit moved.

Solving again is exact for whole instances, up to the gaps of both plans. The duals of the linear
relaxation are a quick figure for small fractions of a move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from planner.optimizer.figures import by_row
from planner.optimizer.highs import load_program, run, silent_highs
from planner.optimizer.objective import price
from planner.optimizer.problem import FEASIBLE, OPTIMAL, PlanningProblem, WindowPlan, single_period
from planner.optimizer.program.search import draft_program
from planner.optimizer.window import solve_window
from simulation.arrays import IntArray

CAPACITY = "capacity"
RELAXATION_LIMIT_S = 10.0  # limit for one linear relaxation


@dataclass(frozen=True, slots=True)
class Move:
    """A limit of the problem that is raised or lowered by ``step``."""

    family: str
    what: str  # for sentences: "8 more H100-SXM in us-east"
    step: float
    unit: str


@dataclass(frozen=True, slots=True)
class MarginalValue(Move):
    """The hourly saving from moving a limit, in the units of the objective."""

    saves: float | None  # per hour, in units of the objective; None if it did not solve
    doubt: float  # half the width of the interval in which ``saves`` is proven
    relaxed: float | None  # the same from the linear relaxation; for capacity, from its duals


def capacity_values(
    problem: PlanningProblem,
    plan: WindowPlan,
    *,
    solver: str = "highs",
    gap: float = 1e-4,
    time_limit_s: float = 10.0,
    count: int = 6,
    check: Callable[[], None] = lambda: None,
) -> tuple[MarginalValue, ...]:
    """Return the hourly value of GPUs for one more instance, by GPU type and region.

    Types and regions with enough free GPUs for another instance are omitted. The ``count`` pairs
    with the highest value in the linear relaxation are solved again. ``time_limit_s`` applies to
    each.
    """
    used = by_row(problem, np.einsum("lrg,lg->rg", plan.target, problem.gpus_per_instance))
    optimum, duals = _relaxation_duals(problem, check)
    scarce = []
    for region, row in np.argwhere(np.ones_like(used)):
        usable = (problem.theta_tps > 0) & (problem.rows == row)
        if not usable.any():
            continue
        if not np.all(price(problem)[:, region][usable] > 0):
            continue  # The region does not have the type, nor a price for it.
        step = int(problem.gpus_per_instance[usable].max())
        if problem.capacity_gpus[region, row] - used[region, row] < step:
            dual = float(duals[region, row]) * step
            scarce.append((dual, int(region), int(row), step))
    out = []
    for dual, region, row, step in sorted(scarce, reverse=True)[:count]:
        more = problem.capacity_gpus.copy()
        more[region, row] += step
        out.append(
            solve_moved(
                _with_more_capacity(problem, more),
                plan,
                Move(
                    CAPACITY,
                    f"{step} more {problem.row_names[row]} in {problem.regions[region]}",
                    float(step),
                    "GPUs",
                ),
                relaxed=None if optimum is None else dual,
                options={"solver": solver, "gap": gap, "time_limit_s": time_limit_s},
                check=check,
            )
        )
    return tuple(out)


def _with_more_capacity(problem: PlanningProblem, capacity_gpus: IntArray) -> PlanningProblem:
    """Return ``problem`` with other capacity; maximums equal to the old capacity grow with it."""
    wider = replace(problem, capacity_gpus=capacity_gpus)
    size = np.maximum(1, problem.gpus_per_instance)[:, None, :]
    that_fit, that_fit_then = problem.room[None] // size, wider.room[None] // size
    grown = problem.maximum + (problem.maximum >= that_fit) * (that_fit_then - that_fit)
    return replace(wider, maximum=grown)


def solve_moved(
    moved: PlanningProblem,
    plan: WindowPlan,
    move: Move,
    *,
    options: dict[str, object],
    relaxed: float | None = None,
    before: PlanningProblem | None = None,
    check: Callable[[], None] = lambda: None,
) -> MarginalValue:
    """Solve the problem ``moved`` and return its saving against ``plan``.

    With ``before`` (the problem of ``plan``), the linear relaxations of both are compared too. They
    show a value that is too small to save a whole instance.
    """
    if before is not None:
        parts = [_relaxation_duals(problem, check)[0] for problem in (before, moved)]
        relaxed = None if None in parts else float(parts[0] or 0.0) - float(parts[1] or 0.0)
    limit = move.family, move.what, move.step, move.unit
    other = solve_window(moved, check=check, **options)  # type: ignore[arg-type]
    if other.status not in (OPTIMAL, FEASIBLE):
        return MarginalValue(*limit, None, 0.0, relaxed)
    saves = plan.objective_usd - other.objective_usd
    wide = (plan.objective_usd - plan.bound_usd) + (other.objective_usd - other.bound_usd)
    return MarginalValue(*limit, saves, wide / 2, relaxed)


def _relaxation_duals(
    problem: PlanningProblem, check: Callable[[], None]
) -> tuple[float | None, np.ndarray]:
    """Return the optimum of the linear relaxation and the value of one more GPU, ``[r, t]``.

    The optimum is None if the relaxation was not solved.
    """
    draft, duals = (
        draft_program(single_period(problem), cuts=False),
        np.zeros(problem.capacity_gpus.shape),
    )
    if not draft.builder.count:
        return None, duals
    highs = silent_highs(time_limit_s=RELAXATION_LIMIT_S)
    load_program(highs, draft.builder.program().highs(relaxed=True))
    run(highs, check)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None, duals
    family = next(family for family in draft.builder.families if family.name == CAPACITY)
    rows = np.array(highs.getSolution().row_dual)[family.first : family.beyond]
    duals = np.maximum(0.0, -rows).reshape(duals.shape)
    return float(highs.getInfo().objective_function_value), duals
