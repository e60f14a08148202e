"""Find a minimal set of demands and limits that conflict, by a deletion filter.

The filter leaves out constraints (rows of the program) as long as the rest is still infeasible:
Chinneck, Feasibility and Infeasibility in Optimization (2008), section 6.2. The linear relaxation
is tried first. If it is feasible, whole instances are required.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import highspy
import numpy as np

from planner.optimizer.formatting import first_names
from planner.optimizer.problem import HorizonProblem
from planner.optimizer.program.search import draft_program
from planner.optimizer.solvers import LinearProgram
from planner.optimizer.solvers.arrays import RowFamily
from planner.optimizer.solvers.highs import loaded_highs

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
    family_by_row = {
        row: family
        for family in draft.builder.families
        if family.words is not None
        for row in range(family.first, family.beyond)
    }
    # Rows are tried in this order: limits before demands, and late periods before early ones. Joint
    # demands are left out first of all, so that the set names a region if it can.
    rows_in_order = sorted(family_by_row, reverse=True)
    without_joint = [row for row in rows_in_order if family_by_row[row].name != "global"]
    infeasible = _SwitchableRows(program, rows_in_order, relaxed=True).infeasible
    budget_s, integral = LP_BUDGET_S, ""
    if not infeasible(rows_in_order):  # only whole replicas conflict
        infeasible = _SwitchableRows(program, rows_in_order, relaxed=False).infeasible
        budget_s, integral = WHOLE_BUDGET_S, " with whole replicas (fractional replicas would fit)"
    # Leave out rows until every one left is needed for the conflict.
    candidates = without_joint if infeasible(without_joint) else rows_in_order
    members = minimal_rows(candidates, infeasible, budget_s)
    periods = "a period" if problem.lead == 1 else f"{problem.lead} periods"
    lead_words = f", as a replica serves {periods} after its start" if problem.lead else ""
    return (
        f"These cannot all hold{integral}{lead_words}: "
        f"{_row_words(members, family_by_row)}. Relax any one of "
        "them: add GPUs, plan for less demand, lower epsilon, or change the limits named."
    )


def _row_words(rows: Iterable[int], family_by_row: dict[int, RowFamily]) -> str:
    """Return the limits and demands of ``rows`` in words; ``family_by_row`` is by row."""
    sentences = []
    for row in sorted(rows):
        family = family_by_row[row]
        assert family.words is not None
        sentences.append(family.words(row - family.first))
    return first_names(sentences)


def minimal_rows(
    rows: Sequence[Row], infeasible: Callable[[Sequence[Row]], bool], budget_s: float
) -> list[Row]:
    """Return a minimal subset of ``rows`` that is still infeasible.

    Rows are left out in blocks, first of half of all rows, then of ever fewer. The result is
    minimal only if ``budget_s`` seconds suffice. ``infeasible`` must be monotone: a superset of an
    infeasible set is infeasible.
    """
    needed, block_size, began = list(rows), max(1, len(rows) // 2), perf_counter()
    while True:
        kept_count = 0  # rows at the start of ``needed`` that blocks of this size cannot leave out
        while kept_count < len(needed):
            if perf_counter() - began > budget_s:
                return needed
            trial = needed[:kept_count] + needed[kept_count + block_size :]
            if infeasible(trial):
                needed = trial
            else:
                kept_count += block_size
        if block_size == 1:
            return needed
        block_size //= 2


class _SwitchableRows:
    """A program without an objective in one HiGHS object, whose ``rows`` can be switched off.

    A row is switched off by removing its bounds. ``relaxed`` allows fractional variables.
    """

    def __init__(self, program: LinearProgram, rows: Sequence[int], *, relaxed: bool) -> None:
        self._program, self._rows = program, frozenset(rows)
        self._off: set[int] = set()  # rows that are switched off now
        # Only feasibility matters. Each test sets its time limit again.
        without_cost = replace(program, cost=np.zeros(len(program.cost)))
        self._highs = loaded_highs(without_cost, time_limit_s=TEST_S, relaxed=relaxed)

    def infeasible(self, rows: Sequence[int]) -> bool:
        """Return True if the program is proven infeasible with only ``rows`` switched on.

        Rows that can never be switched off, which define variables, stay too.
        """
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
