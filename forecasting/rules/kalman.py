"""Kalman filter of the local-level model, on the logarithm of demand.

Durbin and Koopman, Time Series Analysis by State Space Methods, 2nd ed., chapter 2. Demand is a
level, which is a random walk, plus noise. The parameter is the ratio of the variance of a step of
the level to that of the noise. It is the one of RATIOS with the maximum likelihood; the variance of
the noise has its likeliest value for each ratio. A gap adds to the variance of the level, so that
the next bin has more weight.
"""

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import Panel, mean_scale
from forecasting.rules.scales import Logarithm

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MEMORY = 256  # bins: older ones have a weight below 1e-11 at the smallest ratio
SMALLEST_SQUARE = 1e-18  # mean square of an error: an exact level is as likely at any ratio
DIFFUSE = 1e6  # variance of the level before the first bin, divided by that of the noise


@dataclass(frozen=True, slots=True, eq=False)
class LocalLevel:
    """A fitted local-level model of every series: demand is a random walk plus noise."""

    ratio: FloatArray  # [series] variance of a step of the level over that of the noise
    scale: Logarithm

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the filtered level at each origin for every step, ``[series, origins, steps]``."""
        first = max(0, int(origins[0]) - MEMORY)
        values = self.scale.transform(panel.values[:, first : int(origins[-1])])
        gains, _ = _kalman_gains(~np.isnan(values), self.ratio[:, None])
        levels = _levels(values, gains)[:, :, 0]  # [bin from ``first`` on, series]
        level_before = self.scale.inverse(levels[origins - 1 - first].T)  # [series, origin]
        return np.repeat(level_before[:, :, None], steps, axis=2)


@dataclass(frozen=True, slots=True)
class Kalman:
    """The local-level model; the variance ratio of each series has the maximum likelihood."""

    def fit(self, panel: Panel) -> LocalLevel:
        """Return the ratio of each series with the highest likelihood of one-step errors."""
        scale = Logarithm(mean_scale(panel.values))
        values = scale.transform(panel.values)
        gains, variances = _kalman_gains(~np.isnan(values), np.array([RATIOS]))
        # Errors one bin ahead, ``[bins - 1, series, ratios]``: the first bin only sets the level.
        errors = values.T[1:, :, None] - _levels(values, gains)[:-1]
        likelihood = _log_likelihood(errors, variances[1:])
        return LocalLevel(np.take(RATIOS, np.argmax(likelihood, axis=1)), scale)


def _log_likelihood(errors: FloatArray, variances: FloatArray) -> FloatArray:
    """Return the log likelihood of one-step ``errors``, ``[series, ratios]``, up to a constant.

    Errors are normal; NaN: not observed. ``variances`` are relative, and their scale has its
    likeliest value: the mean square. Both are ``[bins, series, ratios]``.
    """
    observed = ~np.isnan(errors)
    squares = np.where(observed, errors**2 / variances, 0.0).sum(axis=0)
    logs = np.where(observed, np.log(variances), 0.0).sum(axis=0)
    count = np.maximum(observed.sum(axis=0), 1)
    return np.asarray(-0.5 * (count * np.log(squares / count + SMALLEST_SQUARE) + logs))


def _kalman_gains(observed: BoolArray, ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Kalman gains and variances of one-step errors, both ``[bins, series, ratios]``.

    ``observed [series, bins]`` is the mask of observed bins. ``ratio [series or 1, ratios]`` are
    variances of a step of the level. All variances are divided by that of the noise. The gain is
    the share of an error by which the level moves, 0 in gaps.
    """
    # [series, ratios], of the level before the present bin
    level_variance = np.full((len(observed), ratio.shape[1]), DIFFUSE)
    error_variances = np.empty((observed.shape[1], *level_variance.shape))
    for t, is_observed in enumerate(observed.T[:, :, None]):
        error_variances[t] = level_variance + 1.0  # 1 is the variance of the noise
        # An observation divides the variance of the level by that of the error; a gap leaves it.
        updated = np.where(is_observed, level_variance / error_variances[t], level_variance)
        level_variance = updated + ratio
    gains = np.where(observed.T[:, :, None], 1.0 - 1.0 / error_variances, 0.0)
    return gains, error_variances


def _levels(values: FloatArray, gains: FloatArray) -> FloatArray:
    """Return the level after each bin, ``[bins, series, ratios]``; NaN before the first observed.

    ``values`` are ``[series, bins]``, and ``gains [bins, series, ratios]`` the Kalman gains.
    """
    observed = ~np.isnan(values)
    amounts = np.where(observed, values, 0.0).T[:, :, None]
    levels = np.empty(gains.shape)
    level = np.zeros(gains.shape[1:])
    for t, amount in enumerate(amounts):
        level = level + gains[t] * (amount - level)
        levels[t] = level
    return np.where(np.logical_or.accumulate(observed, axis=1).T[:, :, None], levels, np.nan)
