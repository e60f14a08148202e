"""CBC on a program of arrays: the fallback, in a process that a deadline or a cancel ends."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pulp.apis.coin_api import pulp_cbc_path

from planner.errors import SolverFailed
from planner.optimizer.highs import configured, load
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT
from planner.optimizer.solving.arrays import LinearProgram
from planner.optimizer.solving.guarded import GRACE_S, GRACE_SHARE, POLL_S, Solved
from simulation.arrays import FloatArray

TOLERANCE = 1e-5
ROUNDING = 5e-4  # the log prints the bound to three decimals


def solve_on_cbc(
    program: LinearProgram, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Solved:
    """Solve ``program`` on the CBC that comes with PuLP; as ``solve_program`` otherwise."""
    with tempfile.TemporaryDirectory() as name:
        model, answer, log = (Path(name) / file for file in ("m.mps", "answer.txt", "log.txt"))
        highs = configured(time_limit_s=time_limit_s)
        load(highs, program.highs())
        highs.writeModel(str(model))
        options = [f"sec {max(1e-9, time_limit_s):g}", f"ratio {gap:g}", "allow 0"]
        words = " ".join([*options, "timeMode elapsed", "solve", f"solu {answer}"]).split()
        until = time.perf_counter() + time_limit_s * (1 + GRACE_SHARE) + GRACE_S
        died = ""
        with log.open("w") as said:
            try:
                process = subprocess.Popen(  # noqa: S603 - the CBC that PuLP brings
                    [pulp_cbc_path, str(model), *words], stdout=said, stderr=subprocess.DEVNULL
                )
            except OSError as error:
                raise SolverFailed(f"CBC did not run ({error}): try the solver highs.") from error
            try:
                while process.poll() is None and not died:
                    check()
                    if time.perf_counter() > until:
                        died = "ran past its time limit and was ended"
                    time.sleep(POLL_S)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if not died and process.returncode:
            died = f"ended with code {process.returncode}"
        return _read(program, answer, log.read_text(), died)


def _read(program: LinearProgram, answer: Path, log: str, died: str) -> Solved:
    found = re.findall(r"^Lower bound:\s+(\S+)", log, flags=re.MULTILINE)
    bound = float(found[-1]) - ROUNDING if found else -np.inf
    lines = answer.read_text().splitlines() if answer.exists() else []
    if not lines:
        return Solved(TIMEOUT, None, bound, died)
    head = lines[0].lower()
    if "infeasible" in head:
        return Solved(INFEASIBLE, None, np.inf)
    values = np.zeros(len(program.cost))  # what is 0 is not listed
    for line in lines[1:]:
        _, column, value, _ = line.replace("**", "").split()
        values[int(column.lstrip("Cc"))] = float(value)
    if not _solution(program, values):  # of the relaxation, where time ran out
        return Solved(TIMEOUT, None, bound, died)
    if head.startswith("optimal"):
        objective = float(program.cost @ values)
        return Solved(OPTIMAL, values, bound if found else objective)
    return Solved(FEASIBLE, values, bound, died)


def _solution(program: LinearProgram, values: FloatArray) -> bool:
    activity = program.activity(values)
    low, high = program.row_lower, program.row_upper
    return bool(
        np.all(activity >= low - TOLERANCE * np.maximum(1.0, np.abs(low)))
        and np.all(activity <= high + TOLERANCE * np.maximum(1.0, np.abs(high)))
        and np.all(np.abs(values - np.rint(values))[program.whole] <= TOLERANCE)
    )
