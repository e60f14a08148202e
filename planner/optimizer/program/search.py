"""The program solved: its least cost, its least worth unserved, its fewest changes.

The bound and status are the solver's own, to the gap asked for, which is relative to the program's
objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, HorizonProblem
from planner.optimizer.program.cuts import whole_covers
from planner.optimizer.program.families import FAMILIES
from planner.optimizer.program.variables import Draft
from planner.optimizer.solving import LinearProgram, Solved, solve_on_cbc, solve_program
from simulation.arrays import FloatArray

SOLVERS = {"highs": solve_program, "cbc": solve_on_cbc}
STABLE_SHARE = 0.2  # of the time limit, at most, for fewer changes at the same cost
WORTH_SLACK = 1e-6
LEAST_S = 0.05  # of a limit that is no shorter: for what comes last


def drafted(problem: HorizonProblem, *, cuts: bool = True) -> Draft:
    """The variables and every family of rows; ``cuts``: with what whole instances imply."""
    draft = Draft.of(problem)
    for family in FAMILIES:
        family(draft)
    if cuts:
        whole_covers(draft)
    return draft


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to look, with what; raises ScenarioError for what makes no sense."""

    solver: str
    gap: float  # relative to the program's objective
    time_limit_s: float
    stable: bool  # of the plans within the gap, one that changes little
    check: Callable[[], None]  # asked now and then; what it raises ends the search

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            known = ", ".join(SOLVERS)
            raise ScenarioError(f"Solver {self.solver!r} is not known: use one of {known}.")
        if not self.gap >= 0 or not self.time_limit_s > 0:
            raise ScenarioError("The gap must be 0 or more and the time limit more than 0 seconds.")


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """One program and its clock."""

    draft: Draft
    program: LinearProgram
    effort: Effort
    until: float  # of ``perf_counter``

    @classmethod
    def of(cls, problem: HorizonProblem, effort: Effort) -> Search:
        """Builds the program; the clock starts when it stands."""
        draft = drafted(problem)
        return cls(draft, draft.builder.program(), effort, perf_counter() + effort.time_limit_s)

    def best(self, start: FloatArray | None = None) -> Solved:
        """Least cost, or with ``priority`` least worth unserved and then least cost; ``start``
        counts as found."""
        if self.draft.problem.priority is not None:
            search, solved = self._limited()
        else:
            search, solved = self, self._cheapest(start)
        return search.fewer_changes(solved) if self.effort.stable else solved

    def fewer_changes(self, solved: Solved) -> Solved:
        """Of the plans no dearer than bound (1 + gap), or than the plan is already, one with the
        fewest starts and stops; of these, one that is cheap."""
        values, left = solved.values, min(self._left, STABLE_SHARE * self.effort.time_limit_s)
        changes, present = self._changes()
        if values is None or left <= 0 or not self.effort.gap > 0:
            return solved
        if float(changes @ values) + present < 0.5:
            return solved
        cost = float(self.program.cost @ values)
        bound = solved.bound if np.isfinite(solved.bound) else cost
        allowed = max(cost, bound + self.effort.gap * abs(bound))
        scaled = self.program.cost / max(1e-12, abs(allowed))
        most = allowed / max(1e-12, abs(allowed)) * (1 + 1e-9)
        fewest = scaled + changes
        capped = replace(self.program.with_row(scaled, most), cost=fewest)
        again = self._solve(capped, values, left)
        if again.values is None or float(fewest @ again.values) >= float(fewest @ values):
            return solved
        return replace(solved, values=again.values)

    def _cheapest(self, start: FloatArray | None) -> Solved:
        solved = self._solve(self.program, start, self._left)
        if solved.status == TIMEOUT and start is not None:
            return replace(solved, status=FEASIBLE, values=start)
        return solved

    def _limited(self) -> tuple[Search, Solved]:
        """Least worth unserved, then least cost at that, and the search among plans like it."""
        worth = self._worth()
        most = np.where(np.isfinite(self.program.upper), self.program.upper, 0.0)
        worth = worth / max(1e-12, float(worth @ most) / 1e4)
        first = self._solve(replace(self.program, cost=worth), None, self._left / 2)
        if first.values is None:
            return self, first
        least = float(worth @ first.values)
        limit = least + WORTH_SLACK * max(1.0, least)
        among = replace(self, program=self.program.with_row(worth, limit))
        second = among._solve(among.program, first.values, self._left)
        values = first.values if second.values is None else second.values
        proven = OPTIMAL if {first.status, second.status} == {OPTIMAL} else FEASIBLE
        return among, Solved(proven, values, second.bound, second.died)

    def _worth(self) -> FloatArray:
        """Of what stays unserved, by variable."""
        draft, priority = self.draft, self.draft.problem.priority
        worth = np.zeros(len(self.program.cost))
        if draft.short is not None and draft.beyond is not None and priority is not None:
            per_pair = np.repeat(priority, len(draft.problem.first.regions), axis=1)  # [k, l * r]
            worth[draft.short] = per_pair[:, None, :] * draft.problem.hours
            worth[draft.beyond] = priority[:, None, :] * draft.problem.hours
        return worth

    def _changes(self) -> tuple[FloatArray, float]:
        """Starts and stops of all periods: by variable, and what to add."""
        changes, constant = np.zeros(len(self.program.cost)), 0.0
        for period in range(len(self.draft.x)):
            entries, more = self.draft.changed(period)
            constant += more
            for _, of, by in entries:
                changes[np.asarray(of)] += np.asarray(by, float)
        return changes, constant

    @property
    def _left(self) -> float:
        return self.until - perf_counter()

    def _solve(self, program: LinearProgram, start: FloatArray | None, left: float) -> Solved:
        if not len(program.cost):  # a demand, and no variable
            unmet = np.any(program.row_lower > 0) or np.any(program.row_upper < 0)
            return Solved(INFEASIBLE, None, np.inf) if unmet else Solved(OPTIMAL, np.zeros(0), 0.0)
        limit = max(min(LEAST_S, self.effort.time_limit_s), left)
        return SOLVERS[self.effort.solver](
            program, gap=self.effort.gap, time_limit_s=limit, check=self.effort.check, start=start
        )
