"""Run HiGHS under a hard deadline, since it overshoots its limit in long presolve or heuristics.

Programs from ``SEPARATE_PROCESS_FROM`` variables on run in a separate process. A deadline or a
cancel kills it, and a crash becomes a named outcome. Results found by then count.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import highspy
import numpy as np

from planner.errors import SolverFailed
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT
from planner.optimizer.solvers.arrays import LinearProgram
from planner.optimizer.solvers.highs import loaded_highs, run
from simulation.arrays import FloatArray

SEPARATE_PROCESS_FROM = 1_000  # variables; a separate process takes about 0.2 s to start
# seconds, and share of the time limit, that a process may run longer: for start and final report
GRACE_S, GRACE_SHARE = 1.0, 0.1
POLL_S = 0.02
CHILD = Path(__file__).with_name("highs_process.py")
STATES = highspy.HighsModelStatus


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What a solver found: status, values and lower bound."""

    status: str  # optimal, feasible, infeasible or timeout
    values: FloatArray | None  # [n]
    bound: float  # lower bound on every solution; minus infinity if nothing was proven
    died: str = ""  # message if the solver ended unexpectedly
    cut: bool = False  # True if the time limit or a crash ended it

    @property
    def known_bound(self) -> float:
        """Return the lower bound, or 0 if nothing was proven: no plan costs less than nothing."""
        return self.bound if np.isfinite(self.bound) else 0.0


def solve_program(
    program: LinearProgram,
    *,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
    start: FloatArray | None = None,
    outside: float = np.inf,
    guard_from: int | None = None,
) -> Solution:
    """Solve ``program`` to ``gap`` relative to its objective, starting from solution ``start``.

    The caller may have left out solutions that cost ``outside`` or more, so a bound is valid only
    up to this cost. Once the bound reaches it and a solution is known, the search ends, even if
    that solution is not within ``gap``. An exception from ``check`` ends the search and is raised
    here. A solver that dies without a solution counts as a timeout, with a message in ``died``.

    Programs with ``guard_from`` variables or more (default: ``SEPARATE_PROCESS_FROM``) are solved
    in a process of their own, which can be ended.
    """
    if len(program.cost) < (SEPARATE_PROCESS_FROM if guard_from is None else guard_from):
        return _solve_in_process(program, gap, time_limit_s, check, start, outside)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored: dict[str, Any] = {
            field.name: getattr(program, field.name) for field in fields(program)
        }
        stored |= {"gap": gap, "time_limit_s": max(0.01, time_limit_s), "outside": outside}
        stored["start"] = np.empty(0) if start is None else start
        np.savez(folder / "problem.npz", **stored)
        code = f"import runpy; runpy.run_path({str(CHILD)!r})['solve']({name!r})"
        died = run_watched([sys.executable, "-c", code], time_limit_s, check, subprocess.DEVNULL)
        return _read_solution(folder, died)


def run_watched(
    command: Sequence[str], limit_s: float, check: Callable[[], None], output: int | IO[str]
) -> str:
    """Run ``command`` until it ends, times out or is cancelled; return why it died, or ""."""
    deadline_s = time.perf_counter() + limit_s * (1 + GRACE_SHARE) + GRACE_S
    process = subprocess.Popen(  # noqa: S603 - our own file or the CBC that PuLP brings
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None:
            check()
            if time.perf_counter() > deadline_s:
                return "ran past its time limit and was ended"
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    if process.returncode < 0:
        return f"was ended by signal {-process.returncode}"
    return f"ended with code {process.returncode}" if process.returncode else ""


def _read_solution(folder: Path, died: str) -> Solution:
    """Return the answer that the separate process left in ``folder``.

    If it died before (``died`` says why), return the best solution and bound that it saved; TIMEOUT
    without a solution.
    """

    def load_array(name: str) -> FloatArray | None:
        """Return a saved array, or None if the process did not save it."""
        path = folder / f"{name}.npy"
        return np.load(path, allow_pickle=False) if path.exists() else None

    values, bound, answer = load_array("incumbent"), load_array("bound"), load_array("answer")
    if answer is not None:
        status, final_bound, is_solution = answer
        values = values if is_solution else None
        return _solution_of_status(STATES(int(status)), values, float(final_bound))
    proven = -np.inf if bound is None else float(bound)
    if values is not None:
        return Solution(FEASIBLE, values, proven, died, cut=True)
    return Solution(TIMEOUT, values=None, bound=proven, died=died, cut=True)


def _solve_in_process(
    program: LinearProgram,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
    start: FloatArray | None,
    outside: float,
) -> Solution:
    """Solve in this process, which is faster for small programs. Arguments as in ``solve_program``.

    Solutions that cost ``outside`` or more may be missing in the program.
    """

    def enough(best: float, bound: float) -> bool:
        """Return True if the bound is as high as it can be, and a solution is known.

        No bound above ``outside`` is valid, and no solution within ``gap`` may cost less.
        """
        return bound >= outside and outside < best * (1 - gap) and best < highspy.kHighsInf

    highs = loaded_highs(program, time_limit_s=time_limit_s, gap=gap, start=start)
    run(highs, check, enough if np.isfinite(outside) else None)
    return solution_of_highs(highs)


def solution_of_highs(highs: highspy.Highs) -> Solution:
    """Return the status, values and bound of the last run of ``highs``."""
    info = highs.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(highs.getSolution().col_value) if feasible else None
    return _solution_of_status(highs.getModelStatus(), values, info.mip_dual_bound)


def _solution_of_status(
    state: highspy.HighsModelStatus, values: FloatArray | None, bound: float
) -> Solution:
    """Return the result of a HiGHS model status; raises ``SolverFailed`` for an unexpected one."""
    if state in (STATES.kInfeasible, STATES.kUnboundedOrInfeasible):
        return Solution(INFEASIBLE, values=None, bound=np.inf)
    if state in (STATES.kOptimal, STATES.kModelEmpty):
        return Solution(OPTIMAL, values, bound)
    if state in (STATES.kTimeLimit, STATES.kInterrupt):
        cut = state == STATES.kTimeLimit
        return Solution(TIMEOUT if values is None else FEASIBLE, values, bound, cut=cut)
    raise SolverFailed(f"HiGHS stopped with {state.name!r}: try another solver or method.")
