"""What served rows are off by, as the cells that an estimate's error is read from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.performance.estimate.errors import Cell, ErrorTable, Where

LEAST = 40  # rows of a cell that speaks for itself


def error_table(
    wheres: Sequence[Where], tbt: FloatArray, ttft: FloatArray, groups: TextArray
) -> ErrorTable:
    """From absolute relative errors of measured deployments; a mode is there with any rows.

    Rows of one of ``groups`` (one measurement campaign, say) are off together, so that a few
    groups decide the tail: the 9-of-10 is the largest that any of them left out gives (a
    jackknife).
    """
    names: dict[str, list[int]] = {}
    for i, where in enumerate(wheres):
        for key in where.names():
            names.setdefault(key, []).append(i)
    cells = {}
    for key, rows in sorted(names.items()):
        if len(rows) >= LEAST or key in ("agg", "disagg"):
            half = [float(np.quantile(part[rows], 0.5)) for part in (tbt, ttft)]
            nine = [_tail(part[rows], groups[rows]) for part in (tbt, ttft)]
            cells[key] = Cell(half[0], nine[0], half[1], nine[1], len(rows))
    for missing in {"agg", "disagg"} - cells.keys():  # nothing of that mode was measured
        (other,) = {"agg", "disagg"} & cells.keys()
        cells[missing] = cells[other]
    return ErrorTable(cells)


def _tail(errors: FloatArray, groups: TextArray) -> float:
    """Nine of ten of the errors, at least as many without any one of the groups."""
    without = [errors[groups != name] for name in np.unique(groups)]
    parts = [errors, *(part for part in without if part.size >= LEAST // 2)]
    return max(float(np.quantile(part, 0.9)) for part in parts)


def wheres_of(
    split: BoolArray, users: FloatArray, engine: TextArray, drafts: BoolArray
) -> list[Where]:
    """Of arrays of deployments."""
    rows = zip(split.tolist(), users.tolist(), engine.tolist(), drafts.tolist(), strict=True)
    return [Where(*row) for row in rows]
