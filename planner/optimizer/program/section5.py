"""State and solve the program of one window in PuLP, as SageServe's section 5 does (seed 004, E7).

Sets: models ``i``, regions ``j``, GPU columns ``k`` (GPU types and their arrangements), and the
bins ``w`` of the forecast. A cell is a possible (i, j, k). Symbols of table 2 of the source: n are
the present replicas, delta their change, theta the capacity of a replica, alpha its price, sigma
the cost of a start, rho the demand.

``solve_window`` solves small windows with it. Larger windows and plans of several periods use the
program as arrays (``variables``, ``families``), which has the same optimum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import TypeAlias

import highspy
import numpy as np
import pulp

from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.objective import caps, price, start_cost
from planner.optimizer.pools import LinearPieces, capacity_curve, fewest_instances, linear_pieces
from planner.optimizer.problem import TIMEOUT, Outcome, PlanningProblem
from planner.optimizer.program.cuts import cover_facets
from planner.optimizer.program.search import STABLE_SHARE, Effort, cost_within_gap
from planner.optimizer.roles import Side, role_sides
from planner.optimizer.solvers.deadline import Solution, solution_of_highs
from planner.optimizer.solvers.highs import run
from simulation.arrays import IntArray

Cell = tuple[int, int, int]  # i, j, k
Expression: TypeAlias = pulp.LpAffineExpression
# Tokens/s that each model serves in each region, by (i, j).
Served: TypeAlias = dict[tuple[int, int], pulp.LpVariable | Expression]


@dataclass(frozen=True, slots=True, eq=False)
class WindowProgram:
    """The program, and the variables and expressions from which its answer is read."""

    program: pulp.LpProblem
    fleet: dict[Cell, pulp.LpVariable]  # replicas of each cell: n + delta
    changes: Expression  # replicas started and stopped, without the constant ``sum n``
    shape: tuple[int, int, int]  # numbers of models, regions and GPU columns

    def target(self) -> IntArray:
        """Return the replicas of the solution, ``[model, region, GPU column]``."""
        replicas = np.zeros(self.shape, np.int64)
        for cell, variable in self.fleet.items():
            replicas[cell] = round(variable.value())
        return replicas


def window_program(problem: PlanningProblem) -> WindowProgram:
    """Return the program of ``problem`` in PuLP.

    Variables are the replicas of each cell (model i, region j, GPU column k) and their starts. The
    objective is the cost of both. Seed 004 counts only the change of the fleet in its first term,
    so its objective differs by a constant.
    """
    program = pulp.LpProblem("plan", pulp.LpMinimize)
    # The replicas of each possible cell.
    gpus_each = np.maximum(1, problem.gpus_per_instance)[:, None, :]  # [i, 1, k]
    max_replicas = np.minimum(problem.maximum, problem.usable_gpus // gpus_each)  # [i, j, k]
    fleet = {
        (i, j, k): program.add_variable(
            _name("fleet", i, j, k), 0, int(max_replicas[i, j, k]), pulp.LpInteger
        )
        for i, j, k in np.ndindex(max_replicas.shape)
        if problem.theta_tps[i, k] > 0
    }
    # Starts are max(0, delta), which a whole fleet makes whole. They are declared whole because
    # the presolve of HiGHS 1.15.1 may otherwise lose the optimum (problem 19 of
    # bench/field/power.py).
    starts = {
        cell: program.add_variable(_name("starts", *cell), 0, None, pulp.LpInteger)
        for cell in fleet
    }
    # Objective: the cost of the replicas (gamma) and of their starts (mu).
    alpha, sigma = price(problem), start_cost(problem)
    gamma = pulp.lpSum(float(alpha[cell]) * variable for cell, variable in fleet.items())
    mu = pulp.lpSum(float(sigma[cell]) * variable for cell, variable in starts.items())
    program.setObjective(gamma + mu)

    for cell in fleet:
        present = int(problem.current[cell])
        program += starts[cell] >= fleet[cell] - present, _name("starts", *cell)
    _add_coverage(program, problem, _served_tps(program, problem, fleet))
    _add_fleet_limits(program, problem, fleet)
    _add_caps(program, problem, fleet, starts)
    _add_facets(program, problem, fleet)
    changes = pulp.lpSum(2 * starts[cell] - fleet[cell] for cell in fleet)
    return WindowProgram(program, fleet, changes, problem.current.shape)


def _add_caps(
    program: pulp.LpProblem,
    problem: PlanningProblem,
    fleet: dict[Cell, pulp.LpVariable],
    starts: dict[Cell, pulp.LpVariable],
) -> None:
    """Add the limits on money, carbon, power and changes."""
    for number, cap in enumerate(caps(problem)):
        used = pulp.lpSum(
            float(cap.per_instance[cell]) * fleet[cell] + float(cap.per_start[cell]) * starts[cell]
            for cell in fleet
        )
        program += used <= cap.limit, _name(cap.family, number)


def _add_coverage(program: pulp.LpProblem, problem: PlanningProblem, served: Served) -> None:
    """Have each region serve epsilon of its peak, and all regions together the joint peak.

    If a region may be lost, the others must serve the joint peak, whichever it is.
    """
    local, joint = local_need_tps(problem), global_need_tps(problem)
    regions = range(len(problem.regions))
    for i, peak in enumerate(joint.tolist()):
        for j, need in enumerate(local[i].tolist()):
            program += served[i, j] >= need, _name("local_coverage", i, j)
        program += pulp.lpSum(served[i, j] for j in regions) >= peak, _name("global_coverage", i)
        if problem.lose_region:
            for lost in regions:
                others = pulp.lpSum(served[i, j] for j in regions if j != lost)
                program += others >= peak, _name("without_region", i, lost)


def _add_fleet_limits(
    program: pulp.LpProblem, problem: PlanningProblem, fleet: dict[Cell, pulp.LpVariable]
) -> None:
    """Add the minimums and the GPUs of each region, which the source does not have."""
    for cell, variable in fleet.items():
        if problem.minimum[cell] > 0:
            program += variable >= int(problem.minimum[cell]), _name("minimum", *cell)
    for (region_index, capacity_row), gpus in np.ndenumerate(problem.capacity_gpus):
        used = pulp.lpSum(
            int(problem.gpus_per_instance[i, k]) * variable
            for (i, region, k), variable in fleet.items()
            if region == region_index and problem.rows[k] == capacity_row
        )
        program += used <= int(gpus), _name("capacity", region_index, capacity_row)


def _served_tps(
    program: pulp.LpProblem, problem: PlanningProblem, fleet: dict[Cell, pulp.LpVariable]
) -> Served:
    """Return the tokens/s that each model serves in each region, by (model, region).

    It is the capacity of the weakest side, a group of GPU columns of one role such as prefill or
    decode. With one side, it is an expression. With several, it is a variable with the capacity of
    each side as an upper bound.
    """
    sides = role_sides(problem)
    models, regions, _ = problem.current.shape
    pairs = list(np.ndindex(models, regions))

    @cache  # sides often share pools and differ only in which replicas they assume lost
    def pool_tps(cell: Cell, lost: int) -> Expression:
        """Return the tokens/s of the pool of a cell, of which ``lost`` replicas are lost."""
        return _pool_capacity(program, problem, fleet[cell], (*cell, lost))

    def capacity(pair: tuple[int, int], side: Side) -> Expression:
        """Return the tokens/s of all pools of a model in a region that belong to ``side``."""
        side_columns = np.flatnonzero(side.columns).tolist()
        columns = [column for column in side_columns if (*pair, column) in fleet]
        return pulp.lpSum(pool_tps((*pair, column), int(side.lost[column])) for column in columns)

    if len(sides) == 1:
        (only_side,) = sides
        return {pair: capacity(pair, only_side) for pair in pairs}
    served = {pair: program.add_variable(_name("served", *pair), 0) for pair in pairs}
    for side_index, side in enumerate(sides):
        for pair in pairs:
            program += (
                side.share * served[pair] <= capacity(pair, side),
                _name(f"side_{side_index}", *pair),
            )
    return served


def _pool_capacity(
    program: pulp.LpProblem,
    problem: PlanningProblem,
    fleet: pulp.LpVariable,
    key: tuple[int, int, int, int],
) -> Expression:
    """Return the tokens/s of a pool as an expression, and add its variables to ``program``.

    ``key`` is model, region, GPU column and number of lost replicas; ``fleet`` is the variable of
    the pool's replicas. The expression is linear in ``fleet``, or a sum over the linear pieces of
    the capacity curve.
    """
    model, _, column, lost = key
    need = float(global_need_tps(problem)[model])
    enough = min(int(fleet.upBound), fewest_instances(problem, model, column, need, lost))
    curve = capacity_curve(problem, model, column, enough, lost)
    slopes = linear_pieces(curve, np.inf).slope.tolist()
    if len(slopes) <= 1:  # a straight curve, tested without the bend at ``need``
        return pulp.lpSum(slope * fleet for slope in slopes)
    pieces = linear_pieces(curve, need)
    # The replicas that serve in each piece of the curve.
    filled = [
        program.add_variable(_name("filled", *key, piece), 0, length)
        for piece, length in enumerate(pieces.length.tolist())
    ]
    program += pulp.lpSum(filled) <= fleet, _name("pool", *key)
    _add_filling_order(program, pieces, filled, key)
    slopes = pieces.slope.tolist()
    return pulp.lpSum(slope * count for slope, count in zip(slopes, filled, strict=True))


def _add_filling_order(
    program: pulp.LpProblem,
    pieces: LinearPieces,
    filled: list[pulp.LpVariable],
    key: tuple[int, int, int, int],
) -> None:
    """Require that pieces are filled in the order of their concave groups.

    A binary opens each group but the first. A piece is empty unless its group is open, and full if
    the next group is open. ``filled`` has the variable of each piece.
    """
    lengths, groups = pieces.length.tolist(), pieces.group.tolist()
    opened = {
        group: program.add_variable(_name("opened", *key, group), cat=pulp.LpBinary)
        for group in sorted(set(groups) - {0})
    }
    for piece, (length, group) in enumerate(zip(lengths, groups, strict=True)):
        if group in opened:
            program += filled[piece] <= length * opened[group], _name("open", *key, piece)
        if group + 1 in opened:
            program += filled[piece] >= length * opened[group + 1], _name("full", *key, piece)


def _add_facets(
    program: pulp.LpProblem, problem: PlanningProblem, fleet: dict[Cell, pulp.LpVariable]
) -> None:
    """Add cuts for each demand: inequalities that exclude only fractional solutions."""
    for side_index, side in enumerate(role_sides(problem)):
        for i in range(len(problem.models)):
            columns = np.flatnonzero((problem.theta_tps[i] > 0) & side.columns)
            lost = side.lost[columns]
            for number, (regions, need) in enumerate(_demands(problem, i)):
                facets = cover_facets(problem, i, columns, lost, need * side.share)
                for row, (*coefficients, bound) in enumerate(facets.tolist()):
                    covered = pulp.lpSum(
                        coefficient * fleet[i, j, k]
                        for coefficient, k in zip(coefficients, columns.tolist(), strict=True)
                        for j in regions
                    )
                    program += covered >= bound, _name(f"facet_{side_index}", i, number, row)


def _demands(problem: PlanningProblem, model: int) -> list[tuple[list[int], float]]:
    """Return a model's local needs and joint peak as (regions that serve it, tokens/s)."""
    local, joint = local_need_tps(problem)[model], global_need_tps(problem)[model]
    demands = [([region], need) for region, need in enumerate(local.tolist())]
    if len(demands) > 1:
        demands.append((list(range(len(demands))), float(joint)))
    return demands


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS solver, extended so that a cancel can end it."""

    check: Callable[[], None]

    def callSolver(self, lp: pulp.LpProblem) -> None:
        """Run HiGHS on the model, from an earlier solution if there is one."""
        values = [variable.varValue for variable in lp.variables()]
        if None not in values:  # an earlier solution is the start of the next search
            start = highspy.HighsSolution()
            start.col_value = values
            lp.solverModel.setSolution(start)
        run(lp.solverModel, self.check)


def solve_window_program(problem: PlanningProblem, effort: Effort) -> Outcome:
    """Solve the program in PuLP.

    ``effort.gap`` is relative to the objective. With ``effort.stable``, the plan has the fewest
    starts and stops among those within the gap that the time allows to find.
    """
    began = perf_counter()
    program = window_program(problem)
    built = perf_counter()
    if built - began >= effort.time_limit_s:
        return Outcome(TIMEOUT, target=None, bound=0.0, build_s=built - began)
    solved = _solve(program.program, effort, effort.time_limit_s)
    target = None if solved.values is None else program.target()
    seconds_left = effort.time_limit_s - (perf_counter() - built)
    if effort.stable and effort.gap > 0 and target is not None and seconds_left > 0:
        target = _with_fewer_changes(problem, program, solved, effort, seconds_left)
    return Outcome(
        solved.status, target, solved.known_bound,
        build_s=built - began, solve_s=perf_counter() - built,
    )  # fmt: skip


def _with_fewer_changes(
    problem: PlanningProblem,
    first_program: WindowProgram,
    solved: Solution,
    effort: Effort,
    left_s: float,
) -> IntArray:
    """Return the replicas with the fewest starts and stops at a cost <= bound (1 + gap).

    ``first_program`` has the solution ``solved``. It is changed and solved again in at most
    ``left_s`` seconds. If that finds nothing better, return the replicas of ``solved``.
    """
    target, program = first_program.target(), first_program.program
    if first_program.changes.value() + int(problem.current.sum()) < 0.5:  # no start, no stop
        return target
    cost = program.objective
    max_cost = max(1e-12, cost_within_gap(solved, float(cost.value()), effort.gap))
    # Changes are whole numbers and the scaled cost is at most about 1, so changes decide first.
    scaled_cost = cost * (1 / max_cost)
    program += scaled_cost <= 1 + 1e-9, "cost_within_gap"
    program.setObjective(scaled_cost + first_program.changes)
    objective_before = float(program.objective.value())
    second = _solve(program, effort, min(left_s, STABLE_SHARE * effort.time_limit_s))
    is_better = second.values is not None and float(program.objective.value()) < objective_before
    return first_program.target() if is_better else target


def _solve(program: pulp.LpProblem, effort: Effort, time_limit_s: float) -> Solution:
    """Solve on HiGHS, from the variables' values if an earlier search set them."""
    solver = _Highs(
        msg=False,
        gapRel=effort.gap,
        gapAbs=0.0,
        timeLimit=max(0.05, time_limit_s),
        threads=1,
        # This heuristic takes a quarter of the time of programs as small as these.
        mip_heuristic_run_feasibility_jump=False,
    )
    solver.check = effort.check
    program.solve(solver)
    return solution_of_highs(program.solverModel)


def _name(family: str, *indices: int) -> str:
    """Return the name of a variable or row, such as "fleet_0_1_2"."""
    return "_".join([family, *map(str, indices)])
