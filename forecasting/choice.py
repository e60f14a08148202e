"""Who was right lately: methods weighed and chosen by what their past forecasts missed by."""

from __future__ import annotations

import numpy as np

from forecasting.arrays import FloatArray, IntArray

HALF_LIFE = 48  # windows after which an error counts for half: two days by the hour
MARGIN = 0.1  # by which a method has to be better than the ensemble to stand by itself
POWER = 8  # of the inverse errors that weigh the ensemble: what is twice as wrong hardly counts


def running_mean(figures: FloatArray, apart: float, none: float) -> FloatArray:
    """Discounted mean of ``figures [..., o]`` up to each origin, ``none`` before one is known.

    ``apart`` is how far apart origins are, in windows. NaN counts for nothing.
    """
    if not figures.shape[-1]:
        return figures
    keep = 0.5 ** (apart / HALF_LIFE)
    # Origins first: each step then runs along memory.
    each = np.ascontiguousarray(np.moveaxis(figures, -1, 0))
    known = ~np.isnan(each)
    total, weight = np.where(known, each, 0.0), known.astype(np.float64)
    for at in range(1, len(each)):
        total[at] += keep * total[at - 1]
        weight[at] += keep * weight[at - 1]
    mean = np.where(weight > 0, total / np.maximum(weight, np.finfo(float).tiny), none)
    return np.ascontiguousarray(np.moveaxis(mean, 0, -1))


def ensemble_weights(error: FloatArray) -> FloatArray:
    """Of methods ``error [m, ...]``: inverse powers that sum to 1; inf is left out.

    Where no error is known yet all weights are 0.
    """
    known = np.isfinite(error)
    least = np.where(known, error, np.inf).min(axis=0)
    least = np.where(np.isfinite(least), least, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(error > 0, least / error, 1.0)
    weight = np.where(known, relative**POWER, 0.0)
    return np.asarray(weight / np.maximum(weight.sum(axis=0), np.finfo(float).tiny))


def choose(single: FloatArray, ensemble: FloatArray) -> IntArray:
    """Of the methods with errors ``single [m, ...]`` and their ensemble, number m.

    The ensemble, unless one method was better by MARGIN; the first method, the simplest, while
    nothing is known.
    """
    best = np.argmin(single, axis=0)
    error = np.min(single, axis=0)
    alone = ~np.isfinite(ensemble) | (error < (1 - MARGIN) * ensemble)
    return np.where(alone, best, len(single))
