"""Solve the program for the least cost, the least unserved value or the fewest changes.

Bound and status come from the solver, for the requested gap. The gap is relative to the program's
objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, HorizonProblem
from planner.optimizer.program.cuts import add_cover_cuts
from planner.optimizer.program.families import FAMILIES
from planner.optimizer.program.variables import Draft
from planner.optimizer.solvers import LinearProgram, Solution, solve_on_cbc, solve_program
from simulation.arrays import FloatArray

SOLVERS = {"highs": solve_program, "cbc": solve_on_cbc}
STABLE_SHARE = 0.2  # largest share of the time limit for fewer changes at the same cost
VALUE_SLACK = 1e-6  # share by which the lowest unserved value may be exceeded
LEAST_S = 0.05  # seconds for a solve if no time is left


def draft_program(problem: HorizonProblem, *, cuts: bool = True) -> Draft:
    """Build the variables and constraints of the program.

    With ``cuts``, also those that exclude fractional replicas (``add_cover_cuts``).
    """
    draft = Draft.from_problem(problem)
    for family in FAMILIES:
        family(draft)
    if cuts:
        add_cover_cuts(draft)
    return draft


def cost_within_gap(solved: Solution, cost: float, gap: float) -> float:
    """Return the most that another solution may cost: bound (1 + gap), or ``cost`` if higher."""
    bound = solved.bound if np.isfinite(solved.bound) else cost
    return max(cost, bound + gap * abs(bound))


@dataclass(frozen=True, slots=True)
class Effort:
    """Solver, gap, time limit and cancellation of a search."""

    solver: str  # of SOLVERS
    gap: float  # relative to the program's objective
    time_limit_s: float
    stable: bool  # whether to prefer, among plans within the gap, one with few changes
    check: Callable[[], None]  # called regularly; an exception from it ends the search


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A program to solve within a deadline."""

    draft: Draft
    program: LinearProgram
    effort: Effort
    until: float  # deadline, a value of ``perf_counter``

    @classmethod
    def from_problem(cls, problem: HorizonProblem, effort: Effort) -> Search:
        """Build the program. The time limit counts from the end of the build."""
        draft = draft_program(problem)
        return cls(draft, draft.builder.program(), effort, perf_counter() + effort.time_limit_s)

    def best(self, start: FloatArray | None = None) -> Solution:
        """Return the best solution found within the time limit.

        - Without ``priority`` (value of demand): the cheapest plan that serves all. ``start`` is a
          known solution, which is returned if the solver finds none.
        - With ``priority``: the least unserved value, then the least cost.
        - With ``traded``: the least sum of both.

        With ``effort.stable``, except if ``traded``, the fewest starts and stops come next.
        """
        if self.draft.problem.traded:
            return self._minimise_cost_and_unserved()
        if self.draft.problem.priority is not None:
            search, solved = self._minimise_unserved()
        else:
            search, solved = self, self._cheapest(start)
        return search.fewer_changes(solved) if self.effort.stable else solved

    def fewer_changes(self, solved: Solution) -> Solution:
        """Return a solution with fewer starts and stops, or ``solved`` if none is found.

        It costs at most (1 + gap) times the proven bound, or as much as ``solved``.
        """
        values = solved.values
        left_s = min(self._remaining_s, STABLE_SHARE * self.effort.time_limit_s)
        changes, constant = self._starts_and_stops()
        if values is None or left_s <= 0 or not self.effort.gap > 0:
            return solved
        # No start or stop at all: nothing to improve.
        if float(changes @ values) + constant < 0.5:
            return solved
        max_cost = cost_within_gap(solved, float(self.program.cost @ values), self.effort.gap)
        # Minimise changes + cost / max_cost. Changes are whole numbers and the scaled cost is at
        # most about 1, so the number of changes decides first.
        scale = max(1e-12, abs(max_cost))
        scaled_cost = self.program.cost / scale
        cost_limit = max_cost / scale * (1 + 1e-9)
        objective = scaled_cost + changes
        within_gap = replace(self.program.with_row(scaled_cost, cost_limit), cost=objective)
        new_values = self._solve(within_gap, values, left_s).values
        if new_values is None or float(objective @ new_values) >= float(objective @ values):
            return solved
        return replace(solved, values=new_values)

    def _cheapest(self, start: FloatArray | None) -> Solution:
        """Return the cheapest solution found in the time left, or ``start`` if none was found."""
        solved = self._solve(self.program, start, self._remaining_s)
        if solved.status == TIMEOUT and start is not None:
            return replace(solved, status=FEASIBLE, values=start)
        return solved

    def _minimise_unserved(self) -> tuple[Search, Solution]:
        """Minimise the unserved value, and then the cost at that value.

        Returns the search restricted to plans of the same unserved value, and the solution.
        """
        unserved_value = self._unserved_value()
        max_unserved = np.where(np.isfinite(self.program.upper), self.program.upper, 0.0)
        # Solver tolerances are absolute, so scale the objective to at most 1e4.
        unserved_value = unserved_value / max(1e-12, float(unserved_value @ max_unserved) / 1e4)
        # First step: the least unserved value, in half the time.
        valued = replace(self.program, cost=unserved_value)
        least_unserved = self._solve(valued, None, self._remaining_s / 2)
        if least_unserved.values is None:
            return self, least_unserved
        # Second step: the least cost at that value.
        lowest_value = float(unserved_value @ least_unserved.values)
        max_unserved_value = lowest_value + VALUE_SLACK * max(1.0, lowest_value)
        program = self.program.with_row(unserved_value, max_unserved_value)
        restricted = replace(self, program=program)
        cheapest = restricted._solve(restricted.program, least_unserved.values, self._remaining_s)
        values = least_unserved.values if cheapest.values is None else cheapest.values
        is_proven = least_unserved.status == OPTIMAL and cheapest.status == OPTIMAL
        status = OPTIMAL if is_proven else FEASIBLE
        return restricted, Solution(status, values, cheapest.bound, cheapest.died)

    def _minimise_cost_and_unserved(self) -> Solution:
        """Return the solution with the lowest sum of cost and unserved value.

        Its bound is on the cost alone, at the same unserved value.
        """
        unserved_value = self._unserved_value()
        program = replace(self.program, cost=self.program.cost + unserved_value)
        search = replace(self, program=program)
        solved = search._cheapest(None)
        if solved.values is not None and self.effort.stable:
            solved = search.fewer_changes(solved)
        if solved.values is None:
            return solved
        return replace(solved, bound=solved.bound - float(unserved_value @ solved.values))

    def _unserved_value(self) -> FloatArray:
        """Return the value lost per unit of each variable, ``[n]``.

        It is above 0 for variables of unserved demand (tokens/s over a period), else 0.
        """
        draft, priority = self.draft, self.draft.problem.priority  # [k, l]
        values = np.zeros(len(self.program.cost))
        if priority is not None:
            per_pair = np.repeat(priority, len(draft.problem.first.regions), axis=1)  # [k, l * r]
            values[draft.unserved_local] = per_pair[:, None, :] * draft.problem.hours
            values[draft.unserved_joint] = priority[:, None, :] * draft.problem.hours
        return values

    def _starts_and_stops(self) -> tuple[FloatArray, float]:
        """Return the number of starts and stops of all periods as a linear expression.

        It is (coefficient of each variable ``[n]``, constant).
        """
        changes, constant = np.zeros(len(self.program.cost)), 0.0
        for period in range(len(self.draft.x)):
            entries, offset = self.draft.starts_and_stops(period)
            constant += offset
            for _, column, coefficient in entries:
                changes[np.asarray(column)] += np.asarray(coefficient, float)
        return changes, constant

    @property
    def _remaining_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.until - perf_counter()

    def _solve(self, program: LinearProgram, start: FloatArray | None, left_s: float) -> Solution:
        """Solve ``program`` from the solution ``start``, within ``left_s`` seconds (or LEAST_S)."""
        if not len(program.cost):  # There may be a demand without any variable to serve it.
            if np.any(program.row_lower > 0) or np.any(program.row_upper < 0):
                return Solution(INFEASIBLE, values=None, bound=np.inf)
            return Solution(OPTIMAL, np.zeros(0), 0.0)
        limit = max(min(LEAST_S, self.effort.time_limit_s), left_s)
        return SOLVERS[self.effort.solver](
            program, gap=self.effort.gap, time_limit_s=limit, check=self.effort.check, start=start
        )
