"""Find a minimal set of demands and limits that conflict, by a deletion filter.

Source: Chinneck, Feasibility and Infeasibility in Optimization (2008), section 6.2, over rows of
the program. The linear relaxation is tried first. If it is feasible, whole instances are required.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

import highspy
import numpy as np

from planner.optimizer.formatting import first_names
from planner.optimizer.highs import load_program, silent_highs
from planner.optimizer.problem import HorizonProblem
from planner.optimizer.program.search import draft_program
from planner.optimizer.solvers import LinearProgram

# seconds for the filter; rows not tested by then stay in the set
LP_BUDGET_S, WHOLE_BUDGET_S = 20.0, 20.0
TEST_S = 2.0  # seconds for one test; an undecided test counts as feasible
INFEASIBLE = (  # without an objective, no program is unbounded
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
)
Row = TypeVar("Row")


def conflicting_set(problem: HorizonProblem) -> str:
    """Return a sentence that names a minimal conflicting set of an infeasible ``problem``.

    All limits and demands of the set cannot hold at once. Without any one of them, they can.
    Fractional replicas are tried first, as that is faster.
    """
    draft = draft_program(problem, cuts=False)
    program = draft.builder.program()
    words: dict[int, tuple[Callable[[int], str], int]] = {}
    joint: set[int] = set()
    for family in draft.builder.families:
        if family.words is not None:
            rows = range(family.first, family.beyond)
            words |= {row: (family.words, row - family.first) for row in rows}
            joint |= set(rows) if family.name == "global" else set()
    # Deletion is tried for limits before demands, and for late periods before early ones. Joint
    # demands come first of all, so that the set names a region if it can.
    order = sorted(words, reverse=True)
    without_joint = [row for row in order if row not in joint]
    infeasible = _SwitchableRows(program, order, relaxed=True).infeasible
    budget_s, integral = LP_BUDGET_S, ""
    if not infeasible(order):
        infeasible = _SwitchableRows(program, order, relaxed=False).infeasible
        budget_s, integral = WHOLE_BUDGET_S, " with whole replicas (fractional replicas would fit)"
    candidates = without_joint if infeasible(without_joint) else order
    members = minimal_rows(candidates, infeasible, budget_s)
    sentences = first_names([words[row][0](words[row][1]) for row in sorted(members)])
    lead = problem.lead
    periods = "a period" if lead == 1 else f"{lead} periods"
    late = f", as a replica serves {periods} after its start"
    return (
        f"These cannot all hold{integral}{late if lead else ''}: {sentences}. Relax any one of "
        "them: add GPUs, plan for less demand, lower epsilon, or change the limits named."
    )


def minimal_rows(
    rows: Sequence[Row], infeasible: Callable[[Sequence[Row]], bool], budget_s: float
) -> list[Row]:
    """Return a minimal part of ``rows`` that is still infeasible, by leaving out smaller parts.

    The result is minimal only if ``budget_s`` seconds suffice. ``infeasible`` must be monotone: a
    superset of an infeasible set is infeasible.
    """
    needed, size, began = list(rows), max(1, len(rows) // 2), perf_counter()
    while True:
        tried = 0
        while tried < len(needed):
            if perf_counter() - began > budget_s:
                return needed
            trial = needed[:tried] + needed[tried + size :]
            if infeasible(trial):
                needed = trial
            else:
                tried += size
        if size == 1:
            return needed
        size //= 2


class _SwitchableRows:
    """A program without an objective in one HiGHS object. Its ``rows`` can be switched off.

    A row is switched off by removing its bounds.
    """

    def __init__(self, program: LinearProgram, rows: Sequence[int], *, relaxed: bool) -> None:
        self._program, self._rows = program, frozenset(rows)
        self._off: set[int] = set()
        self._highs = silent_highs(time_limit_s=LP_BUDGET_S + WHOLE_BUDGET_S)
        lp = program.highs(relaxed=relaxed)
        lp.col_cost_ = np.zeros(len(program.cost))
        load_program(self._highs, lp)

    def infeasible(self, rows: Sequence[int]) -> bool:
        """Return True if ``rows`` and all rows that define variables are proven infeasible."""
        switched_off = set(self._rows.difference(rows))
        for row in switched_off - self._off:
            self._highs.changeRowBounds(row, -highspy.kHighsInf, highspy.kHighsInf)
        for row in self._off - switched_off:
            lower, upper = self._program.row_lower[row], self._program.row_upper[row]
            self._highs.changeRowBounds(row, lower, upper)
        self._off = switched_off
        # HiGHS counts the limit from the first run of the object, not from this one.
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + TEST_S)
        self._highs.run()
        return self._highs.getModelStatus() in INFEASIBLE
