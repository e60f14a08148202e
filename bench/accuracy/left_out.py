"""Errors and stated errors on whole groups that the fit left out.

Part of ``python -m bench.accuracy silicon``. A group is a model, a GPU type, an engine version or a
source. Every row is predicted by a fit without its group. Its error is stated from the other
groups. ``left_out_tpot_error`` and ``left_out_ttft_error`` are medians over all four kinds of
groups. ``coverage_half`` and ``coverage_90`` are the shares of both times within the stated errors.
``*_unseen_model``, ``*_unseen_gpu`` and ``*_unseen_version`` are of one kind of group each, and
``*_by_load`` of all kinds by requests in flight.

``mtp_tpot_error``: rows that are labelled with speculative decoding. ``amd_tpot_error``: GPUs of
AMD. Both leave out a GPU type at a time. Rows of AMD are in no other figure.
``peak_*`` and ``rank_correlation``: published peaks of throughput, each with its model left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from simulation.arrays import FloatArray, TextArray
from tools.catalogue.error_table import cell_selectors
from tools.catalogue.fit_estimate import PredictedSeconds, rows_to_score, table_of
from tools.catalogue.served_models import ServedRows

TIMES = {"tpot": "tbt", "ttft": "ttft"}
LOADS = {"low": (0.0, 16.0), "middle": (16.0, 128.0), "high": (128.0, np.inf)}
KINDS = ("model", "gpu", "version", "source")
TOO_HIGH = 0.25
FEWEST = 3  # deployments of a table that are ranked


def figures(rows: ServedRows, predicted: Mapping[str, PredictedSeconds]) -> dict[str, Any]:
    """Return the figures of the module's docstring; ``predicted`` is by what was left out."""
    kept = rows_to_score(rows)
    part = rows.take(kept)
    labels = {"model": part.shape, "gpu": part.gpu, "version": part.version, "source": part.source}
    errors = {kind: _errors(rows, predicted[kind], kept, labels[kind]) for kind in KINDS}
    pooled = np.concatenate([errors[kind] for kind in KINDS], axis=2)
    found: dict[str, Any] = _figures(pooled)
    for kind in KINDS[:3]:
        found |= {f"{name}_unseen_{kind}": value for name, value in _figures(errors[kind]).items()}
    users = np.tile(part.users, len(KINDS))
    by_load = {
        load: _figures(pooled[:, :, (low < users) & (users <= high)])
        for load, (low, high) in LOADS.items()
    }
    for name in tuple(_figures(pooled)):
        found[f"{name}_by_load"] = {load: values[name] for load, values in by_load.items()}
    away = np.abs(predicted["gpu"].tbt_s / rows.tbt_s - 1.0)
    found["mtp_tpot_error"] = float(np.median(away[rows.speculative & ~rows.foreign]))
    found["amd_tpot_error"] = float(np.median(away[rows.foreign]))
    return found | _peaks(rows, predicted["model"])


def _errors(
    rows: ServedRows, predicted: PredictedSeconds, kept: Any, labels: TextArray
) -> FloatArray:
    """Return the error of each time and whether both stated errors hold it, ``[2, 3, n]``."""
    part = rows.take(kept)
    wheres = cell_selectors(part.loop.disaggregated, part.users, part.engine, part.speculative)
    found = np.zeros((len(TIMES), 3, kept.size))
    for label in np.unique(labels):
        table = table_of(rows, predicted, kept[labels != label])
        for i in np.flatnonzero(labels == label):
            cell = table.of(wheres[i])[1]
            for k, name in enumerate(TIMES.values()):
                measured, estimated = (getattr(of, f"{name}_s") for of in (rows, predicted))
                away = abs(estimated[kept[i]] / measured[kept[i]] - 1.0)
                half, nine = getattr(cell, name), getattr(cell, f"{name}_90")
                found[k, :, i] = away, away <= half, away <= nine
    return found


def _figures(errors: FloatArray) -> dict[str, float]:
    medians = np.median(errors[:, 0], axis=1)
    return {
        **{f"left_out_{name}_error": float(medians[k]) for k, name in enumerate(TIMES)},
        "coverage_half": float(errors[:, 1].mean()),
        "coverage_90": float(errors[:, 2].mean()),
    }


def _peaks(rows: ServedRows, predicted: PredictedSeconds) -> dict[str, float]:
    peaks = rows.take(np.flatnonzero(rows.peak))
    estimated, measured = (peaks.users / t for t in (predicted.tbt_s[rows.peak], peaks.tbt_s))
    off = estimated / measured - 1.0
    lengths = peaks.loop.isl + 1e6 * peaks.loop.osl
    gpus = np.exp(peaks.traits.load[:, 3])
    ranks = [
        spearmanr((estimated / gpus)[which], (measured / gpus)[which])[0]
        for which in (lengths == length for length in np.unique(lengths))
        if which.sum() >= FEWEST
    ]
    return {
        "peak_bias_median": float(np.median(off)),
        "peak_over_25_share": float((off > TOO_HIGH).mean()),
        "rank_correlation": float(np.mean(ranks)),
    }
