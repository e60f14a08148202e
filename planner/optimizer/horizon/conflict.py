"""The smallest set of demands and limits, over all periods, that cannot hold together."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np

from planner.optimizer.highs import configured, load
from planner.optimizer.horizon.program import Draft
from planner.optimizer.irreducible import INFEASIBLE, LP_BUDGET_S, TEST_S, WHOLE_BUDGET_S, minimal
from planner.optimizer.solving import LinearProgram
from planner.optimizer.words import some

TAIL = (
    "relax any one of them: add GPUs, plan for less demand, lower epsilon, or change the limits "
    "named."
)


def conflict_in_words(draft: Draft, program: LinearProgram) -> str:
    """A minimal conflicting set as a sentence: with fractions of instances where they clash
    already, else with whole ones. Bounds (minimums, maximums, the lead) always hold."""
    rows = sorted(draft.builder.words, reverse=True)
    fractions = _Rows(program, relaxed=True)
    if fractions.infeasible(rows):
        kept, whole = minimal(rows, fractions.infeasible, LP_BUDGET_S), ""
    else:
        integer = _Rows(program, relaxed=False)
        kept = minimal(rows, integer.infeasible, WHOLE_BUDGET_S)
        whole = " with whole instances (fractions of one would do)"
    members = [draft.builder.words[row]() for row in sorted(kept)]
    said = some(members) if members else "the minimums, the maximums and the present fleet"
    lead = draft.problem.lead
    periods = "a period" if lead == 1 else f"{lead} periods"
    given = f", given that an instance serves no sooner than {periods} after it is asked for"
    return f"These cannot all hold{whole}{given if lead else ''}: {said}; {TAIL}"


class _Rows:
    """A program without objective whose rows can be switched off."""

    def __init__(self, program: LinearProgram, *, relaxed: bool) -> None:
        self._program = program
        self._highs = configured(time_limit_s=LP_BUDGET_S + WHOLE_BUDGET_S)
        lp = program.highs(relaxed=relaxed)
        lp.col_cost_ = np.zeros(len(program.cost))
        load(self._highs, lp)
        self._off: set[int] = set()
        self._all: frozenset[int] = frozenset()

    def infeasible(self, kept: Sequence[int]) -> bool:
        """Whether the rows ``kept``, with those that only say what variables mean, are proven to
        have no solution."""
        self._all = self._all or frozenset(kept)
        off = self._all - set(kept)
        for row in off - self._off:
            self._highs.changeRowBounds(row, -highspy.kHighsInf, highspy.kHighsInf)
        for row in self._off - off:
            lower, upper = self._program.row_lower[row], self._program.row_upper[row]
            self._highs.changeRowBounds(row, lower, upper)
        self._off = set(off)
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + TEST_S)
        self._highs.run()
        return self._highs.getModelStatus() in INFEASIBLE
