"""List the columns of cells: candidate instance counts close to a cell's cheapest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.decomposition.cells import ROUNDING, Cells, PricedCells, Prices
from planner.optimizer.decomposition.covering import CellColumns, cells_within
from simulation.arrays import BoolArray, Int32Array, IntArray

COLUMNS_PER_CELL = 60  # limit on columns of one cell; beyond it, a range per type replaces them
POOLED = 2_000  # the same limit where capacity is a curve, so that ranges cannot replace columns


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Candidate instance counts of cells ("columns"). A cell is a model in a region.

    Each cell has at least one. These columns are not the GPU columns of the problem.
    """

    x: Int32Array  # [n, g] instances beyond the minimums
    cell: IntArray  # [n] model * R + region, ascending

    def __len__(self) -> int:
        return len(self.cell)

    def with_more(self, other: Columns) -> Columns:
        """Return the union of both, with duplicates removed."""
        cell, x = np.concatenate([self.cell, other.cell]), np.concatenate([self.x, other.x])
        unique = np.unique(np.column_stack([cell, x]), axis=0)
        return Columns(unique[:, 1:].astype(np.int32), unique[:, 0].astype(np.int64))

    def only(self, which: BoolArray) -> Columns:
        """Return the selected columns."""
        return Columns(self.x[which], self.cell[which])


def cheapest_columns(priced: PricedCells) -> Columns:
    """Return one column per cell, its cheapest solution in ``priced``."""
    gpus = priced.x.shape[2]
    return Columns(priced.x.reshape(-1, gpus).astype(np.int32), np.arange(priced.lowest.size))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Ranges of instance counts per GPU type, for cells with too many columns to list."""

    cell: IntArray  # [h] ascending
    low: IntArray  # [h, g] beyond the minimums
    high: IntArray  # [h, g]


def no_boxes(gpus: int) -> Boxes:
    """Return an empty set of boxes, so that columns describe every cell."""
    none = np.empty((0, gpus), np.int64)
    return Boxes(np.empty(0, np.int64), none, none)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The columns of each cell that cost at most ``width`` more than its cheapest, or their boxes.

    A plan outside the band costs at least ``width`` more than the lower bound at the prices.
    """

    columns: Columns
    boxes: Boxes
    width: float

    @property
    def size(self) -> int:
        """Return the number of variables that a program over the band needs."""
        return len(self.columns) + 2 * int((self.boxes.high > 0).sum())


def columns_near(
    cells: Cells, prices: Prices, priced: PricedCells, *, width: float, max_variables: int
) -> Band | None:
    """Return the band at ``prices``: the columns that cost up to ``width`` above the cheapest.

    A cell with too many columns gets a box instead: a range of counts per GPU type. Boxes need
    linear capacities. Return None if the band needs more than ``max_variables`` or an impossible
    box.
    """
    usd_running, usd_new = cells.instance_charges(prices)
    started = np.maximum(0, priced.x - cells.running)
    cost = ((priced.x - started) * usd_running + started * usd_new).sum(axis=2)
    cost -= (prices.demand / cells.mean_tps)[:, None] * priced.served
    # If a cell's branch and bound was cut short, its cheapest can cost more than its bound.
    max_cost = np.maximum(priced.lowest + width, cost) + ROUNDING * np.abs(priced.lowest)
    gpus = cells.max_extra.shape[2]
    low, high = np.empty_like(cells.max_extra), np.empty_like(cells.max_extra)
    x, begins = np.empty((max_variables, gpus), np.int32), np.empty(max_cost.size + 1, np.int64)
    max_columns = COLUMNS_PER_CELL if cells.is_linear else POOLED
    all_columns = CellColumns(x, begins, low, high)
    if not cells_within(cells.arrays(prices), max_cost, max_columns, all_columns):
        return None
    count = np.diff(begins)
    columns = Columns(x[: begins[-1]].copy(), np.repeat(np.arange(max_cost.size), count))
    # Cells with too many columns got none.
    boxed = np.flatnonzero(count == 0)
    if boxed.size and not cells.is_linear:
        return None
    boxes = Boxes(boxed, low.reshape(-1, gpus)[boxed], high.reshape(-1, gpus)[boxed])
    band = Band(columns, boxes, width)
    return band if band.size <= max_variables else None


def widest_band(
    cells: Cells, prices: Prices, priced: PricedCells, *, at_most: float, max_variables: int
) -> Band:
    """Return the widest band within ``max_variables``, halving down from ``at_most``."""
    width = at_most
    while width > ROUNDING * max(1.0, abs(priced.bound)):
        band = columns_near(cells, prices, priced, width=width, max_variables=max_variables)
        if band is not None:
            return band
        width /= 2
    return Band(cheapest_columns(priced), no_boxes(priced.x.shape[2]), 0.0)
