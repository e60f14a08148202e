"""Solve large windows by pricing models and regions apart and joining them by whole columns.

Models share only the capacities, and regions share only the joint demands. With prices on those
rows, every model and region is a small covering problem (a cell).

Reading order: ``cells`` splits the window. ``covering`` solves one cell exactly in compiled code.
``ascent`` searches prices. ``master`` is the program over columns. ``solve`` puts them together.
Where there are too many columns for HiGHS, ``repair`` makes a plan from the priced cells instead.
"""

from planner.optimizer.decomposition.cells import Cells
from planner.optimizer.decomposition.covering import compile_kernels
from planner.optimizer.decomposition.repair import compiled_repair
from planner.optimizer.decomposition.solve import Outcome, decompose
