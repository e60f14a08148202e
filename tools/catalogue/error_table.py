"""Calibrate the stated errors of estimates on whole groups of measurements that a fit left out.

This is split conformal prediction on predictions of rows whose group the fit left out. A cell needs
several groups (model, GPU type, engine, precision, mode and version), because the next deployment
belongs to a new one (Lee, Barber and Willett, *Distribution-free inference with hierarchical data*,
2023).
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.performance.estimate.errors import Cell, CellSelector, ErrorTable

LEVELS = (0.5, 0.9)
LEAST = 40  # fewest rows of a cell with its own errors
FEWEST_GROUPS = 8  # fewest groups of a cell; with fewer, one of them decides the tail


def error_table(
    wheres: Sequence[CellSelector], tbt: FloatArray, ttft: FloatArray, groups: TextArray
) -> ErrorTable:
    """Return the table of absolute relative errors of measured deployments.

    Each of the modes agg and disagg has a cell with any number of rows and groups.
    """
    names: dict[str, list[int]] = {}
    for i, where in enumerate(wheres):
        for key in where.names():
            names.setdefault(key, []).append(i)
    cells = {}
    for key, rows in sorted(names.items()):
        enough = len(rows) >= LEAST and np.unique(groups[rows]).size >= FEWEST_GROUPS
        if enough or key in ("agg", "disagg"):
            errors = [np.quantile(part[rows], LEVELS).tolist() for part in (tbt, ttft)]
            cells[key] = Cell(*errors[0], *errors[1], len(rows))
    for missing in {"agg", "disagg"} - cells.keys():  # no deployment of that mode was measured
        (other,) = {"agg", "disagg"} & cells.keys()
        cells[missing] = cells[other]
    return ErrorTable(cells)


def distant_table(tbt: FloatArray, ttft: FloatArray, groups: TextArray) -> ErrorTable:
    """Return the errors far from all measurements, from the log errors of few unseen groups.

    The next group is as far from the prediction as these were. So its log error has Student's t
    distribution around 0, with their root mean square as its scale and one degree of freedom for
    each group. The errors are factors: beyond 1 for estimates that are too slow.
    """
    names, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1.0 / sizes[member] / names.size
    wide = student.ppf((1.0 + np.array(LEVELS)) / 2.0, names.size)
    errors = [np.expm1(wide * np.sqrt(weights @ part**2)).tolist() for part in (tbt, ttft)]
    cell = Cell(*errors[0], *errors[1], tbt.size)
    return ErrorTable({"agg": cell, "disagg": cell})


def wheres_of(
    split: BoolArray, users: FloatArray, engine: TextArray, drafts: BoolArray
) -> list[CellSelector]:
    """Return one ``CellSelector`` for each deployment of the arrays."""
    rows = zip(split.tolist(), users.tolist(), engine.tolist(), drafts.tolist(), strict=True)
    return [CellSelector(*row) for row in rows]
