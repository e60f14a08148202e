"""Daily and weekly cycles as Fourier terms; AIC chooses their number.

Dynamic harmonic regression: Hyndman and Athanasopoulos, Forecasting: Principles and Practice,
section 10.5. Phases refer to UTC epoch seconds, so that a model continues on other bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray

DAY_S, WEEK_S = 86_400.0, 604_800.0
AR_LAGS = 5  # autoregression that replaces the ARMA errors while harmonics are compared
RSS_FLOOR = 1e-18  # for values around 1: below it a fit is exact


@dataclass(frozen=True, slots=True)
class Harmonics:
    """The first ``daily`` harmonics of the day and ``weekly`` of the week."""

    daily: int = 0
    weekly: int = 0

    def design(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        """Return the regressors at the left bin edges, ``[bins, 1 + 2 * (daily + weekly)]``.

        The first column is a constant.
        """
        time_s = start_s + bin_s * np.arange(bins)
        periods = [DAY_S / k for k in range(1, self.daily + 1)]
        periods += [WEEK_S / k for k in range(1, self.weekly + 1)]
        columns = [np.ones(bins)]
        for period in periods:
            angle = 2 * np.pi * np.mod(time_s, period) / period
            columns += [np.sin(angle), np.cos(angle)]
        return np.column_stack(columns)

    def __str__(self) -> str:
        named = [(self.daily, "daily"), (self.weekly, "weekly")]
        parts = [f"{k} {name} harmonic{'s' if k > 1 else ''}" for k, name in named if k]
        return " + ".join(parts)


def candidate_harmonics(
    bin_s: float, bins: int, max_daily: int, max_weekly: int
) -> tuple[Harmonics, ...]:
    """Return the harmonics that ``bins`` of history can identify, simplest first.

    Daily terms need two days and bins below 12 h, weekly ones two weeks, since one cycle looks
    like a trend. Terms stay below the Nyquist frequency. There are at most six weekly harmonics,
    since the seventh is the first daily one.
    """
    span_s = bins * bin_s
    top_daily = min(max_daily, int((DAY_S / bin_s - 1) // 2)) if span_s >= 2 * DAY_S else 0
    top_weekly = min(max_weekly, 6) if span_s >= 2 * WEEK_S and top_daily > 0 else 0
    pairs = [
        Harmonics(daily, weekly)
        for daily in range(max(0, top_daily) + 1)
        for weekly in range(top_weekly + 1)
    ]
    return tuple(sorted(pairs, key=lambda pair: (pair.daily + pair.weekly, pair.weekly)))


def choose_harmonics(
    values: FloatArray, d: int, start_s: float, bin_s: float, options: Sequence[Harmonics]
) -> Harmonics:
    """Return the option with the least AIC of a regression with autoregressive errors.

    With ``w`` the ``d``-times differenced values, each option is the least-squares fit of
    ``w[t] = c + sum_i phi_i w[t - i] + X[t] gamma + e[t]``. A lag only shifts the phase of a
    sinusoid, so this equals the regression on ``X`` with AR(AR_LAGS) errors.
    ``AIC = n log(RSS / n) + 2 k``. All options use the same bins. Gaps are interpolated as
    regressors and dropped as targets.
    """
    observed = ~np.isnan(values)
    index = np.arange(values.size)
    w = np.diff(np.interp(index, index[observed], values[observed]), n=d)
    target = observed[d:] & observed[: values.size - d]
    target[:AR_LAGS] = False
    rows = np.flatnonzero(target)
    lags = np.column_stack([w[rows - lag] for lag in range(1, AR_LAGS + 1)])

    def aic(option: Harmonics) -> float:
        design = _difference_columns(option.design(start_s, bin_s, values.size), d)[rows]
        regressors = np.hstack([lags, design])
        n, k = regressors.shape
        if n < 3 * k:
            return np.inf
        coefficients = np.linalg.lstsq(regressors, w[rows])[0]
        rss = float(np.sum((w[rows] - regressors @ coefficients) ** 2))
        return float(n * np.log(rss / n + RSS_FLOOR) + 2 * k)

    return min(options, key=aic)


def regress(values: FloatArray, d: int, design: FloatArray) -> FloatArray:
    """Return the least-squares coefficients of ``values`` on ``design``, ``[columns]``.

    Both are differenced ``d`` times, which removes the constant: its coefficient is then 0. For
    stationary errors and sinusoids least squares is asymptotically as good as generalised least
    squares (Grenander 1954), so the model of the errors is not needed yet.
    """
    w = np.diff(values, n=d)
    rows = ~np.isnan(w)
    coefficients = np.zeros(design.shape[1])
    coefficients[d:] = np.linalg.lstsq(_difference_columns(design, d)[rows], w[rows])[0]
    return coefficients


def _difference_columns(design: FloatArray, d: int) -> FloatArray:
    return np.diff(design, n=d, axis=0)[:, d:]
