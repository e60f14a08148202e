"""Daily and weekly cycles as Fourier terms; AIC chooses their number.

Dynamic harmonic regression: Hyndman and Athanasopoulos, Forecasting: Principles and Practice,
section 10.5. Phases refer to UTC epoch seconds, so that a model continues on other bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from forecasting.arrays import FloatArray, IntArray

DAY_S, WEEK_S = 86_400.0, 604_800.0
AR_LAGS = 5  # autoregression that replaces the ARMA errors while harmonics are compared
RSS_FLOOR = 1e-14  # for values around 1: a smaller residual sum of squares is only rounding
RIDGE = 1e-12  # added to the diagonal of the normal matrix, as a share of its mean
SMALLEST = 1e-30  # added to the diagonal too, for regressors of zeros


@dataclass(frozen=True, slots=True)
class Harmonics:
    """The numbers of harmonics of the day and of the week, each counted from the slowest."""

    daily: int = 0
    weekly: int = 0

    def design(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        """Return the Fourier regressors at the left bin edges.

        The shape is ``[bins, 1 + 2 * (daily + weekly)]``. The columns are a constant, then sine and
        cosine of each daily harmonic, then of each weekly one.
        """
        time_s = start_s + bin_s * np.arange(bins)
        periods = [DAY_S / k for k in range(1, self.daily + 1)]
        periods += [WEEK_S / k for k in range(1, self.weekly + 1)]
        columns = [np.ones(bins)]
        for period in periods:
            angle = 2 * np.pi * np.mod(time_s, period) / period
            columns += [np.sin(angle), np.cos(angle)]
        return np.column_stack(columns)

    def columns(self, most: Harmonics) -> IntArray:
        """Return the indices of the columns of these harmonics in the design of ``most``."""
        weekly = 1 + 2 * most.daily
        return np.asarray(np.r_[0 : 1 + 2 * self.daily, weekly : weekly + 2 * self.weekly])

    def __str__(self) -> str:
        counts = [(self.daily, "daily"), (self.weekly, "weekly")]
        parts = [f"{k} {name} harmonic{'s' if k > 1 else ''}" for k, name in counts if k]
        return " + ".join(parts)


def candidate_harmonics(
    bin_s: float, bins: int, max_daily: int, max_weekly: int
) -> tuple[Harmonics, ...]:
    """Return the numbers of harmonics that ``bins`` of history can identify, the simplest first.

    Daily harmonics need two days and bins below 12 h. Weekly ones need two weeks and the same bins.
    A single cycle looks like a trend. Frequencies stay below the Nyquist frequency. There are at
    most six weekly harmonics, because the seventh is the first daily one.
    """
    history_s = bins * bin_s
    most_daily = most_weekly = 0
    if history_s >= 2 * DAY_S:
        nyquist = int((DAY_S / bin_s - 1) // 2)
        most_daily = max(0, min(max_daily, nyquist))
    if history_s >= 2 * WEEK_S and most_daily:
        most_weekly = min(max_weekly, 6)
    pairs = product(range(most_daily + 1), range(most_weekly + 1))
    options = [Harmonics(daily, weekly) for daily, weekly in pairs]
    return tuple(sorted(options, key=lambda option: (option.daily + option.weekly, option.weekly)))


@dataclass(frozen=True, slots=True, eq=False)
class NormalEquations:
    """Products of regressors and targets, for least squares on some of the columns."""

    normal: FloatArray  # [columns, columns] products of the regressors
    moments: FloatArray  # [columns] products of each regressor with the targets
    total_square: float  # of the targets
    count: int  # targets, or 1 if there are none

    @classmethod
    def of(cls, regressors: FloatArray, targets: FloatArray) -> NormalEquations:
        """Return the products of ``regressors [targets, columns]`` and ``targets``."""
        normal, moments = regressors.T @ regressors, regressors.T @ targets
        normal += RIDGE * np.trace(normal) / max(1, len(normal)) * np.eye(len(normal))
        return cls(normal, moments, float(targets @ targets), max(1, targets.size))

    def explained_squares(self, columns: IntArray) -> FloatArray:
        """Return by how much each of ``columns`` in turn reduces the residual sum of squares.

        It is the square of the column's Cholesky coordinate.
        """
        factor = np.linalg.cholesky(self.normal[np.ix_(columns, columns)])
        return np.asarray(np.linalg.solve(factor, self.moments[columns]) ** 2)


def choose_harmonics(
    values: FloatArray, d: int, design: FloatArray, options: Sequence[Harmonics]
) -> Harmonics:
    """Return the option with the least AIC of a regression with autoregressive errors.

    ``values [bins]`` are NaN in gaps, and are differenced ``d`` times (0 or 1) to ``w``.
    ``options`` are the numbers of harmonics to choose among. ``design [bins, columns]`` is that of
    the last option, which has the most harmonics: a constant, daily columns, weekly columns.

    Each option is the least-squares fit of ``w[t] = c + sum_i phi_i w[t - i] + X[t] gamma + e[t]``.
    A lag only shifts the phase of a sinusoid, so this equals the regression on the harmonics ``X``
    with AR(AR_LAGS) errors. ``AIC = n log(RSS / n) + 2 k``. All options use the same bins.
    """
    equations = _equations_with_lags(values, d, design)
    # Columns of every option (lags, and a constant unless ``d`` is 1), then daily, then weekly.
    daily_begin = AR_LAGS + 1 - d
    daily_end = daily_begin + 2 * options[-1].daily
    common, daily, weekly = np.split(np.arange(len(equations.moments)), [daily_begin, daily_end])

    @cache
    def explained_squares(weekly_harmonics: int) -> FloatArray:
        """Return the squares that each column explains: common, weekly, then all daily columns.

        An option with fewer daily harmonics sums fewer of them, so one factorisation serves all.
        """
        order = np.concatenate([common, weekly[: 2 * weekly_harmonics], daily])
        return equations.explained_squares(order)

    def aic(option: Harmonics) -> float:
        """Return the AIC of the fit with the harmonics of ``option``."""
        columns = common.size + 2 * (option.daily + option.weekly)
        n = equations.count
        if n < 3 * columns:  # too few bins for so many columns
            return np.inf
        explained = float(explained_squares(option.weekly)[:columns].sum())
        residual_square = max(0.0, equations.total_square - explained)
        return float(n * np.log(residual_square / n + RSS_FLOOR) + 2 * columns)

    return min(options, key=aic)


def _equations_with_lags(values: FloatArray, d: int, design: FloatArray) -> NormalEquations:
    """Return the regression of ``values``, differenced ``d`` times, on AR_LAGS lags and ``design``.

    A gap is no target. As a regressor, it has the value before it.
    """
    observed = ~np.isnan(values)
    differenced = np.diff(carry_forward(values), n=d)
    is_target = observed[d:] & observed[: values.size - d]
    is_target[:AR_LAGS] = False
    rows = np.flatnonzero(is_target)
    lags = np.column_stack([differenced[rows - lag] for lag in range(1, AR_LAGS + 1)])
    regressors = np.hstack([lags, _difference_columns(design, d)[rows]])
    return NormalEquations.of(regressors, differenced[rows])


def regress(values: FloatArray, d: int, design: FloatArray) -> FloatArray:
    """Return the least-squares coefficients of ``values`` on ``design``, ``[columns]``.

    Both are differenced ``d`` times, 0 or 1. This removes the constant, the first column of
    ``design``, whose coefficient is then 0. No model of the errors is needed yet. For stationary
    errors and sinusoids, least squares is asymptotically as good as generalised least squares
    (Grenander 1954).
    """
    differenced = np.diff(values, n=d)
    rows = ~np.isnan(differenced)
    coefficients = np.zeros(design.shape[1])
    coefficients[d:] = least_squares(_difference_columns(design, d)[rows], differenced[rows])
    return coefficients


def carry_forward(values: FloatArray) -> FloatArray:
    """Return ``values [bins]`` with each gap (NaN) replaced by the last value before it.

    Gaps before the first value get that value. An interpolation would reveal the value after the
    gap to a regression.
    """
    seen = ~np.isnan(values)
    first_seen = np.argmax(seen)
    bin_to_copy = np.maximum.accumulate(np.where(seen, np.arange(values.size), first_seen))
    return np.asarray(values[bin_to_copy])


def least_squares(regressors: FloatArray, values: FloatArray) -> FloatArray:
    """Return least-squares coefficients, ``[columns]``.

    They are found by normal equations, which is faster than an SVD.
    """
    normal = regressors.T @ regressors
    normal += (RIDGE * np.trace(normal) / max(1, len(normal)) + SMALLEST) * np.eye(len(normal))
    return np.asarray(np.linalg.solve(normal, regressors.T @ values))


def _difference_columns(design: FloatArray, d: int) -> FloatArray:
    """Return ``design`` differenced ``d`` times, without the columns that become zero."""
    return np.diff(design, n=d, axis=0)[:, d:]
