"""Solve all periods at once: a problem in, a plan with its bound out."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from planner.optimizer.binding_constraints import binding_constraints
from planner.optimizer.decomposition import compile_kernels
from planner.optimizer.figures import global_need_tps
from planner.optimizer.greedy import greedy_target
from planner.optimizer.horizon.cross_region import rerouted_tps
from planner.optimizer.horizon.figures import costs, totals
from planner.optimizer.objective import STICKINESS, true_bound
from planner.optimizer.problem import (
    FEASIBLE,
    INFEASIBLE,
    OPTIMAL,
    Binding,
    HorizonPlan,
    HorizonProblem,
    PlanningProblem,
    Totals,
)
from planner.optimizer.program.conflict import conflicting_set
from planner.optimizer.program.search import Effort, Search
from planner.optimizer.program.variables import Draft
from planner.optimizer.reservations import cheapest_reservation
from planner.optimizer.roles import carried_tps
from planner.optimizer.solvers import Solution
from planner.optimizer.solvers.highs import throttled
from planner.optimizer.validation import validate
from planner.optimizer.window import AUTO, DECOMPOSED, can_decompose, solve_window
from simulation.arrays import FloatArray, IntArray

# A plan made period by period, from which the solver starts:
BEGIN_SHARE = 0.4  # largest share of the time limit for it
BEGIN_FROM = 700  # variables: smaller programs need no such plan
NEAR = 1e-3  # gap of each of its periods


def solve_horizon(
    problem: HorizonProblem,
    *,
    solver: str = "highs",
    gap: float = 1e-4,
    time_limit_s: float = 30.0,
    stable: bool = True,
    check: Callable[[], None] | None = None,
) -> HorizonPlan:
    """Return the instances of every period with the lowest cost over all periods together.

    Statuses, ``gap`` and ``check`` are those of ``solve_window``. With ``problem.priority``, the
    value of unserved demand is minimised first, then the cost; with ``problem.traded``, their sum.
    ``stable`` prefers, among plans within the gap, one with few starts and stops.

    For large programs, a plan made period by period is the fallback when time runs out. Without any
    solution the greedy plan is the target, and ``conflict`` explains why.

    Raises ``ScenarioError`` for invalid input.
    """
    for window in problem.windows:
        validate(window)
    throttled_check = throttled(check) if check else lambda: None
    effort = Effort(solver, gap, time_limit_s, stable, throttled_check)
    if check:
        check()
    began = perf_counter()
    search = Search.from_problem(problem, effort)
    built_at = perf_counter()
    solved = search.best(_start_plan(search))
    seconds = built_at - began, perf_counter() - built_at
    return _plan_of_solution(search.draft, solved, solver, seconds)


def _start_plan(search: Search) -> FloatArray | None:
    """Return the values of the program's variables at a plan to begin from, or None.

    It is ``problem.start``, or else a plan made period by period. None: the program is small, has
    ``reroute`` or ``priority``, or such a plan is not feasible.
    """
    problem = search.draft.problem
    if problem.start is not None:
        values = search.draft.values_of(problem.start)
        if search.program.is_feasible(values):
            return values
    # A plan period by period knows neither limits on cross-region traffic nor unserved demand.
    cannot_begin = problem.reroute is not None or problem.priority is not None
    if cannot_begin or len(search.program.cost) < BEGIN_FROM:
        return None
    target = period_by_period(
        problem, time_limit_s=BEGIN_SHARE * search.effort.time_limit_s, check=search.effort.check
    )
    if target is None:
        return None
    values = search.draft.values_of(target)
    return values if search.program.is_feasible(values) else None


def _plan_of_solution(
    draft: Draft, solved: Solution, solver: str, seconds: tuple[float, float]
) -> HorizonPlan:
    """Return the plan of a solution; if there is none, the greedy plan with an explanation.

    ``seconds`` is (time to build, time to solve) the program.
    """
    problem, values = draft.problem, solved.values
    build_s, solve_s = seconds
    if values is None:
        target = greedy_plan(problem)
        lent = np.zeros_like(target)
        unserved = _unserved_by_greedy_plan(problem, target)
    else:
        target, lent = draft.round_counts(values, draft.x), draft.round_counts(values, draft.lent)
        unserved = _unserved_tps(draft, values)
    conflict = _conflict_words(problem, solved)
    objective, fleet = costs(problem, target, lent)
    if values is None:
        bound = 0.0
    elif problem.lend_usd is not None or problem.reserved_usd is not None:
        # Income from lending is no part of the fleet's cost, so ``true_bound`` does not apply. The
        # program's objective exceeds the true cost by at most the share STICKINESS of the fleet.
        bound = min(objective, solved.bound - STICKINESS * fleet)
    else:
        bound = min(objective, true_bound(problem.windows, solved.bound))
    target.setflags(write=False)
    lent.setflags(write=False)
    return HorizonPlan(
        status=solved.status,
        target=target,
        lent=lent,
        rerouted_tps=rerouted_tps(problem, target - lent),
        unserved_tps=unserved,
        reserved=cheapest_reservation(problem, target),
        objective=objective,
        fleet=fleet,
        bound=bound,
        gap=(objective - bound) / fleet if fleet > 0 else 0.0,
        solver=solver,
        build_seconds=build_s,
        solve_seconds=solve_s,
        totals=totals(problem, target, lent),
        binding=() if conflict else _binding_constraints(problem, target, lent),
        conflict=conflict,
    )


def _conflict_words(problem: HorizonProblem, solved: Solution) -> str:
    """Return why there is no solution, in words; "" if there is one."""
    if solved.status == INFEASIBLE:
        return conflicting_set(problem)
    if solved.values is not None:
        return ""
    failure = solved.died or "found no plan in its time"
    return (
        f"The solver {failure}. The greedy plan replaces it, without a proof of "
        "quality. Allow more time, or try the other solver."
    )


def _unserved_tps(draft: Draft, values: FloatArray) -> FloatArray:
    """Return the unserved tokens/s by period, tier and model, ``[period, tier, model]``."""
    demand = draft.problem.demand
    periods, tiers, models = len(draft.x), len(demand), len(draft.problem.first.models)
    if draft.problem.priority is None:
        return np.zeros((periods, tiers, models))
    local_unserved = values[draft.unserved_local].reshape(tiers, periods, models, -1).sum(axis=3)
    unserved: FloatArray = (local_unserved + values[draft.unserved_joint]).transpose(1, 0, 2)
    # Less than the solver's tolerance is no unserved demand.
    return np.where(unserved > 1e-6 * max(1.0, float(demand.max())), unserved, 0.0)


def _unserved_by_greedy_plan(problem: HorizonProblem, target: IntArray) -> FloatArray:
    """Return the tokens/s of joint demand that a greedy plan leaves unserved.

    The shape is ``[period, tier, model]``. All of it is counted for the last tier.
    """
    unserved = np.zeros((len(target), len(problem.demand), len(problem.first.models)))
    for period, window in enumerate(problem.windows):
        served_tps = carried_tps(window, target[period]).min(axis=0).sum(axis=1)
        # Within the solver's tolerance, all is served.
        unserved[period, -1] = np.maximum(0.0, global_need_tps(window) * (1 - 1e-6) - served_tps)
    return unserved


def _binding_constraints(
    problem: HorizonProblem, target: IntArray, lent: IntArray
) -> tuple[Binding, ...]:
    """Return the binding constraints of all periods, each once with its number of periods.

    Limits on all periods together are included. ``target`` and ``lent`` are ``[period, model,
    region, GPU column]``.
    """
    by_place: dict[tuple[str, str], list[Binding]] = defaultdict(list)
    fleet_before = np.concatenate([problem.first.current[None], target[:-1]])
    for period, window in enumerate(problem.windows):
        serving = replace(window, current=fleet_before[period])
        for binding in binding_constraints(serving, target[period] - lent[period]):
            by_place[binding.family, binding.where].append(binding)
    periods = len(problem.windows)
    bindings = []
    for same_place in by_place.values():
        first = same_place[0]
        count = f" ({len(same_place)} of {periods} periods)" if periods > 1 else ""
        bindings.append(replace(first, sentence=first.sentence + count))
    return *bindings, *_binding_horizon_limits(problem, totals(problem, target, lent))


def _binding_horizon_limits(
    problem: HorizonProblem, by_period: Sequence[Totals]
) -> Iterator[Binding]:
    """Yield the limits on all periods together that the totals ``by_period`` nearly use up."""
    usd, kg = sum(use.usd for use in by_period), sum(use.kg for use in by_period)
    changes = sum(use.starts + use.stops for use in by_period)
    lowest_usd = min((use.usd for use in by_period), default=0.0)
    # A limit is binding if less than 2% of it is left, or less than ``slack``: 2% of the cheapest
    # period, 1 kg or 1 change.
    for family, limit, used, template, slack in (
        ("budget", problem.budget_usd, usd, "${:,.2f}", lowest_usd * 0.02),
        ("carbon", problem.carbon_kg, kg, "{:,.2f} kg CO2e", 1.0),
        ("churn", problem.churn, changes, "{:,.0f} changes", 1.0),
    ):
        if np.isfinite(limit) and used > limit - max(slack, 0.02 * limit):
            sentence = (
                f"The plan takes {template.format(used)} of {template.format(limit)} allowed over "
                "all periods."
            )
            yield Binding(family, "all periods", sentence)


def greedy_plan(problem: HorizonProblem) -> IntArray:
    """Return a greedy plan of instances, ``[period, model, region, GPU column]``.

    Each period starts from the fleet of the period before. Plans never exceed the maximums. They
    fit the GPU capacities too, unless the minimums alone exceed them. Some demand may be uncovered.
    """
    targets, current = [], problem.first.current
    for period, window in enumerate(problem.windows):
        current = greedy_target(_window_from(problem, window, period, current))
        targets.append(current)
    return np.stack(targets)


def period_by_period(
    problem: HorizonProblem, *, time_limit_s: float, check: Callable[[], None]
) -> IntArray | None:
    """Plan each period by itself, starting from the fleet of the period before.

    The result is instances ``[period, model, region, GPU column]``. None: a period has no plan
    within its share of ``time_limit_s``. ``check`` may raise to cancel.
    """
    compile_kernels()
    targets, current = [], problem.first.current
    until = perf_counter() + time_limit_s
    for period, window in enumerate(problem.windows):
        limit_s = (until - perf_counter()) / (len(problem.windows) - period)
        if limit_s <= 0:
            return None
        plan = solve_window(
            _window_from(problem, window, period, current),
            gap=NEAR,
            time_limit_s=limit_s,
            method=DECOMPOSED if can_decompose(window) else AUTO,
            check=check,
        )
        if plan.status not in (OPTIMAL, FEASIBLE):
            return None
        current = plan.target
        targets.append(current)
    return np.stack(targets)


def _window_from(
    problem: HorizonProblem, window: PlanningProblem, period: int, current: IntArray
) -> PlanningProblem:
    """Return ``window``, which is number ``period``, with ``current`` as the present fleet.

    Before period ``problem.lead``, no further instance can be up, so maximums are at most
    ``current``.
    """
    if period >= problem.lead:
        return replace(window, current=current)
    maximum = np.minimum(window.maximum, current)
    return replace(
        window, current=current, maximum=maximum, minimum=np.minimum(window.minimum, maximum)
    )
