"""Solve a program on HiGHS in a separate process: arrays in a folder in, answers out.

The file runs by path and imports only highspy and numpy, so it starts in a fraction of a second.
The folder always holds the best result so far, in case the process is killed.
"""

import os
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

REPORT_EVERY_S = 0.1  # interval between writes of the bound


def _save_atomically(folder: str, name: str, values: npt.ArrayLike) -> None:
    """Save an array as ``name``.npy in ``folder``, so that a reader never sees half of it."""
    np.save(os.path.join(folder, f".{name}.npy"), values)
    os.replace(os.path.join(folder, f".{name}.npy"), os.path.join(folder, f"{name}.npy"))


def solve(folder: str) -> None:
    """Solve ``problem.npz`` in ``folder`` and write the result there.

    ``incumbent.npy`` and ``bound.npy`` are written during the search, ``answer.npy`` at the end.
    The answer has the model status, the dual bound, and whether ``incumbent.npy`` is a solution.
    The process ends with status 3 if HiGHS refuses the program.
    """
    with np.load(os.path.join(folder, "problem.npz")) as archive:
        stored = SimpleNamespace(**archive)  # the program, and the options of ``solve_program``
    start = stored.start if len(stored.start) else None
    time_limit_s, gap = float(stored.time_limit_s), float(stored.gap)
    highs = new_highs(stored, time_limit_s=time_limit_s, gap=gap, start=start)
    if highs is None:
        raise SystemExit(3)
    # Solutions that cost ``outside`` or more may be missing in the program.
    _report_progress(highs, folder, float(stored.outside), gap)
    highs.run()
    info = highs.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if feasible:
        _save_atomically(folder, "incumbent", np.array(highs.getSolution().col_value))
    answer = [float(int(highs.getModelStatus())), info.mip_dual_bound, float(feasible)]
    _save_atomically(folder, "answer", np.array(answer))


def _report_progress(highs: highspy.Highs, folder: str, outside: float, gap: float) -> None:
    """Have ``highs`` write solutions and bounds to ``folder``, and end if none can improve."""
    last_report = [0.0, -np.inf]  # time in seconds, and bound

    def save_incumbent(event: Any) -> None:
        """Save the best solution found so far."""
        _save_atomically(folder, "incumbent", np.array(event.data_out.mip_solution))

    def report_bound(event: Any) -> None:
        """Save the bound every ``REPORT_EVERY_S``, and end the search if no more can be proven.

        No bound above ``outside`` is valid, as dearer solutions may be missing.
        """
        now, bound = perf_counter(), event.data_out.mip_dual_bound
        if now - last_report[0] >= REPORT_EVERY_S and bound > last_report[1]:
            last_report[:] = now, bound
            _save_atomically(folder, "bound", np.array(bound))
        best = event.data_out.mip_primal_bound
        if bound >= outside and outside < best * (1 - gap) and best < highspy.kHighsInf:
            event.interrupt()

    highs.cbMipImprovingSolution.subscribe(save_incumbent)
    highs.cbMipInterrupt.subscribe(report_bound)


def new_highs(
    program: Any,
    *,
    time_limit_s: float,
    gap: float | None = None,
    relaxed: bool = False,
    start: npt.NDArray[np.float64] | None = None,
) -> highspy.Highs | None:
    """Return a silent, single-threaded HiGHS with ``program``; None if HiGHS refuses it.

    With one thread, equal problems give equal answers. ``program`` has the fields of
    ``LinearProgram``. ``relaxed`` allows fractional variables. ``gap`` is relative to the
    objective; None for a linear program. ``start`` is a known solution.
    """
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", float(max(0.0, time_limit_s)))
    if gap is not None:
        highs.setOptionValue("mip_rel_gap", float(gap))
        highs.setOptionValue("mip_abs_gap", 0.0)  # so that only ``gap`` ends the search
    # HiGHS reports an error only by this value, and would then run without a program.
    if highs.passModel(_model(program, relaxed)) == highspy.HighsStatus.kError:
        return None
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start
        highs.setSolution(solution)
    return highs


def _model(program: Any, relaxed: bool) -> highspy.HighsLp:
    """Return ``program`` in the form of HiGHS; ``relaxed`` without whole variables."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = program.begins.astype(np.int32)
    lp.a_matrix_.index_ = program.columns.astype(np.int32)
    lp.a_matrix_.value_ = program.values
    if not relaxed and program.whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(is_whole)] for is_whole in program.whole]
    return lp
