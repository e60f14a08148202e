"""Run a program on HiGHS or CBC, with the bound and status from the solver itself.

PuLP states the program; its arrays are what is solved, since PuLP calls a run that hit its time
limit "Optimal", keeps no bound and cannot be stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
import pulp
from scipy import sparse

from planner.optimizer.problem import INFEASIBLE
from planner.optimizer.program import Program
from planner.optimizer.solving.arrays import LinearProgram
from planner.optimizer.solving.cbc import solve_on_cbc
from planner.optimizer.solving.guarded import Solved, solve_program
from simulation.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a solver proved: ``target`` is None unless the status is optimal or feasible."""

    status: str
    target: IntArray | None
    bound: float  # lower bound on the program's objective; 0 where nothing was proven
    died: str = ""  # how the solver ended where it should not have, in words


def run_highs(
    program: Program, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Outcome:
    """Solve on HiGHS, single-threaded so that the same problem gives the same answer.

    ``gap`` is relative to the objective; what ``check`` raises stops it.
    """
    return _run(program, solve_program, gap, time_limit_s, check)


def run_cbc(
    program: Program, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Outcome:
    """Solve on the CBC that comes with PuLP; otherwise as on HiGHS."""
    return _run(program, solve_on_cbc, gap, time_limit_s, check)


def _run(
    program: Program,
    solve: Callable[..., Solved],
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
) -> Outcome:
    if not program.lp.numVariables():  # a demand, and no variable
        unmet = any(row.getLb() is not None for row in program.lp.constraints())
        empty = np.zeros(program.problem.current.shape, np.int64)
        return Outcome(INFEASIBLE, None, 0.0) if unmet else Outcome("optimal", empty, 0.0)
    arrays = as_arrays(program)
    solved = solve(arrays, gap=gap, time_limit_s=time_limit_s, check=check)
    bound = solved.bound if np.isfinite(solved.bound) else 0.0
    if solved.values is None:
        return Outcome(solved.status, None, bound, solved.died)
    named = {one.name: solved.values[one.index] for one in program.x.values()}
    return Outcome(solved.status, program.target(named), bound, solved.died)


def as_arrays(program: Program) -> LinearProgram:
    """The program as arrays, its variables in the order of their ``index``."""
    model = pulp.HiGHS(msg=False)
    model.createAndConfigureSolver(program.lp)
    model.buildSolverModel(program.lp)
    lp: highspy.HighsLp = program.lp.solverModel.getLp()
    matrix = lp.a_matrix_
    parts = np.array(matrix.value_), np.array(matrix.index_), np.array(matrix.start_)
    shape = lp.num_row_, lp.num_col_
    by_rows = (
        sparse.csr_array(parts, shape=shape)
        if matrix.format_ == highspy.MatrixFormat.kRowwise
        else sparse.csc_array(parts, shape=shape).tocsr()
    )
    whole = np.array([kind == highspy.HighsVarType.kInteger for kind in lp.integrality_], bool)
    return LinearProgram(
        cost=np.array(lp.col_cost_),
        lower=np.array(lp.col_lower_),
        upper=np.array(lp.col_upper_),
        whole=whole if len(whole) else np.zeros(lp.num_col_, bool),
        begins=by_rows.indptr.astype(np.int64),
        columns=by_rows.indices.astype(np.int64),
        values=by_rows.data.astype(float),
        row_lower=np.array(lp.row_lower_),
        row_upper=np.array(lp.row_upper_),
    )


SOLVERS: dict[str, Callable[..., Outcome]] = {"highs": run_highs, "cbc": run_cbc}
