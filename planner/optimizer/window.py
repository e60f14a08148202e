"""Solve one decision window: problem in, plan out."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from planner.errors import SolverFailed
from planner.optimizer.binding_constraints import binding_constraints
from planner.optimizer.conflict import conflict_sentences, unserved_sentence
from planner.optimizer.decomposition import Cells, compile_kernels, compiled_repair, decompose
from planner.optimizer.figures import fleet_usd, is_feasible, start_usd
from planner.optimizer.greedy import greedy_target
from planner.optimizer.objective import price, start_price, totals, true_bound
from planner.optimizer.problem import (
    INFEASIBLE,
    TIMEOUT,
    Outcome,
    PlanningProblem,
    WindowPlan,
    single_period,
)
from planner.optimizer.program.search import Effort, Search
from planner.optimizer.program.section5 import solve_window_program
from planner.optimizer.roles import role_sides
from planner.optimizer.solvers import Solution
from planner.optimizer.solvers.highs import throttled
from planner.optimizer.validation import validate
from simulation.arrays import IntArray

AUTO, PULP, WHOLE, DECOMPOSED = "auto", "pulp", "whole", "decomposed"
# Pools (models x regions x GPU columns) below which ``auto`` solves the program in PuLP. Seconds to
# a gap of 1e-4 for seeded windows, as one program and decomposed: 2 x 2 x 2 in 0.1 and 0.2, 4 x 3 x
# 3 in 0.4 and 0.4, 4 x 3 x 5 in 3.0 and 1.9, 8 x 4 x 4 in 2.0 and 1.8, 9 x 10 x 5 in 13 and 6.
PULP_BELOW = 60
# pairs of model and region: with more, decomposed plans skip the search for fewer changes
STABLE_BELOW = 100
LEAST_S = 0.1  # seconds for the whole program if the decomposition used all the time


def solve_window(
    problem: PlanningProblem,
    *,
    solver: str = "highs",
    gap: float = 1e-4,
    time_limit_s: float = 30.0,
    method: str = AUTO,
    stable: bool = False,
    check: Callable[[], None] | None = None,
) -> WindowPlan:
    """Return the cheapest instances that cover the window's demand.

    Source: seed 004, section 5; methods.md E7. ``gap`` is the share of the fleet's cost within
    which an answer counts as optimal.

    Status: ``optimal``, ``feasible`` (the time limit came first, see the plan's ``gap``),
    ``infeasible`` (``conflict`` gives cause and remedy) or ``timeout`` (no solution within the
    limit, or the solver died). In the last two cases ``target`` is that of ``greedy_target``. Some
    demand may be uncovered; ``conflict`` then names it.

    ``method`` is ``pulp`` (the program of ``program.section5``), ``whole`` (the same as arrays),
    ``decomposed`` (see ``decomposition``) or ``auto``. On HiGHS, ``auto`` uses ``pulp`` below
    ``PULP_BELOW`` pools, else ``decomposed`` if it can solve the problem, else ``whole``. With
    another solver, it is ``whole``.
    ``stable`` prefers, among plans within the gap, one with few starts and stops (``decomposed``:
    only below ``STABLE_BELOW`` pairs of model and region). ``check`` is called about twice a
    second; an exception from it ends the search and is raised here (cancel).

    Raises ``ScenarioError`` for invalid arrays.
    """
    validate(problem)
    check = throttled(check) if check else lambda: None
    effort = Effort(solver, _objective_gap(problem, gap), time_limit_s, stable, check)
    if method == AUTO:
        is_small = problem.current.size < PULP_BELOW
        method = WHOLE
        if solver == "highs" and is_small and problem.theta_tps.any():
            method = PULP
        elif solver == "highs" and not is_small and can_decompose(problem):
            method = DECOMPOSED
    outcome = _checked_outcome(problem, SOLVE[method], effort)
    target = greedy_target(problem) if outcome.target is None else outcome.target
    conflict = _conflict_words(problem, outcome, target)
    target.setflags(write=False)
    fleet = fleet_usd(problem, target)
    objective = fleet + start_usd(problem, target)
    bound = min(objective, true_bound((problem,), outcome.bound))
    return WindowPlan(
        status=outcome.status,
        target=target,
        objective_usd=objective,
        fleet_usd=fleet,
        bound_usd=bound,
        gap=(objective - bound) / fleet if fleet > 0 else 0.0,
        solver=solver,
        build_seconds=outcome.build_s,
        solve_seconds=outcome.solve_s,
        binding=() if conflict else binding_constraints(problem, target),
        conflict=conflict,
        totals=totals(problem, target),
    )


def _conflict_words(problem: PlanningProblem, outcome: Outcome, target: IntArray) -> str:
    """Return why there is no solution, or what the greedy ``target`` leaves unserved; else ""."""
    if outcome.status == INFEASIBLE:
        return conflict_sentences(problem)
    if outcome.status == TIMEOUT:
        died = f"The solver {outcome.died}: try the other one. " if outcome.died else ""
        return (died + unserved_sentence(problem, target)).strip()
    return ""


def can_decompose(problem: PlanningProblem) -> bool:
    """Return True if ``decomposition`` can solve the problem.

    It cannot if there are several sides (``role_sides``): separate prefill and decode columns, a
    limit on spot, or losses of different instances. Nor can it if a region may be lost.
    """
    return len(role_sides(problem)) == 1 and not problem.lose_region


def _solve_undivided(problem: PlanningProblem, effort: Effort) -> Outcome:
    """Solve the window as one program, built from arrays instead of in PuLP."""
    began = perf_counter()
    # A window is a horizon of one period.
    search = Search.from_problem(single_period(problem), effort)
    built = perf_counter()
    outcome = _outcome_of_solution(search, search.best())
    return replace(outcome, build_s=built - began, solve_s=perf_counter() - built)


def _outcome_of_solution(search: Search, solved: Solution) -> Outcome:
    """Return the whole instances and the bound of a solved program."""
    target = None
    if solved.values is not None:
        target = search.draft.round_counts(solved.values, search.draft.x)[0]
    return Outcome(solved.status, target, solved.known_bound, solved.died)


def _solve_decomposed(problem: PlanningProblem, effort: Effort) -> Outcome:
    """Solve by decomposition; if it cannot decide, solve one program in the remaining time.

    If a plan with few changes is wanted, the time that is left goes to a search for one.
    """
    # Compile before the clock starts, so that the time limit does not pay for it.
    compile_kernels()
    compiled_repair()
    began = perf_counter()
    cells = Cells.from_problem(problem)
    built = perf_counter()
    if cells is None:
        return Outcome(INFEASIBLE, target=None, bound=0.0, build_s=built - began)
    outcome = decompose(cells, gap=effort.gap, time_limit_s=effort.time_limit_s, check=effort.check)
    left_s = effort.time_limit_s - (perf_counter() - built)
    is_small = cells.need_tps.size < STABLE_BELOW
    if outcome is None:
        outcome = _solve_undivided(problem, replace(effort, time_limit_s=max(LEAST_S, left_s)))
    elif effort.stable and is_small and left_s > 0 and outcome.target is not None:
        outcome = _with_fewer_changes(problem, effort, outcome, left_s)
    return replace(outcome, build_s=built - began, solve_s=perf_counter() - built)


def _with_fewer_changes(
    problem: PlanningProblem, effort: Effort, outcome: Outcome, left_s: float
) -> Outcome:
    """Return the outcome after a search of ``left_s`` seconds for a target with fewer changes."""
    assert outcome.target is not None
    until = perf_counter() + left_s
    search = replace(Search.from_problem(single_period(problem), effort), until=until)
    values = search.draft.values_of(outcome.target[None])
    stable = search.fewer_changes(Solution(outcome.status, values, outcome.bound))
    return replace(_outcome_of_solution(search, stable), bound=outcome.bound)


SOLVE = {PULP: solve_window_program, WHOLE: _solve_undivided, DECOMPOSED: _solve_decomposed}


def _checked_outcome(
    problem: PlanningProblem, solve: Callable[[PlanningProblem, Effort], Outcome], effort: Effort
) -> Outcome:
    """Return the outcome of ``solve``, or a timeout if the solver died or broke a constraint.

    The plan is checked against the problem itself, in case the program or the solver is wrong.
    """
    began = perf_counter()
    try:
        outcome = solve(problem, effort)
    except SolverFailed as failed:
        reason, _, _ = str(failed).rstrip(".").partition(":")  # without the remedy
        died = f"gave no answer ({reason})"
        seconds = perf_counter() - began
        return Outcome(TIMEOUT, target=None, bound=0.0, died=died, solve_s=seconds)
    if outcome.target is None or is_feasible(problem, outcome.target):
        return outcome
    died = "returned a plan that breaks its limits"
    return replace(outcome, status=TIMEOUT, target=None, bound=0.0, died=died)


def _objective_gap(problem: PlanningProblem, gap: float) -> float:
    """Return the gap of the objective that guarantees ``gap`` as a share of the fleet's cost.

    The objective is the fleet's cost and the cost of its starts. Let r be the largest ratio of
    start cost to hourly price. Then the objective is at most 1 + r times the fleet's cost.
    """
    hourly, start = price(problem), start_price(problem)
    priced = hourly > 0
    largest_ratio = (start[priced] / hourly[priced]).max(initial=0.0)
    return gap / (1.0 + float(largest_ratio))
