"""Model the joint capacity C(n) of pools as variables.

A cell with equal capacity per instance needs none. Otherwise  n = sum_s t[s]  instances serve, with
t[s] in stretches of equal slope. Every run of stretches except the first has a binary. It opens
only when all earlier stretches are full. This is the incremental form of a piecewise linear
function (Markowitz and Manne 1957). Its relaxation is the least concave function above C. Curves
from sizing usually have two runs, and so one binary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.figures import global_need_tps
from planner.optimizer.pools import LinearPieces, capacity_curve, fewest_instances, linear_pieces
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.solvers.arrays import INF, Builder, Entry
from simulation.arrays import FloatArray, IntArray

Cell = tuple[IntArray, IntArray, IntArray]  # model, region and column, [n] each
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """How the capacity of each cell's instances in a period enters the program.

    It is ``plain`` tokens/s for each instance, or else a curve with a variable for each straight
    stretch. Axes: ``n`` cells, ``v`` stretches of all cells.
    """

    plain: FloatArray  # [n] tokens/s of each instance; 0 for a cell with stretches
    cell: IntArray  # [v] ascending
    serving: IntArray  # [v] variable: instances that serve in the stretch
    first: IntArray  # [v] instances before the stretch
    length: IntArray  # [v]
    slope: FloatArray  # [v] tokens/s of each instance
    opened: IntArray  # [v] binary that must be 1 to use the stretch; NONE in a first run
    filled: IntArray  # [v] binary that requires the stretch to be full; NONE in a last run

    @classmethod
    def linear(cls, theta: FloatArray) -> Pools:
        """Return pools of linear capacity: every instance carries ``theta`` ``[n]`` tokens/s."""
        none = np.empty(0, np.int64)
        return cls(theta, none, none, none, none, np.empty(0), none, none)

    @classmethod
    def from_curves(
        cls, builder: Builder, window: PlanningProblem, cell: Cell, max_counts: IntArray, lost: int
    ) -> Pools:
        """Return the pools of a window, and add their variables to ``builder``.

        ``max_counts`` ``[n]`` is the most instances of a cell that the capacity allows. ``lost``
        instances of each pool are assumed gone.
        """
        need = global_need_tps(window)
        pieces_of: dict[tuple[int, int, int], LinearPieces] = {}  # cells of a model often share it
        plain = np.zeros(len(max_counts))
        curved: list[tuple[int, LinearPieces]] = []
        cell_model, _, cell_column = cell
        for n, (model, column) in enumerate(
            zip(cell_model.tolist(), cell_column.tolist(), strict=True)
        ):
            enough = fewest_instances(window, model, column, float(need[model]), lost)
            key = (model, column, min(int(max_counts[n]), enough))
            if key not in pieces_of:
                pieces_of[key] = _pieces(window, *key, float(need[model]), lost)
            pieces = pieces_of[key]
            if len(pieces.slope) == 1:
                plain[n] = pieces.slope[0]
            elif len(pieces.slope):
                curved.append((n, pieces))
        if not curved:
            return cls.linear(plain)
        cells = np.repeat([n for n, _ in curved], [len(pieces.slope) for _, pieces in curved])
        first, length, slope, run = (
            np.concatenate([getattr(pieces, name) for _, pieces in curved])
            for name in ("first", "length", "slope", "run")
        )
        serving = builder.variables(len(cells), upper=length)
        # Number the runs of all cells, [v]. Each run but the first of a cell has a binary.
        begins_run = (np.diff(cells) != 0) | (np.diff(run) != 0)
        run_number = np.cumsum(np.append(0, begins_run))
        later_runs = np.unique(run_number[run > 0])
        binary_of_run = np.full(int(run_number[-1]) + 2, NONE)
        binary_of_run[later_runs] = builder.variables(len(later_runs), upper=1.0, integral=True)
        opened, filled = binary_of_run[run_number], binary_of_run[run_number + 1]
        return cls(plain, cells, serving, first, length, slope, opened, filled)

    def add_rows(self, builder: Builder, up: IntArray, lent: IntArray | None) -> None:
        """Add  sum_s t[s] <= x - d  for every cell with stretches, and the order of the runs.

        For a stretch s with length b: t[s] <= b times the binary of its run, and t[s] >= b times
        the binary of the next run. ``up`` and ``lent`` are variables ``[n]``.
        """
        if not len(self.cell):
            return
        cells, row = np.unique(self.cell, return_inverse=True)
        entries: list[Entry] = [(row, self.serving, 1.0), (np.arange(len(cells)), up[cells], -1.0)]
        if lent is not None:
            entries.append((np.arange(len(cells)), lent[cells], 1.0))
        builder.add("pool", entries, -INF, 0.0, len(cells))
        for binary, sign in ((self.opened, 1.0), (self.filled, -1.0)):
            stretches = np.flatnonzero(binary != NONE)
            rows = np.arange(len(stretches))
            builder.add(
                "pool",
                [
                    (rows, self.serving[stretches], sign),
                    (rows, binary[stretches], -sign * self.length[stretches]),
                ],
                -INF,
                0.0,
                len(stretches),
            )

    def fill(self, values: FloatArray, serving: IntArray) -> None:
        """Set these variables in ``values``, those of the program, for ``serving [n]`` instances.

        Instances serve if they are up and not lent. A run's binary is 1 if any serve in it.
        """
        inside = np.clip(serving[self.cell] - self.first, 0, self.length)
        values[self.serving] = inside
        opened = self.opened != NONE
        values[self.opened[opened]] = 0.0
        np.maximum.at(values, self.opened[opened], (inside[opened] > 0).astype(float))


def _pieces(
    window: PlanningProblem, model: int, column: int, max_count: int, need: float, lost: int
) -> LinearPieces:
    """Return the linear pieces of the capacity of one model on a column's instances.

    The curve is in tokens/s by instances, of which ``lost`` may fail. It ends at ``need``, unless
    it is linear: then it stays in one piece.
    """
    carried = capacity_curve(window, model, column, max_count, lost)
    full_curve = linear_pieces(carried, need=np.inf)
    return full_curve if len(full_curve.slope) == 1 else linear_pieces(carried, need=need)
