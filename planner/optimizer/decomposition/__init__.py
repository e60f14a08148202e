"""Large windows: models and regions priced apart, joined again by whole columns.

Models meet only in the capacities and regions only in the joint demands, so with prices on those
rows every model and region is a small covering problem of its own. Read ``cells`` for the split,
``covering`` for the compiled exact solution of one part (``pooled`` where what
instances carry together is a curve), ``ascent`` for the search of prices,
``master`` for the program over columns and ``solve`` for how they work together. Where columns are
too many for HiGHS (from ``VAST`` cells on), ``repair`` makes a plan of the priced cells instead.
"""

from planner.optimizer.decomposition.cells import Cells
from planner.optimizer.decomposition.covering import compiled
from planner.optimizer.decomposition.pooled import compiled_pools
from planner.optimizer.decomposition.repair import compiled_repair
from planner.optimizer.decomposition.solve import VAST, Outcome, decompose

__all__ = [
    "VAST",
    "Cells",
    "Outcome",
    "compiled",
    "compiled_pools",
    "compiled_repair",
    "decompose",
]
