"""Whether stated errors hold on deployments that neither the fit nor the statement had seen.

Part of ``python -m bench.accuracy silicon``. Every row is predicted once with its model left out of
the fit and once with its GPU type; its error is stated from what the other models, or GPU types,
were off by. ``stated_coverage`` is the share of rows within the stated median (what is promised:
one half), ``stated_coverage_90`` within the stated 9-of-10, both over TPOT and TTFT; by mode and
load beside them, and ``_version`` and ``_source``: the same with those left out instead.
``stated_coverage_shipped`` is of the statements as they ship, which have seen the
rows' errors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.inputs.catalogue.estimate_calibration import estimate_fit
from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.performance.estimate.calibration import CellSelector, ErrorTable
from tools.catalogue.error_table import cell_selectors
from tools.catalogue.fit_estimate import PredictedSeconds, table_of
from tools.catalogue.served_models import ServedRows

QUANTITIES = ("tbt", "ttft")


def figures(rows: ServedRows, predicted: Mapping[str, PredictedSeconds]) -> dict[str, Any]:
    """Return how often the stated errors cover the actual ones.

    ``predicted`` has the predictions by what the fit left out.
    """
    part = rows.take(np.flatnonzero(rows.silicon))
    labels = {"model": part.shape, "gpu": part.gpu, "version": part.version, "source": part.source}
    shares = {basis: _shares(rows, predicted[basis], basis, of) for basis, of in labels.items()}
    inside, tail, known = (shares["model"] + shares["gpu"]) / 2.0
    coverage: dict[str, Any] = {
        "stated_coverage": float(inside.mean()),
        "stated_coverage_90": float(tail.mean()),
        "stated_coverage_shipped": float(known.mean()),
    }
    for name, which in _parts(part).items():
        coverage[f"stated_coverage_{name}"] = float(inside[which].mean())
        coverage[f"stated_coverage_90_{name}"] = float(tail[which].mean())
    for basis in ("version", "source"):
        coverage[f"stated_coverage_{basis}"] = float(shares[basis][0].mean())
        coverage[f"stated_coverage_90_{basis}"] = float(shares[basis][1].mean())
    return coverage


def _shares(
    rows: ServedRows, predicted: PredictedSeconds, basis: str, labels: TextArray
) -> FloatArray:
    """Return masks of rows within the stated errors, as means over TBT and TTFT, ``[3, n]``.

    The errors are the stated median, the stated 90th percentile, and the shipped median.
    """
    kept = np.flatnonzero(rows.silicon)
    part = rows.take(kept)
    wheres = cell_selectors(part.loop.disaggregated, part.users, part.engine, part.speculative)
    ours = estimate_fit().errors[basis]
    within = np.zeros((3, kept.size))
    for name in QUANTITIES:
        measured = getattr(part, f"{name}_s")
        away = np.abs(getattr(predicted, f"{name}_s")[kept] / measured - 1.0)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            half, nine = _stated_errors(
                table_of(rows, predicted, kept[labels != label]), wheres, members, name
            )
            shipped, _ = _stated_errors(ours, wheres, members, name)
            for share, limit in enumerate((half, nine, shipped)):
                within[share, members] += away[members] <= limit
    return within / len(QUANTITIES)


def _stated_errors(
    table: ErrorTable, wheres: list[CellSelector], members: Any, name: str
) -> tuple[FloatArray, FloatArray]:
    cells = [table.of(wheres[i])[1] for i in members]
    half = np.array([getattr(cell, name) for cell in cells])
    return half, np.array([getattr(cell, f"{name}_90") for cell in cells])


def _parts(rows: ServedRows) -> dict[str, BoolArray]:
    split, users = rows.loop.disaggregated, rows.users
    return {
        "agg": ~split,
        "disagg": split,
        "low": users <= 16,
        "middle": (users > 16) & (users <= 128),
        "high": users > 128,
    }
