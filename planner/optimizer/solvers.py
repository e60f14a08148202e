"""Run a program on HiGHS or CBC, with the bound and status from the solver itself.

PuLP calls a run that hit its time limit "Optimal" and keeps no bound, so neither is taken from it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import highspy
import pulp
from pulp.apis.coin_api import pulp_cbc_path

from planner.errors import SolverFailed
from planner.optimizer.highs import run
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, IntArray
from planner.optimizer.program import Program

FEASIBLE_POINT = 2  # HighsInfo.primal_solution_status: a feasible solution is held
CBC_BOUND_ROUNDING = 5e-4  # CBC's log prints the bound to three decimals


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a solver proved: ``target`` is None unless the status is optimal or feasible."""

    status: str
    target: IntArray | None
    bound: float  # lower bound on the program's objective; 0 where nothing was proven


def run_highs(
    program: Program, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Outcome:
    """Solve on HiGHS, single-threaded so that the same problem gives the same answer.

    ``gap`` is relative to the objective; what ``check`` raises stops it.
    """
    lp = program.lp
    solver = pulp.HiGHS(msg=False, gapRel=gap, timeLimit=time_limit_s, threads=1)
    solver.createAndConfigureSolver(lp)
    solver.buildSolverModel(lp)
    highs: highspy.Highs = lp.solverModel
    run(highs, check)

    status, info = highs.getModelStatus(), highs.getInfo()
    states = highspy.HighsModelStatus
    unmet = status == states.kModelEmpty and lp.numConstraints() > 0  # a demand, and no variable
    if unmet or status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Outcome(INFEASIBLE, None, 0.0)
    if status == states.kTimeLimit and info.primal_solution_status != FEASIBLE_POINT:
        return Outcome(TIMEOUT, None, info.mip_dual_bound)
    if status not in (states.kOptimal, states.kModelEmpty, states.kTimeLimit):
        raise SolverFailed(
            f"HiGHS stopped with {highs.modelStatusToString(status)!r}: try the solver cbc."
        )
    values = highs.getSolution().col_value
    named = {variable.name: values[variable.index] for variable in program.x.values()}
    proven = FEASIBLE if status == states.kTimeLimit else OPTIMAL
    return Outcome(proven, program.target(named), info.mip_dual_bound)


def run_cbc(
    program: Program, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Outcome:
    """Solve on the CBC that comes with PuLP; the bound is read from its log.

    CBC is a process of its own that only its time limit stops: ``check`` is asked before it.
    """
    check()
    lp = program.lp
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "cbc.log"
        solver = pulp.COIN_CMD(
            path=pulp_cbc_path,
            msg=False,
            gapRel=gap,
            timeLimit=time_limit_s,
            logPath=str(log_path),
        )
        try:
            lp.solve(solver)
        except pulp.PulpSolverError as error:
            raise SolverFailed(f"CBC did not run ({error}): try the solver highs.") from error
        log = log_path.read_text()

    if lp.status == pulp.LpStatusInfeasible:
        return Outcome(INFEASIBLE, None, 0.0)
    if lp.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Outcome(TIMEOUT, None, _cbc_bound(log, otherwise=0.0))
    named = {variable.name: variable.varValue for variable in program.x.values()}
    proven = OPTIMAL if lp.sol_status == pulp.LpSolutionOptimal else FEASIBLE
    objective = float(pulp.value(lp.objective) or 0.0)
    otherwise = objective if proven == OPTIMAL else 0.0
    return Outcome(proven, program.target(named), _cbc_bound(log, otherwise=otherwise))


def _cbc_bound(log: str, *, otherwise: float) -> float:
    """The last "Lower bound" of a CBC log; a run that closed the gap prints none."""
    found = re.findall(r"^Lower bound:\s+(\S+)", log, flags=re.MULTILINE)
    return float(found[-1]) - CBC_BOUND_ROUNDING if found else otherwise


SOLVERS: dict[str, Callable[..., Outcome]] = {"highs": run_highs, "cbc": run_cbc}
