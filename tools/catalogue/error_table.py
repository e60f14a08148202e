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
from simulation.performance.estimate.calibration import Cell, CellSelector, ErrorTable

LEVELS = (0.5, 0.9)
LEAST = 40  # fewest rows of a cell with its own errors
FEWEST_GROUPS = 8  # fewest groups of a cell; with fewer, one of them decides the tail


def error_table(
    selectors: Sequence[CellSelector], tbt: FloatArray, ttft: FloatArray, groups: TextArray
) -> ErrorTable:
    """Return the quantiles at LEVELS of absolute relative errors, ``[rows]``, by cell.

    ``selectors`` tell the cells to which each row belongs, ``groups`` its group. Each of the modes
    agg and disagg has a cell with any number of rows and groups.
    """
    rows_of_cell: dict[str, list[int]] = {}
    for i, selector in enumerate(selectors):
        for name in selector.names():
            rows_of_cell.setdefault(name, []).append(i)
    cells = {}
    for name, rows in sorted(rows_of_cell.items()):
        is_enough = len(rows) >= LEAST and np.unique(groups[rows]).size >= FEWEST_GROUPS
        if is_enough or name in ("agg", "disagg"):
            tbt_errors, ttft_errors = (
                np.quantile(errors[rows], LEVELS).tolist() for errors in (tbt, ttft)
            )
            cells[name] = Cell(*tbt_errors, *ttft_errors, rows=len(rows))
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
    names, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1.0 / sizes[group_of_row] / names.size  # every group counts the same
    t_quantiles = student.ppf((1.0 + np.array(LEVELS)) / 2.0, names.size)
    tbt_errors, ttft_errors = (
        np.expm1(t_quantiles * np.sqrt(weights @ log_errors**2)).tolist()
        for log_errors in (tbt, ttft)
    )
    cell = Cell(*tbt_errors, *ttft_errors, rows=tbt.size)
    return ErrorTable({"agg": cell, "disagg": cell})


def cell_selectors(
    split: BoolArray, users: FloatArray, engine: TextArray, drafts: BoolArray
) -> list[CellSelector]:
    """Return one ``CellSelector`` for each deployment of the arrays, which have shape ``[rows]``.

    ``split``: disaggregated. ``drafts``: with speculative decoding.
    """
    rows = zip(split.tolist(), users.tolist(), engine.tolist(), drafts.tolist(), strict=True)
    return [CellSelector(*row) for row in rows]
