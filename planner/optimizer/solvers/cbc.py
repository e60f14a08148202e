"""Solve a program on CBC, the fallback, in a process that a deadline or a cancel ends.

PuLP's model of the program writes ``.mps`` (for CBC) and ``.lp``.
"""

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pulp
from pulp.apis.coin_api import pulp_cbc_path

from planner.errors import SolverFailed
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT
from planner.optimizer.solvers.arrays import KEPT, LinearProgram
from planner.optimizer.solvers.deadline import Solution, run_watched
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
    """Solve ``program`` on the CBC that PuLP ships, with the interface of ``solve_program``.

    ``start`` is ignored.
    """
    until = time.perf_counter() + time_limit_s
    with tempfile.TemporaryDirectory() as name:
        model, answer, log = (Path(name) / file for file in ("m.mps", "answer.txt", "log.txt"))
        as_pulp(program).writeMPS(str(model))
        seconds_left = max(1e-9, until - time.perf_counter())
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
    """Return the solution in CBC's answer file, with the bound in its log.

    ``died`` says why the process ended early, or "".
    """
    bounds = re.findall(r"^Lower bound:\s+(\S+)", log, flags=re.MULTILINE)
    bound = float(bounds[-1]) - ROUNDING if bounds else -np.inf
    lines = answer.read_text().splitlines() if answer.exists() else []
    if not lines:
        return Solution(TIMEOUT, values=None, bound=bound, died=died)
    head = lines[0].lower()
    if "infeasible" in head:
        return Solution(INFEASIBLE, values=None, bound=np.inf)
    values = np.zeros(len(program.cost))  # CBC does not list values of 0.
    for line in lines[1:]:
        _, column, value, _ = line.replace("**", "").split()
        values[int(column[1:])] = float(value)
    fractions = np.abs(values - np.rint(values))[program.whole]
    # Out of time, CBC may print the solution of the relaxation.
    if not program.is_feasible(values) or np.any(fractions > KEPT):
        return Solution(TIMEOUT, values=None, bound=bound, died=died)
    if head.startswith("optimal"):
        objective = float(program.cost @ values)
        return Solution(OPTIMAL, values, bound if bounds else objective)
    return Solution(FEASIBLE, values, bound, died)


def as_pulp(program: LinearProgram) -> pulp.LpProblem:
    """Return the program as a PuLP model with variables ``xi`` and rows ``ri``.

    A row with two different bounds becomes ``ri_least`` and ``ri_most``.
    """
    lp = pulp.LpProblem("plan", pulp.LpMinimize)
    parts = zip(program.lower.tolist(), program.upper.tolist(), program.whole, strict=True)
    x = [
        lp.add_variable(
            f"x{i}",
            None if low == -np.inf else low,
            None if high == np.inf else high,
            pulp.LpInteger if integral else pulp.LpContinuous,
        )
        for i, (low, high, integral) in enumerate(parts)
    ]
    costs = zip(x, program.cost.tolist(), strict=True)
    lp.setObjective(pulp.LpAffineExpression([(v, cost) for v, cost in costs if cost]))
    columns, values = program.columns.tolist(), program.values.tolist()
    limits = zip(program.row_lower.tolist(), program.row_upper.tolist(), strict=True)
    for i, (low, high) in enumerate(limits):
        entries = range(program.begins[i], program.begins[i + 1])
        terms = [(x[columns[entry]], values[entry]) for entry in entries]
        if low == high:
            senses = [(pulp.LpConstraintEQ, low, "")]
        else:
            two_sided = low > -np.inf and high < np.inf
            senses = [
                (pulp.LpConstraintGE, low, "_least" if two_sided else ""),
                (pulp.LpConstraintLE, high, "_most" if two_sided else ""),
            ]
        for sense, limit, suffix in senses:
            if np.isfinite(limit):
                row = pulp.LpConstraint(
                    pulp.LpAffineExpression(terms), sense, f"r{i}{suffix}", limit
                )
                lp.addConstraint(row)
    return lp
