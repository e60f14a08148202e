"""Programs as arrays, and HiGHS in a process of its own that a deadline or a cancel really ends."""

from planner.optimizer.solving.arrays import Builder, LinearProgram
from planner.optimizer.solving.guarded import Solved, solve_program

__all__ = ["Builder", "LinearProgram", "Solved", "solve_program"]
