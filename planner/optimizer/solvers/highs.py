"""Configure the solver HiGHS and run it so that it can be cancelled."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import highspy

from planner.errors import SolverFailed
from planner.optimizer.solvers.arrays import LinearProgram
from planner.optimizer.solvers.highs_process import new_highs
from simulation.arrays import FloatArray

CHECK_EVERY_S = 0.5  # interval between calls of ``check`` while a solver runs


def loaded_highs(
    program: LinearProgram,
    *,
    time_limit_s: float,
    gap: float | None = None,
    relaxed: bool = False,
    start: FloatArray | None = None,
) -> highspy.Highs:
    """Return HiGHS with ``program``; for the arguments see ``new_highs``.

    Raises ``SolverFailed`` if HiGHS refuses the program.
    """
    highs = new_highs(program, time_limit_s=time_limit_s, gap=gap, relaxed=relaxed, start=start)
    if highs is None:
        raise SolverFailed("HiGHS refused the program: try the solver cbc.")
    return highs


def throttled(check: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls ``check`` at most once per ``CHECK_EVERY_S`` seconds."""
    last_check = perf_counter()

    def check_if_due() -> None:
        """Call ``check`` if the last call is long enough ago."""
        nonlocal last_check
        if perf_counter() - last_check >= CHECK_EVERY_S:
            last_check = perf_counter()
            check()

    return check_if_due


def run(
    highs: highspy.Highs,
    check: Callable[[], None],
    enough: Callable[[float, float], bool] | None = None,
) -> None:
    """Run HiGHS to the end. An exception from ``check`` stops the solver and is raised here.

    If ``enough(best objective, bound)`` returns True, branch and bound ends early.
    """
    raised: list[BaseException] = []

    def check_cancel(event: Any) -> None:
        """Check for a cancel, and stop the solver if ``check`` raised."""
        try:
            if not raised:
                check()
        except BaseException as error:  # noqa: BLE001 - it must not unwind through the solver
            raised.append(error)
        if raised:
            event.interrupt()

    def check_bounds(event: Any) -> None:
        """Check for a cancel, and end the search once ``enough`` says that the result is good."""
        check_cancel(event)
        solution = event.data_out
        if enough is not None and enough(solution.mip_primal_bound, solution.mip_dual_bound):
            event.interrupt()

    highs.cbMipInterrupt.subscribe(check_bounds)
    highs.cbSimplexInterrupt.subscribe(check_cancel)
    highs.run()
    if raised:
        raise raised[0]
