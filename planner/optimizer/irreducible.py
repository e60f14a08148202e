"""A minimal set of demands and limits that cannot hold together, by a deletion filter.

Chinneck, Feasibility and Infeasibility in Optimization (2008), section 6.2, over rows of the
program: first with fractions of instances allowed (an LP), else with whole ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

import highspy
import pulp

from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.model import constrained
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.words import amount, in_region, instances, on_gpu, share, some, tokens

LP_BUDGET_S, WHOLE_BUDGET_S = 20.0, 20.0  # time for the filter; what is left unfiltered stays in
TEST_S = 2.0  # for one test; undecided counts as feasible
INFEASIBLE = (  # without an objective nothing is unbounded
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
)

STRUCTURE = ("starts", "side")  # rows that say what variables mean: never in question
LIMITS = {"budget": "budget_usd", "carbon": "carbon_kg", "churn": "churn"}
CAP_NAMES = {"budget": "the budget", "carbon": "the carbon cap", "churn": "the limit"}


def conflicting_set(problem: PlanningProblem) -> str:
    """The sentence for a minimal conflicting set of an infeasible ``problem``."""
    fractions = _Rows(problem, whole=False)
    if fractions.infeasible(fractions.names):
        rows, whole = minimal(fractions.names, fractions.infeasible, LP_BUDGET_S), ""
    else:
        integer = _Rows(problem, whole=True)
        rows = minimal(integer.names, integer.infeasible, WHOLE_BUDGET_S)
        whole = " with whole instances (fractions of one would do)"
    members = some([_in_words(problem, row) for row in rows])
    return (
        f"These cannot all hold{whole}: {members}; relax any one of them: "
        "add GPUs, plan for less demand, lower epsilon, or change the limits named."
    )


Row = TypeVar("Row")


def minimal(
    rows: Sequence[Row], infeasible: Callable[[Sequence[Row]], bool], budget_s: float
) -> list[Row]:
    """Delete rows, in halving chunks, while the rest stays infeasible; minimal if time allows.

    ``infeasible`` must be monotone: a superset of an infeasible set is infeasible.
    """
    kept, size, began = list(rows), max(1, len(rows) // 2), perf_counter()
    while True:
        at = 0
        while at < len(kept):
            if perf_counter() - began > budget_s:
                return kept
            trial = kept[:at] + kept[at + size :]
            if infeasible(trial):
                kept = trial
            else:
                at += size
        if size == 1:
            return kept
        size //= 2


class _Rows:
    """The rows of a program on one HiGHS object, switched off by freeing their bounds."""

    def __init__(self, problem: PlanningProblem, *, whole: bool) -> None:
        lp = constrained(problem).lp
        lp.setObjective(pulp.LpAffineExpression())
        solver = pulp.HiGHS(mip=whole, msg=False, threads=1)
        solver.createAndConfigureSolver(lp)
        solver.buildSolverModel(lp)
        self._highs: highspy.Highs = lp.solverModel
        self._bounds = {
            row.name: (row.index, _or(row.getLb(), -highspy.kHighsInf), _or(row.getUb()))
            for row in lp.constraints()
            if not row.name.startswith(STRUCTURE)
        }
        # Joint demands are tried for deletion first, so that the set names a region where it can.
        self.names = sorted(self._bounds, key=lambda name: not name.startswith("global"))

    def infeasible(self, kept: Sequence[str]) -> bool:
        """Whether the rows ``kept`` alone are proven to have no solution."""
        with self._only(kept):
            # HiGHS counts the limit from the first run of the object, not from this one.
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + TEST_S)
            self._highs.run()
            return self._highs.getModelStatus() in INFEASIBLE

    @contextmanager
    def _only(self, kept: Sequence[str]) -> Iterator[None]:
        off = self._bounds.keys() - set(kept)
        for name in off:
            self._highs.changeRowBounds(
                self._bounds[name][0], -highspy.kHighsInf, highspy.kHighsInf
            )
        try:
            yield
        finally:
            for name in off:
                self._highs.changeRowBounds(*self._bounds[name])


def _or(bound: float | None, otherwise: float = highspy.kHighsInf) -> float:
    return otherwise if bound is None else float(bound)


def _in_words(problem: PlanningProblem, row: str) -> str:
    family, *indices = row.split("_")
    at = [int(index) for index in indices]
    if family == "local":
        need = local_need_tps(problem)[at[0], at[1]]
        where = in_region(problem, at[0], at[1])
        return f"{tokens(need)} of {where} ({share(problem.epsilon)} of its peak)"
    if family == "global":
        return (
            f"{tokens(global_need_tps(problem)[at[0]])} of {problem.models[at[0]]} in all regions"
        )
    if family == "capacity":
        region, row_of = at
        held = int(problem.capacity_gpus[region, row_of])
        return f"{held:,} {problem.row_names[row_of]} in {problem.regions[region]}"
    if family in LIMITS:
        return f"{CAP_NAMES[family]} of {amount(family, getattr(problem, LIMITS[family]))}"
    model, region, gpu = at
    limit = problem.minimum if family == "minimum" else problem.maximum
    least_or_most = "at least" if family == "minimum" else "at most"
    count = instances(int(limit[model, region, gpu]))
    return f"{least_or_most} {count} of {on_gpu(problem, model, region, gpu)}"
