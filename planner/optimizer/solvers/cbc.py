"""Solve a program on CBC, the other solver, in a process that a deadline or a cancel ends.

HiGHS writes the ``.mps`` file that CBC reads, with variables ``c0``, ``c1``, ...
"""

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pulp.apis.coin_api import pulp_cbc_path

from planner.errors import SolverFailed
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT
from planner.optimizer.solvers.arrays import BOUND_TOLERANCE, LinearProgram
from planner.optimizer.solvers.deadline import Solution, run_watched
from planner.optimizer.solvers.highs import loaded_highs
from simulation.arrays import FloatArray

ROUNDING = 5e-4  # the log prints the bound to three decimals


def solve_on_cbc(
    program: LinearProgram,
    *,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
    start: FloatArray | None = None,
) -> Solution:
    """Solve ``program`` on the CBC that PuLP ships. Arguments as in ``solve_program``.

    ``start`` is ignored. Raises ``SolverFailed`` if CBC cannot be run.
    """
    deadline_s = time.perf_counter() + time_limit_s
    with tempfile.TemporaryDirectory() as name:
        model, answer, log = (Path(name) / file for file in ("m.mps", "answer.txt", "log.txt"))
        loaded_highs(program, time_limit_s=time_limit_s).writeModel(str(model))
        seconds_left = max(1e-9, deadline_s - time.perf_counter())
        options = f"sec {seconds_left:g} ratio {gap:g} allow 0 timeMode elapsed solve solu {answer}"
        with log.open("w") as output:
            try:
                died = run_watched(
                    [pulp_cbc_path, str(model), *options.split()], seconds_left, check, output
                )
            except OSError as error:
                raise SolverFailed(f"CBC did not run ({error}): try the solver highs.") from error
        return _read_solution(program, answer, log.read_text(), died)


def _read_solution(program: LinearProgram, answer: Path, log: str, died: str) -> Solution:
    """Return the solution in CBC's ``answer`` file, with the bound from the text of its ``log``.

    ``died`` says why the process ended early, or "".
    """
    bounds = re.findall(r"^Lower bound:\s+(\S+)", log, flags=re.MULTILINE)
    bound = float(bounds[-1]) - ROUNDING if bounds else -np.inf
    lines = answer.read_text().splitlines() if answer.exists() else []
    if not lines:
        return Solution(TIMEOUT, values=None, bound=bound, died=died)
    status = lines[0].lower()  # such as "optimal - objective value 12.0"
    if "infeasible" in status:
        return Solution(INFEASIBLE, values=None, bound=np.inf)
    values = np.zeros(len(program.cost))
    for line in lines[1:]:  # such as "3 c3 1.5 0"; variables without a line are 0
        _, variable, value, _ = line.replace("**", "").split()
        values[int(variable[1:])] = float(value)
    fractions = np.abs(values - np.rint(values))[program.whole]
    # Out of time, CBC may print the solution of the relaxation.
    if not program.is_feasible(values) or np.any(fractions > BOUND_TOLERANCE):
        return Solution(TIMEOUT, values=None, bound=bound, died=died)
    if status.startswith("optimal"):
        objective = float(program.cost @ values)
        return Solution(OPTIMAL, values, bound if bounds else objective)
    return Solution(FEASIBLE, values, bound, died)
