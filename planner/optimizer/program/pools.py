"""C(n) as variables: how many instances of a cell serve in each stretch of equal slope.

A cell whose instances all carry the same needs none. Else  n = sum_s t[s]  serve, with a binary for
every run of stretches but the first, open only where all before it is full (the incremental form of
a piecewise linear function, Markowitz and Manne 1957, whose relaxation is the least concave
function above C). Curves of sizing have one such run as a rule, and so a binary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.figures import global_need_tps
from planner.optimizer.pools import Pieces, curve, fewest, pieces
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.solving.arrays import INF, Builder, Entry
from simulation.arrays import FloatArray, IntArray

Cell = tuple[IntArray, IntArray, IntArray]  # model, region and column, [n] each
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """What the instances of a period's cells carry. Axes: ``n`` cells, ``v`` stretches."""

    plain: FloatArray  # [n] tokens/s of each instance; 0 where the cell has stretches
    cell: IntArray  # [v] rising
    serving: IntArray  # [v] variable: instances in the stretch
    first: IntArray  # [v] instances before it
    length: IntArray  # [v]
    slope: FloatArray  # [v] tokens/s of each
    opened: IntArray  # [v] binary variable without which none serves there; NONE in a first run
    filled: IntArray  # [v] binary variable that asks the stretch to be full; NONE in a last run

    @classmethod
    def straight(cls, theta: FloatArray) -> Pools:
        """Every instance carries ``theta`` ``[n]``."""
        none = np.empty(0, np.int64)
        return cls(theta, none, none, none, none, np.empty(0), none, none)

    @classmethod
    def of(
        cls, builder: Builder, window: PlanningProblem, cell: Cell, fits: IntArray, lost: int
    ) -> Pools:
        """Of a window, in which ``fits`` ``[n]`` instances of a cell find room, without ``lost`` of
        each pool."""
        need, known = global_need_tps(window), dict[tuple[int, int, int], Pieces]()
        plain, curved = np.zeros(len(fits)), list[tuple[int, Pieces]]()
        for n, (model, column) in enumerate(zip(cell[0].tolist(), cell[2].tolist(), strict=True)):
            enough = min(int(fits[n]), fewest(window, model, column, float(need[model]), lost))
            key = (model, column, enough)
            if key not in known:
                known[key] = _pieces(window, *key, float(need[model]), lost)
            if len(known[key].slope) == 1:
                plain[n] = known[key].slope[0]
            elif len(known[key].slope):
                curved.append((n, known[key]))
        if not curved:
            return cls.straight(plain)
        cells = np.repeat([n for n, _ in curved], [len(curve.slope) for _, curve in curved])
        first, length, slope, run = (
            np.concatenate([getattr(curve, name) for _, curve in curved])
            for name in ("first", "length", "slope", "run")
        )
        serving = builder.variables(len(cells), upper=length)
        key_of_run = np.cumsum(np.append(0, (np.diff(cells) != 0) | (np.diff(run) != 0)))
        later, back = np.unique(key_of_run[run > 0], return_inverse=True)
        binary = builder.variables(len(later), upper=1.0, integral=True)
        opened = np.full(len(cells), NONE)
        opened[run > 0] = binary[back]
        opens = np.full(int(key_of_run[-1]) + 2, NONE)  # of each run
        opens[later] = binary
        return cls(plain, cells, serving, first, length, slope, opened, opens[key_of_run + 1])

    def rows(self, builder: Builder, up: IntArray, lent: IntArray | None) -> None:
        """sum_s t[s] <= x - d  of every cell with stretches; t[s] <= length b  of the run that s is
        in, and  t[s] >= length b  of the next one. ``up`` and ``lent`` are variables ``[n]``."""
        if not len(self.cell):
            return
        cells, row = np.unique(self.cell, return_inverse=True)
        entries: list[Entry] = [(row, self.serving, 1.0), (np.arange(len(cells)), up[cells], -1.0)]
        if lent is not None:
            entries.append((np.arange(len(cells)), lent[cells], 1.0))
        builder.add("pool", entries, -INF, 0.0, len(cells))
        for binary, sign in ((self.opened, 1.0), (self.filled, -1.0)):
            of = np.flatnonzero(binary != NONE)
            rows = np.arange(len(of))
            builder.add(
                "pool",
                [(rows, self.serving[of], sign), (rows, binary[of], -sign * self.length[of])],
                -INF,
                0.0,
                len(of),
            )

    def fill(self, values: FloatArray, serving: IntArray) -> None:
        """Set the variables for ``serving`` ``[n]`` instances that are up and not lent."""
        inside = np.clip(serving[self.cell] - self.first, 0, self.length)
        values[self.serving] = inside
        opened = self.opened != NONE
        values[self.opened[opened]] = 0.0
        np.maximum.at(values, self.opened[opened], (inside[opened] > 0).astype(float))


def _pieces(
    window: PlanningProblem, model: int, column: int, most: int, need: float, lost: int
) -> Pieces:
    """Of one cell; a straight curve is left whole."""
    carried = curve(window, model, column, most, lost)
    exact = pieces(carried, np.inf)
    return exact if len(exact.slope) == 1 else pieces(carried, need)
