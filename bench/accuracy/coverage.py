"""Whether stated errors hold on deployments that neither the fit nor the statement had seen.

Part of ``python -m bench.accuracy silicon``. Every row is predicted once with its model left out of
the fit and once with its GPU type; its error is stated from what the other models, or GPU types,
were off by. ``stated_coverage`` is the share of rows within the stated median (what is promised:
one half), ``stated_coverage_90`` within the stated 9-of-10, both over TPOT and TTFT; by mode and
load beside them. ``stated_coverage_shipped`` is of the statements as they ship, which have seen the
rows' errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.catalogue.estimating import estimate_fit
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.estimate.errors import ErrorTable, Where, wheres_of
from tools.catalogue.fit_estimate import Predicted, table_of
from tools.catalogue.served import Served

QUANTITIES = ("tbt", "ttft")


def figures(rows: Served, predicted: Mapping[str, Predicted]) -> dict[str, Any]:
    """``predicted``: by "model" and "gpu", each with that left out."""
    kept = np.flatnonzero(rows.silicon)
    part = rows.take(kept)
    wheres = wheres_of(part.loop.split, part.users, part.engine, part.drafts)
    half, nine, shipped = [], [], []
    for basis in ("model", "gpu"):
        labels = {"model": part.shape, "gpu": part.gpu}[basis]
        away = {
            name: np.abs(
                getattr(predicted[basis], f"{name}_s")[kept] / getattr(part, f"{name}_s") - 1.0
            )
            for name in QUANTITIES
        }
        ours = estimate_fit().errors[basis]
        for label in np.unique(labels):
            mine = np.flatnonzero(labels == label)
            table = table_of(rows, predicted[basis], kept[labels != label])
            for name in QUANTITIES:
                stated = _stated(table, wheres, mine, name)
                half.append(_inside(away[name], mine, stated[0]))
                nine.append(_inside(away[name], mine, stated[1]))
                shipped.append(_inside(away[name], mine, _stated(ours, wheres, mine, name)[0]))
    inside, tail, known = (np.array(side).sum(axis=0) for side in (half, nine, shipped))
    times = 2.0 * len(QUANTITIES)  # that each row was looked at
    found: dict[str, Any] = {
        "stated_coverage": float(inside.mean() / times),
        "stated_coverage_90": float(tail.mean() / times),
        "stated_coverage_shipped": float(known.mean() / times),
    }
    for name, which in _parts(part).items():
        found[f"stated_coverage_{name}"] = float(inside[which].mean() / times)
        found[f"stated_coverage_90_{name}"] = float(tail[which].mean() / times)
    return found


def _stated(
    table: ErrorTable, wheres: list[Where], mine: Any, name: str
) -> tuple[FloatArray, FloatArray]:
    cells = [table.of(wheres[i])[1] for i in mine]
    half = np.array([getattr(cell, name) for cell in cells])
    return half, np.array([getattr(cell, f"{name}_90") for cell in cells])


def _inside(away: FloatArray, mine: Any, limit: FloatArray) -> FloatArray:
    """1 for each of all rows that is within the limit, as zeros elsewhere."""
    found = np.zeros(away.size)
    found[mine] = away[mine] <= limit
    return found


def _parts(rows: Served) -> dict[str, BoolArray]:
    split, users = rows.loop.split, rows.users
    return {
        "agg": ~split,
        "disagg": split,
        "low": users <= 16,
        "middle": (users > 16) & (users <= 128),
        "high": users > 128,
    }
