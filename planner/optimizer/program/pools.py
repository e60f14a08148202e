"""Model the joint capacity C(n) of n instances in a pool as variables.

A pool is the instances of a model in a region and a GPU column (a cell of the program). If every
instance adds the same capacity, no variable is needed. Otherwise C is piecewise linear
(``optimizer.pools.LinearPieces``), and each piece has a variable: the instances that serve in it.
Pieces of falling slope form a concave group and fill in order. Every group but the first has a
binary variable, which may be 1 only if all pieces before the group are full.

This is the incremental form of a piecewise linear function (Markowitz and Manne 1957). Its
relaxation is the least concave function above C. Curves from sizing usually have two groups, and so
one binary variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.optimizer.figures import global_need_tps
from planner.optimizer.pools import LinearPieces, capacity_curve, fewest_instances, linear_pieces
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.solvers.arrays import INF, Builder, Entry
from simulation.arrays import FloatArray, IntArray

Cell = tuple[IntArray, IntArray, IntArray]  # model, region and GPU column, [n] each
NONE = -1  # in place of a variable


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """How the capacity of each pool's instances in a period enters the program.

    It is ``plain`` tokens/s for each instance, or else a curve with a variable for each linear
    piece. Axes: ``n`` cells (pools), ``v`` pieces of all cells. Variables are given by index.
    """

    plain: FloatArray  # [n] tokens/s of each instance; 0 for a cell with pieces
    cell: IntArray  # [v] cell of the piece, ascending
    serving: IntArray  # [v] variable: instances that serve in the piece
    first: IntArray  # [v] instances before the piece
    length: IntArray  # [v] most instances in the piece
    slope: FloatArray  # [v] tokens/s of each instance
    opens: IntArray  # [v] binary of the piece's group: 1 allows its use; NONE in a first group
    fills: IntArray  # [v] binary of the next group: 1 requires the piece to be full; NONE: no next

    @classmethod
    def linear(cls, theta: FloatArray) -> Pools:
        """Return pools of linear capacity: an instance of cell n carries ``theta[n]`` tokens/s."""
        none = np.empty(0, np.int64)
        return cls(theta, none, none, none, none, np.empty(0), none, none)

    @classmethod
    def from_curves(
        cls, builder: Builder, window: PlanningProblem, cell: Cell, max_counts: IntArray, lost: int
    ) -> Pools:
        """Return the pools of a window, and add their variables to ``builder``.

        ``cell`` gives model, region and GPU column of each pool. ``max_counts [n]`` is the most
        instances that the GPU capacity allows. ``lost`` instances of each pool are assumed gone.
        """
        linear_tps = np.zeros(len(max_counts))  # of an instance, if capacity is linear
        curved: list[tuple[int, LinearPieces]] = []
        for cell_index, pieces in enumerate(_pieces_of_cells(window, cell, max_counts, lost)):
            if len(pieces.slope) == 1:
                linear_tps[cell_index] = pieces.slope[0]
            elif len(pieces.slope):
                curved.append((cell_index, pieces))
        if not curved:
            return cls.linear(linear_tps)
        # From here on, arrays have an item for each piece of all curved cells.
        piece_counts = [len(pieces.slope) for _, pieces in curved]
        cells = np.repeat([cell_index for cell_index, _ in curved], piece_counts)
        first, length, slope, group = (
            np.concatenate([getattr(pieces, name) for _, pieces in curved])
            for name in ("first", "length", "slope", "group")
        )
        serving = builder.variables(len(cells), upper=length)
        opens, fills = _group_binaries(builder, cells, group)
        return cls(linear_tps, cells, serving, first, length, slope, opens, fills)

    def add_rows(self, builder: Builder, up: IntArray, lent: IntArray | None) -> None:
        """Add the rows that tie the pieces of a capacity curve to the instances of its cell.

        ``up`` and ``lent`` are the variables ``[n]`` of the instances up and of those lent. For
        every cell with pieces, the instances that serve in them are at most up - lent. A piece is
        empty unless its group is open, and full if the next group is open.
        """
        if not len(self.cell):
            return
        cells, row = np.unique(self.cell, return_inverse=True)
        rows = np.arange(len(cells))
        entries: list[Entry] = [(row, self.serving, 1.0), (rows, up[cells], -1.0)]
        if lent is not None:
            entries.append((rows, lent[cells], 1.0))
        builder.add("pool", entries, -INF, 0.0, len(cells))
        # serving - length * binary is at most 0 for ``opens``, and at least 0 for ``fills``.
        self._add_order(builder, self.opens, -INF, 0.0)
        self._add_order(builder, self.fills, 0.0, INF)

    def _add_order(self, builder: Builder, binary: IntArray, lower: float, upper: float) -> None:
        """Add rows that bound serving - length * ``binary`` of the pieces that have a binary."""
        pieces = np.flatnonzero(binary != NONE)
        rows, length = np.arange(len(pieces)), self.length[pieces]
        entries: list[Entry] = [
            (rows, self.serving[pieces], 1.0),
            (rows, binary[pieces], -length),
        ]
        builder.add("pool", entries, lower, upper, len(pieces))

    def fill(self, values: FloatArray, serving: IntArray) -> None:
        """Set the variables of these pools in ``values``, for ``serving [n]`` instances by cell.

        ``values`` has all variables of the program. Instances serve if they are up and not lent.
        The binary of a group is 1 if any instance serves in it.
        """
        count_in_piece = np.clip(serving[self.cell] - self.first, 0, self.length)
        values[self.serving] = count_in_piece
        has_binary = self.opens != NONE
        values[self.opens[has_binary]] = 0.0
        is_used = (count_in_piece[has_binary] > 0).astype(float)
        np.maximum.at(values, self.opens[has_binary], is_used)


def _pieces_of_cells(
    window: PlanningProblem, cell: Cell, max_counts: IntArray, lost: int
) -> Iterator[LinearPieces]:
    """Yield the linear pieces of the capacity curve of each cell; see ``Pools.from_curves``."""
    need_by_model = global_need_tps(window).tolist()
    known_pieces: dict[tuple[int, int, int], LinearPieces] = {}  # regions often have equal pools
    models, _, columns = cell
    for model, column, max_count in np.column_stack([models, columns, max_counts]).tolist():
        enough = fewest_instances(window, model, column, need_by_model[model], lost)
        key = (model, column, min(max_count, enough))
        if key not in known_pieces:
            known_pieces[key] = _pieces(window, *key, need_by_model[model], lost)
        yield known_pieces[key]


def _group_binaries(
    builder: Builder, cells: IntArray, group: IntArray
) -> tuple[IntArray, IntArray]:
    """Add a binary for each group but the first of a cell; return those of each piece, ``[v]``.

    The first is the binary of its group, the second that of the next group of its cell. ``cells``
    and ``group`` are those of each piece.
    """
    begins_group = (np.diff(cells) != 0) | (np.diff(group) != 0)
    group_number = np.cumsum(np.append(0, begins_group))  # [v] counted over all cells
    later_groups = np.unique(group_number[group > 0])
    binary = np.full(int(group_number[-1]) + 2, NONE)  # by group; the last has no next group
    binary[later_groups] = builder.variables(len(later_groups), upper=1.0, integral=True)
    return binary[group_number], binary[group_number + 1]


def _pieces(
    window: PlanningProblem, model: int, column: int, max_count: int, need_tps: float, lost: int
) -> LinearPieces:
    """Return the linear pieces of the tokens/s of 0 to ``max_count`` instances of a pool.

    ``lost`` instances are assumed gone. The curve ends at ``need_tps`` tokens/s, unless it is
    linear: then it stays in one piece.
    """
    capacity_tps = capacity_curve(window, model, column, max_count, lost)
    full_curve = linear_pieces(capacity_tps, need_tps=np.inf)
    if len(full_curve.slope) == 1:
        return full_curve
    return linear_pieces(capacity_tps, need_tps=need_tps)
