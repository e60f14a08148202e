"""Fourier terms of day and week with an autoregression of the residuals, for all series at once.

The model is of the logarithm or the root of demand, and is fitted in two steps. First Fourier terms
are fitted. All series share their design matrix, so that the fit is one matrix product. Gaps are
filled with the fit, which is then repeated. Then residuals are regressed on those of the last bins,
and of a day and a week before. Each series has its own normal equations with a ridge. Phases refer
to UTC epoch seconds.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, mean_scale
from forecasting.harmonics import DAY_S, WEEK_S, Harmonics
from forecasting.rules.cyclic import Cyclic
from forecasting.rules.scales import Logarithm, Root

DAILY, WEEKLY = 6, 3  # harmonics
LAST_BINS = 6  # lags of the last bins; there are two more for a day and for a week before
RIDGE = 0.01  # as a share of the mean square of a regressor
REFITS = 3  # repeated fits of the Fourier terms if there are gaps
MEMORY = 96  # bins before twice the largest lag, from which gaps are filled
MAX_PASSES = 16  # fillings of all gaps at once; each one completes one more gap of a series
CEILING = 2.0  # largest forecast over the largest amount seen, since an autoregression can diverge
SMALLEST = 1e-12  # added to the diagonal of normal equations, for regressors of zeros


@dataclass(frozen=True, slots=True, eq=False)
class FittedRegression(Cyclic):
    """Fourier terms and autoregression of every series."""

    lags: tuple[int, ...]  # bins
    weights: FloatArray  # [series, lags] coefficients of lagged residuals

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the forecast of ``steps`` bins from each origin, ``[series, origins, steps]``.

        It is the Fourier terms plus the autoregression of residuals, at most CEILING times the
        largest amount so far.
        """
        memory = 2 * max(self.lags, default=0) + MEMORY
        amounts = self.paths_around(panel, origins, steps, memory, self._residuals_ahead)
        largest_so_far = np.fmax.accumulate(panel.values, axis=1)[:, origins - 1, None]
        return np.minimum(amounts, CEILING * np.nan_to_num(largest_so_far))

    def _residuals_ahead(self, residual: FloatArray, start: IntArray, steps: int) -> FloatArray:
        """Return the expected residuals, ``[series, origins, steps]``, from the bins ``start``."""
        residual = self._fill_gaps(residual)
        ahead = np.zeros((len(residual), len(start), steps))
        for step in range(steps):
            for lag, weight in zip(self.lags, self.weights.T, strict=True):
                if lag <= step:  # the lagged bin is forecast too
                    lagged = ahead[:, :, step - lag]
                else:
                    lagged_bin = start + step - lag
                    lagged = np.where(lagged_bin >= 0, residual[:, np.maximum(lagged_bin, 0)], 0.0)
                ahead[:, :, step] += weight[:, None] * lagged
        return ahead

    def _fill_gaps(self, residual: FloatArray) -> FloatArray:
        """Return ``residual [series, bins]`` with gaps filled by the autoregression."""
        series, bins = np.nonzero(np.isnan(residual))  # of each gap
        filled = np.where(np.isnan(residual), 0.0, residual)
        lagged_bins = bins[:, None] - np.array(self.lags, dtype=np.int64)  # [gap, lag]
        weights = np.where(lagged_bins >= 0, self.weights[series], 0.0)  # 0 before the first bin
        lagged_bins = np.maximum(lagged_bins, 0)

        def fill(gaps: IntArray | slice) -> None:
            """Fill the ``gaps`` (indices) with their expected values."""
            lagged = filled[series[gaps][:, None], lagged_bins[gaps]]
            filled[series[gaps], bins[gaps]] = (weights[gaps] * lagged).sum(axis=1)

        # A gap may depend on earlier gaps. Each pass completes one more gap of such a chain.
        for _ in range(MAX_PASSES):
            before = filled[series, bins]
            fill(slice(None))
            if np.array_equal(before, filled[series, bins]):
                return filled
        # A longer chain, which is rare, is filled bin by bin, so all earlier gaps are complete.
        for bin_index in np.unique(bins):
            fill(np.flatnonzero(bins == bin_index))
        return filled


@dataclass(frozen=True, slots=True)
class Regression:
    """Regression of transformed amounts on earlier ones, with or without Fourier terms."""

    scale: Literal["logarithm", "root"] = "logarithm"
    cycles: bool = True

    def fit(self, panel: Panel) -> FittedRegression:
        """Return the model with cycles fitted to the scaled amounts, then weights of the lags."""
        mean = mean_scale(panel.values)
        scale = Logarithm(mean) if self.scale == "logarithm" else Root(mean)
        scaled = scale.transform(panel.values)
        seen = ~np.isnan(scaled)
        harmonics, lags = self._harmonics(panel), self._lags(panel)
        design = harmonics.design(panel.start_s, panel.bin_s, panel.bins)
        cycles = _fourier_coefficients(scaled, seen, design)
        residual = np.where(seen, scaled - cycles @ design.T, 0.0)
        return FittedRegression(scale, harmonics, cycles, lags, _lag_weights(residual, seen, lags))

    def _harmonics(self, panel: Panel) -> Harmonics:
        """Return daily harmonics from two days of history on, and weekly ones from two weeks on."""
        history_s = panel.bins * panel.bin_s
        nyquist = int((DAY_S / panel.bin_s - 1) // 2)
        daily = min(DAILY, nyquist)
        if not self.cycles or history_s < 2 * DAY_S or daily <= 0:
            return Harmonics(0, 0)
        return Harmonics(daily, WEEKLY if history_s >= 2 * WEEK_S else 0)

    def _lags(self, panel: Panel) -> tuple[int, ...]:
        """Return the lags in bins: the last bins, and a day and a week before if history allows."""
        lags = [*range(1, 1 + min(LAST_BINS, panel.bins // (2 * LAST_BINS)))]
        for season in (panel.season_bins(DAY_S), panel.season_bins(WEEK_S)):
            if season > LAST_BINS and panel.bins >= 2 * season + LAST_BINS:
                lags += [season, season + 1]
        return tuple(lags)


def _fourier_coefficients(
    scaled: FloatArray, observed: FloatArray, design: FloatArray
) -> FloatArray:
    """Return the coefficients of every series on the shared design, ``[series, columns]``.

    ``scaled [series, bins]`` are transformed amounts, and ``observed`` is the mask of known ones.
    """
    ridge = RIDGE * len(design) * np.eye(design.shape[1])
    ridge[0, 0] = SMALLEST  # no ridge on the mean
    # This matrix turns complete series into coefficients, so gaps are filled: first by the mean.
    to_coefficients = np.linalg.solve(design.T @ design + ridge, design.T).T
    total, count = np.where(observed, scaled, 0.0).sum(axis=1), observed.sum(axis=1)
    mean = (total / np.maximum(count, 1))[:, None]
    coefficients = np.where(observed, scaled, mean) @ to_coefficients
    if not observed.all():
        for _ in range(REFITS):  # fill gaps by the fit, and fit again
            filled = np.where(observed, scaled, coefficients @ design.T)
            coefficients = filled @ to_coefficients
    return np.asarray(coefficients)


def _lag_weights(residual: FloatArray, observed: FloatArray, lags: tuple[int, ...]) -> FloatArray:
    """Return the least-squares weights of the lagged residuals, ``[series, lags]``.

    ``residual`` and the mask of observed bins, ``observed``, are ``[series, bins]``.
    """
    if not lags:
        return np.zeros((len(residual), 0))
    first, bins = max(lags), residual.shape[1]
    target_seen = observed[:, first:]
    target = residual[:, first:] * target_seen
    lagged = [residual[:, first - lag : bins - lag] * target_seen for lag in lags]
    normal, moments = _normal_equations(lagged, target)
    mean_square = np.trace(normal, axis1=1, axis2=2)[:, None, None] / len(lags)
    normal += (RIDGE * mean_square + SMALLEST) * np.eye(len(lags))
    return np.asarray(np.linalg.solve(normal, moments[:, :, None])[:, :, 0])


def _normal_equations(
    regressors: list[FloatArray], target: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the products of regressors, and with the target, of each series (sums over time)."""
    count = len(regressors)
    normal, moments = np.empty((len(target), count, count)), np.empty((len(target), count))
    for i, regressor in enumerate(regressors):
        moments[:, i] = np.einsum("st,st->s", regressor, target)
        for j, other in enumerate(regressors[: i + 1]):
            normal[:, i, j] = normal[:, j, i] = np.einsum("st,st->s", regressor, other)
    return normal, moments
