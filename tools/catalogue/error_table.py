"""Summarize the errors of served deployments in the cells that an estimate reads its error from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.performance.estimate.errors import Cell, CellSelector, ErrorTable

LEAST = 40  # fewest rows of a cell with its own errors


def error_table(
    wheres: Sequence[CellSelector], tbt: FloatArray, ttft: FloatArray, groups: TextArray
) -> ErrorTable:
    """Return the table of absolute relative errors of measured deployments.

    Each of the modes agg and disagg has a cell with any number of rows. Rows of one of ``groups``
    (one measurement campaign, for example) have correlated errors, so a few groups decide the tail.
    The 9-of-10 error is therefore the largest one without any single group (a jackknife).
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
    for missing in {"agg", "disagg"} - cells.keys():  # no deployment of that mode was measured
        (other,) = {"agg", "disagg"} & cells.keys()
        cells[missing] = cells[other]
    return ErrorTable(cells)


def _tail(errors: FloatArray, groups: TextArray) -> float:
    """Return the 90th percentile of the errors, or the largest one without any single group."""
    without = [errors[groups != name] for name in np.unique(groups)]
    parts = [errors, *(part for part in without if part.size >= LEAST // 2)]
    return max(float(np.quantile(part, 0.9)) for part in parts)


def wheres_of(
    split: BoolArray, users: FloatArray, engine: TextArray, drafts: BoolArray
) -> list[CellSelector]:
    """Return one ``CellSelector`` for each deployment of the arrays."""
    rows = zip(split.tolist(), users.tolist(), engine.tolist(), drafts.tolist(), strict=True)
    return [CellSelector(*row) for row in rows]
