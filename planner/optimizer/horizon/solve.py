"""Solve all periods at once: a problem in, a plan with its bound out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.binding import binding_constraints
from planner.optimizer.figures import global_need_tps
from planner.optimizer.highs import now_and_then
from planner.optimizer.horizon.begin import greedy_plan, period_by_period
from planner.optimizer.horizon.conflict import conflict_in_words
from planner.optimizer.horizon.cuts import whole_covers
from planner.optimizer.horizon.families import FAMILIES, changes_of
from planner.optimizer.horizon.figures import asked_for, costs, keeps, totals, values_of
from planner.optimizer.horizon.problem import HorizonPlan, HorizonProblem, validate_horizon
from planner.optimizer.horizon.program import Draft
from planner.optimizer.horizon.sent import rerouted
from planner.optimizer.model import STICKINESS
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, Binding
from planner.optimizer.sides import carried_tps
from planner.optimizer.solving import LinearProgram, Solved, solve_program
from planner.optimizer.solving.cbc import solve_on_cbc
from simulation.arrays import FloatArray, IntArray

BEGIN_SHARE = 0.4  # of the time limit, at most, for a plan to begin from
BEGIN_FROM = 1_000  # variables
STABLE_SHARE = 0.2  # of the time limit, at most, for fewer changes at the same cost
WORTH_SLACK = 1e-6
SOLVERS = ("highs", "cbc")


def solve_horizon(
    problem: HorizonProblem,
    *,
    solver: str = "highs",
    gap: float = 1e-4,
    time_limit_s: float = 30.0,
    stable: bool = True,
    check: Callable[[], None] | None = None,
) -> HorizonPlan:
    """The instances of every period that together cost least.

    Statuses, ``gap`` and ``check`` are those of ``solve_window``. With ``priority`` the least worth
    stays unserved, and of those plans the cheapest is taken. ``stable``: of the plans within the
    gap, one with few starts and stops. Each period planned by itself in a part of the time counts
    as found where time runs out (large programs); with nothing at all the greedy plan is the target
    and ``conflict`` says what happened.
    Raises ``ScenarioError`` for what makes no sense.
    """
    validate_horizon(problem)
    if solver not in SOLVERS:
        raise ScenarioError(f"Solver {solver!r} is not known: use one of {', '.join(SOLVERS)}.")
    if not gap >= 0 or not time_limit_s > 0:
        raise ScenarioError("The gap must be 0 or more and the time limit more than 0 seconds.")
    ask = now_and_then(check) if check else lambda: None
    if check:
        check()
    began = perf_counter()
    draft = Draft.of(problem)
    for family in FAMILIES:
        family(draft)
    plain = draft.builder.program()
    whole_covers(draft)
    program = draft.builder.program()
    built = perf_counter()
    run = _Run(draft, program, solver, gap, built + time_limit_s, time_limit_s, ask)
    solved = run.limited() if problem.priority is not None else run.cheapest(run.begin())
    if stable and solved.values is not None and gap > 0:
        solved = run.fewer_changes(solved)
    seconds = built - began, perf_counter() - built
    conflict = conflict_in_words(draft, plain) if solved.status == INFEASIBLE else ""
    return _plan(draft, solved, solver, seconds, conflict)


class _Run:
    """One program, its solver and its clock."""

    def __init__(
        self,
        draft: Draft,
        program: LinearProgram,
        solver: str,
        gap: float,
        until: float,
        limit_s: float,
        check: Callable[[], None],
    ) -> None:
        self.draft, self.program = draft, program
        self.solver, self.gap = solver, gap
        self.until, self.limit_s, self.check = until, limit_s, check

    def begin(self) -> FloatArray | None:
        """A plan to begin from, where the program is large enough to need one."""
        draft = self.draft
        if len(self.program.cost) < BEGIN_FROM or draft.problem.reroute is not None:
            return None
        target = period_by_period(
            draft.problem, time_limit_s=BEGIN_SHARE * self.limit_s, check=self.check
        )
        if target is None:
            return None
        values = values_of(draft, target, np.zeros_like(target), len(self.program.cost))
        return values if keeps(self.program, values) else None

    def cheapest(self, start: FloatArray | None) -> Solved:
        """Least cost; ``start`` counts as found."""
        solved = self._solve(self.program, start, self.until - perf_counter())
        if solved.status == TIMEOUT and start is not None:
            return replace(solved, status=FEASIBLE, values=start)
        return solved

    def limited(self) -> Solved:
        """Least worth unserved, then least cost at that."""
        draft, problem = self.draft, self.draft.problem
        worth = np.zeros(len(self.program.cost))
        if draft.short is not None and draft.beyond is not None and problem.priority is not None:
            regions = len(problem.first.regions)
            per_pair = np.repeat(problem.priority, regions, axis=1)  # [k, l * r]
            worth[draft.short] = per_pair[:, None, :] * problem.hours
            worth[draft.beyond] = problem.priority[:, None, :] * problem.hours
        most = np.where(np.isfinite(self.program.upper), self.program.upper, 0.0)
        unit = max(1e-12, float(worth @ most) / 1e4)
        first = self._solve(
            replace(self.program, cost=worth / unit), None, (self.until - perf_counter()) / 2
        )
        if first.values is None:
            return first
        least = float(worth @ first.values) / unit
        limit = least + WORTH_SLACK * max(1.0, least)
        self.program = with_row(self.program, worth / unit, limit)
        second = self._solve(self.program, first.values, self.until - perf_counter())
        found = first.values if second.values is None else second.values
        proven = OPTIMAL if {first.status, second.status} == {OPTIMAL} else FEASIBLE
        return Solved(proven, found, second.bound, second.died)

    def fewer_changes(self, solved: Solved) -> Solved:
        """Of the plans no dearer than the gap allows, one with the fewest starts and stops; of
        these, one that is cheap."""
        program, values = self.program, solved.values
        left = min(self.until - perf_counter(), STABLE_SHARE * self.limit_s)
        if values is None or left <= 0:
            return solved
        cost = float(program.cost @ values)
        bound = solved.bound if np.isfinite(solved.bound) else cost
        allowed = max(cost, bound + self.gap * abs(bound))
        scale = max(1e-12, abs(allowed))
        fewest = program.cost / scale
        fewest[changes_of(self.draft)] += 1.0
        capped = with_row(program, program.cost / scale, allowed / scale * (1 + 1e-9))
        again = self._solve(replace(capped, cost=fewest), values, left)
        if again.values is None:
            return solved
        if float(fewest @ again.values) >= float(fewest @ values):
            return solved
        return replace(solved, values=again.values)

    def _solve(self, program: LinearProgram, start: FloatArray | None, left: float) -> Solved:
        if self.solver == "cbc":
            return solve_on_cbc(
                program, gap=self.gap, time_limit_s=max(0.05, left), check=self.check
            )
        return solve_program(
            program, gap=self.gap, time_limit_s=max(0.05, left), check=self.check, start=start
        )


def with_row(program: LinearProgram, row: FloatArray, limit: float) -> LinearProgram:
    """``program`` with  row x <= limit  added."""
    at = np.flatnonzero(row)
    return replace(
        program,
        begins=np.append(program.begins, program.begins[-1] + len(at)),
        columns=np.concatenate([program.columns, at]),
        values=np.concatenate([program.values, row[at]]),
        row_lower=np.append(program.row_lower, -np.inf),
        row_upper=np.append(program.row_upper, limit),
    )


def _plan(
    draft: Draft, solved: Solved, solver: str, seconds: tuple[float, float], conflict: str
) -> HorizonPlan:
    problem, values = draft.problem, solved.values
    if values is None:
        target = greedy_plan(problem)
        lent = np.zeros_like(target)
        short = _missing(problem, target)
    else:
        target, lent = draft.spread(values, draft.x), _lent(draft, values)
        short = _unserved(draft, values)
    if values is None and not conflict:
        how = solved.died or "found no plan in its time"
        conflict = (
            f"The solver {how}; the greedy plan is offered in its place, without a proof of how "
            "good it is: allow more time, or try the other solver."
        )
    objective, fleet = costs(problem, target, lent)
    # The program adds a hair to starts that cost nothing, less than this share of the fleet.
    hair = STICKINESS * fleet
    bound = min(objective, max(0.0, solved.bound - hair)) if values is not None else 0.0
    if problem.lend_usd is not None and values is not None:
        bound = min(objective, solved.bound - hair)
    for array in (target, lent):
        array.setflags(write=False)
    return HorizonPlan(
        status=solved.status,
        target=target,
        lent=lent,
        asked=asked_for(problem, target),
        rerouted_tps=rerouted(problem, target - lent),
        unserved_tps=short,
        objective=objective,
        fleet=fleet,
        bound=bound,
        gap=(objective - bound) / fleet if fleet > 0 else 0.0,
        solver=solver,
        build_seconds=seconds[0],
        solve_seconds=seconds[1],
        totals=totals(problem, target, lent),
        binding=() if conflict else _binding(problem, target, lent),
        conflict=conflict,
    )


def _lent(draft: Draft, values: FloatArray) -> IntArray:
    if draft.lent is None:
        return np.zeros((len(draft.x), *draft.problem.first.current.shape), np.int64)
    return draft.spread(values, draft.lent)


def _unserved(draft: Draft, values: FloatArray) -> FloatArray:
    """By period, tier and model, ``[p, k, l]``."""
    demand, models = draft.problem.demand, len(draft.problem.first.models)
    if draft.short is None or draft.beyond is None:
        return np.zeros((len(draft.x), len(demand), models))
    own = values[draft.short].reshape(len(demand), len(draft.x), models, -1).sum(axis=3)
    total: FloatArray = (own + values[draft.beyond]).transpose(1, 0, 2)
    return np.where(total > 1e-6 * max(1.0, float(demand.max())), total, 0.0)


def _missing(problem: HorizonProblem, target: IntArray) -> FloatArray:
    """What a plan without a certificate leaves, all put on the last tier, ``[p, k, l]``."""
    out = np.zeros((len(target), len(problem.demand), len(problem.first.models)))
    for period, window in enumerate(problem.windows):
        served = carried_tps(window, target[period]).min(axis=0).sum(axis=1)
        out[period, -1] = np.maximum(0.0, global_need_tps(window) * (1 - 1e-6) - served)
    return out


def _binding(problem: HorizonProblem, target: IntArray, lent: IntArray) -> tuple[Binding, ...]:
    """What binds in each period, each once, with in how many periods; and the limits on all."""
    found: dict[tuple[str, str], list[Binding]] = {}
    before = np.concatenate([problem.first.current[None], target[:-1]])
    for period, window in enumerate(problem.windows):
        serving = replace(window, current=before[period])
        for bound in binding_constraints(serving, target[period] - lent[period]):
            found.setdefault((bound.family, bound.where), []).append(bound)
    several = len(problem.windows) > 1
    out = [
        replace(
            same[0],
            sentence=same[0].sentence
            + (f" ({len(same)} of {len(problem.windows)} periods)" if several else ""),
        )
        for same in found.values()
    ]
    taken = totals(problem, target, lent)
    for family, limit, used, said in (
        ("budget", problem.budget_usd, sum(one.usd for one in taken), "${:,.2f}"),
        ("carbon", problem.carbon_kg, sum(one.kg for one in taken), "{:,.2f} kg CO2"),
        ("churn", problem.churn, sum(one.starts + one.stops for one in taken), "{:,.0f} changes"),
    ):
        step = min((o.usd for o in taken), default=0.0) * 0.02 if family == "budget" else 1.0
        if np.isfinite(limit) and used > limit - max(step, 0.02 * limit):
            sentence = (
                f"The plan takes {said.format(used)} of {said.format(limit)} allowed over all "
                "periods."
            )
            out.append(Binding(family, "all periods", sentence))
    return tuple(out)
