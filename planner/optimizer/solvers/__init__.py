"""Programs as arrays, and solvers that a deadline or a cancel reliably ends."""

from planner.optimizer.solvers.arrays import Builder, LinearProgram
from planner.optimizer.solvers.cbc import solve_on_cbc
from planner.optimizer.solvers.deadline import Solution, solve_program
