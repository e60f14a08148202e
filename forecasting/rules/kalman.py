"""A level that wanders, seen through noise: the local-level model's Kalman filter.

Durbin and Koopman, Time Series Analysis by State Space Methods, 2nd ed., chapter 2, on the
logarithm of demand. The ratio of the level's variance to the noise's is the one of most
likelihood; the noise's variance is concentrated out. A gap widens what is not known of the level,
so that the first bin after it counts for more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.panel import Panel, scale_of
from forecasting.rules.scales import Logarithm

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MEMORY = 256  # bins; of an older one even the least ratio keeps a weight below 1e-11
LEAST = 1e-18  # mean square of an error: a level that is exact is as likely at any ratio
DIFFUSE = 1e6  # variance of the level before anything is seen, over the noise's


@dataclass(frozen=True, slots=True, eq=False)
class LocalLevel:
    ratio: FloatArray  # [series]
    scale: Logarithm

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        first = max(0, int(origins[0]) - MEMORY)
        values = self.scale.forth(panel.values[:, first : int(origins[-1])])
        gains, _ = _gains(~np.isnan(values), self.ratio[:, None])
        level = self.scale.back(_levels(values, gains)[origins - 1 - first, :, 0].T)
        return np.repeat(level[:, :, None], steps, axis=2)


@dataclass(frozen=True, slots=True)
class Kalman:
    def learn(self, panel: Panel) -> LocalLevel:
        scale = Logarithm(scale_of(panel.values))
        values = scale.forth(panel.values)
        gains, totals = _gains(~np.isnan(values), np.array([RATIOS]))
        # the first bin only says where to begin: before it there is no level to be off
        errors = values.T[1:, :, None] - _levels(values, gains)[:-1]
        known = ~np.isnan(errors)
        squares = np.where(known, errors**2 / totals[1:], 0.0).sum(axis=0)
        logs = np.where(known, np.log(totals[1:]), 0.0).sum(axis=0)
        count = np.maximum(known.sum(axis=0), 1)
        likelihood = -0.5 * (count * np.log(squares / count + LEAST) + logs)
        return LocalLevel(np.take(RATIOS, np.argmax(likelihood, axis=1)), scale)


def _gains(seen: BoolArray, ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What share of an error moves the level at each bin, 0 in gaps, and the variance of that
    error over the noise's: both ``[bins, series, ratios]``. ``ratio`` is ``[series or 1, ratios]``.
    """
    bins = seen.shape[1]
    variance = np.full((len(seen), ratio.shape[1]), DIFFUSE)
    totals = np.empty((bins, *variance.shape))
    for t in range(bins):
        np.add(variance, 1.0, out=totals[t])
        # where a bin is seen its noise takes variance / total of the variance away
        variance = np.where(seen[:, t, None], variance / totals[t], variance) + ratio
    return np.where(seen.T[:, :, None], 1.0 - 1.0 / totals, 0.0), totals


def _levels(values: FloatArray, gains: FloatArray) -> FloatArray:
    """Levels after each bin, ``[bins, series, ratios]``, NaN before the first observed one."""
    seen = ~np.isnan(values)
    amounts = np.where(seen, values, 0.0).T[:, :, None]
    levels = np.empty(gains.shape)
    level = np.zeros(gains.shape[1:])
    for t, amount in enumerate(amounts):
        level = level + gains[t] * (amount - level)
        levels[t] = level
    return np.where(np.logical_or.accumulate(seen, axis=1).T[:, :, None], levels, np.nan)
