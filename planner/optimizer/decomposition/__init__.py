"""Solve large windows by decomposition into small problems, joined by prices and columns.

A *cell* is one model in one region. Cells share only the GPU capacities, the joint demands and the
caps on the whole plan (the *joint rows*). With *prices* on those rows, every cell is a small
covering problem of its own. A *column* of a cell is one choice of its instance counts.

Reading order: ``cells`` splits the window. ``covering`` solves one cell exactly in compiled code.
``ascent`` searches prices. ``master`` is the program over columns. ``solve`` puts them together.
Where there are too many columns for HiGHS, ``repair`` makes a plan from the priced cells instead.
"""

from planner.optimizer.decomposition.cells import Cells
from planner.optimizer.decomposition.covering import compile_kernels
from planner.optimizer.decomposition.repair import compiled_repair
from planner.optimizer.decomposition.solve import decompose
