"""Programs as arrays, and solvers that a deadline or a cancel reliably ends."""

from planner.optimizer.solving.arrays import Builder, LinearProgram
from planner.optimizer.solving.cbc import solve_on_cbc
from planner.optimizer.solving.deadline import Solved, solve_program

__all__ = ["Builder", "LinearProgram", "Solved", "solve_on_cbc", "solve_program"]
