"""Solve a program on HiGHS in a separate process: arrays in a folder in, answers out.

The file runs by path and imports only highspy and numpy, so it starts in a fraction of a second.
The folder always holds the best result so far, in case the process is killed.
"""

import os
from time import perf_counter
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
    """
    with np.load(os.path.join(folder, "problem.npz")) as archive:
        stored = dict(archive)
    highs = _loaded_highs(stored)
    outside, gap = float(stored["outside"]), float(stored["gap"])
    last_report = [0.0, -np.inf]  # time in seconds, and bound

    def save_incumbent(event: Any) -> None:
        """Save the best solution found so far."""
        _save_atomically(folder, "incumbent", np.array(event.data_out.mip_solution))

    def report_bound(event: Any) -> None:
        """Save the bound every ``REPORT_EVERY_S``, and end the search if no more can be proven."""
        now, bound = perf_counter(), event.data_out.mip_dual_bound
        if now - last_report[0] >= REPORT_EVERY_S and bound > last_report[1]:
            last_report[:] = now, bound
            _save_atomically(folder, "bound", np.array(bound))
        best = event.data_out.mip_primal_bound
        # Solutions outside the program may cost as little as ``outside``: no more can be proven.
        if bound >= outside and outside < best * (1 - gap) and best < highspy.kHighsInf:
            event.interrupt()

    highs.cbMipImprovingSolution.subscribe(save_incumbent)
    highs.cbMipInterrupt.subscribe(report_bound)
    highs.run()
    info = highs.getInfo()
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if feasible:
        _save_atomically(folder, "incumbent", np.array(highs.getSolution().col_value))
    answer = [float(int(highs.getModelStatus())), info.mip_dual_bound, float(feasible)]
    _save_atomically(folder, "answer", np.array(answer))


def _loaded_highs(stored: dict[str, npt.NDArray[Any]]) -> highspy.Highs:
    """Return HiGHS with the program, options and start solution of ``stored``.

    ``stored`` has the fields of ``LinearProgram`` and the options of ``solve_program`` as arrays.
    """
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(stored["cost"]), len(stored["row_lower"])
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = stored["cost"], stored["lower"], stored["upper"]
    lp.row_lower_, lp.row_upper_ = stored["row_lower"], stored["row_upper"]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = stored["begins"].astype(np.int32)
    lp.a_matrix_.index_ = stored["columns"].astype(np.int32)
    lp.a_matrix_.value_ = stored["values"]
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[int(is_whole)] for is_whole in stored["whole"]]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", float(stored["time_limit_s"]))
    highs.setOptionValue("mip_rel_gap", float(stored["gap"]))
    highs.setOptionValue("mip_abs_gap", 0.0)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SystemExit(3)
    if len(stored["start"]):
        solution = highspy.HighsSolution()
        solution.col_value = stored["start"]
        highs.setSolution(solution)
    return highs
