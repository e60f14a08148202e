"""Exponential smoothing of the level, alone or with a daily profile.

Hyndman and Athanasopoulos, Forecasting: Principles and Practice, chapter 8. The profile is
Holt-Winters' multiplicative season without a trend. A level is the mean of the observed bins,
weighted by ``(1 - gain)^age``; gaps have no weight.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, forward_fill, same_phase_bins, split_seasons
from forecasting.harmonics import DAY_S
from forecasting.recursion import recursion

GAINS_TO_TRY = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # gains to try
LEVEL_GAINS = (0.1, 0.3, 0.6, 1.0)  # gains of the level to try, with a daily profile
PROFILE_GAINS = (0.3, 0.6)  # gains of the profile to try
FLOOR = 1e-3  # smallest value of a profile, a divisor, as a share of the series' mean


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Fitted exponential smoothing: every step is forecast as the level after the last bin."""

    gain: FloatArray  # [series]

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the level before each origin at every step, ``[series, origins, steps]``."""
        levels = np.empty((len(panel.values), len(origins)))
        for gain in np.unique(self.gain):
            rows = np.flatnonzero(self.gain == gain)
            levels[rows] = discounted_mean(panel.values[rows], float(gain))[:, origins - 1]
        return np.repeat(levels[:, :, None], steps, axis=2)


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Exponential smoothing; its gain has the least mean absolute error one bin ahead."""

    def fit(self, panel: Panel) -> Level:
        """Return for each series the gain whose level forecasts the next bin best."""
        values = panel.values
        errors = [
            _mean_error(values[:, 1:], discounted_mean(values, gain)[:, :-1])
            for gain in GAINS_TO_TRY
        ]
        return Level(np.take(GAINS_TO_TRY, np.argmin(errors, axis=0)))


@dataclass(frozen=True, slots=True, eq=False)
class LevelOverProfile:
    """A fitted daily profile: the forecast is the profile at the time of day times a level.

    The level is the ratio of recent amounts to the profile.
    """

    season: int  # bins of a season; 0: no forecast
    gains: FloatArray  # [series, 2] gain of the profile by day, and of the level by bin
    floor: FloatArray  # [series, 1] smallest value of the profile

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the profile times the level at each origin, ``[series, origins, steps]``."""
        paths = np.full((len(panel.values), len(origins), steps), np.nan)
        if not self.season:
            return paths
        same_phase = same_phase_bins(origins, steps, self.season)  # [origins, steps]
        is_known = same_phase >= 0
        for profile_gain, level_gain in np.unique(self.gains, axis=0):
            rows = np.flatnonzero((self.gains == (profile_gain, level_gain)).all(axis=1))
            values, floor = panel.values[rows], self.floor[rows]
            # Smoothed amounts at each time of the season, and the same one season before.
            smoothed, profile = _season_levels_and_profile(values, self.season, profile_gain, floor)
            level = _ratio(values, profile, level_gain)[:, origins - 1, None]
            ahead = np.where(is_known, smoothed[:, np.maximum(same_phase, 0)], np.nan)
            paths[rows] = np.maximum(ahead, floor[:, :, None]) * level
        return paths


@dataclass(frozen=True, slots=True)
class SeasonalSmoothing:
    """Smoothing with a daily profile; its gains have the least absolute error one bin ahead.

    It needs two seasons of history.
    """

    season_s: float = DAY_S

    def fit(self, panel: Panel) -> LevelOverProfile:
        """Return the rule with the gains that predicted each series best one step ahead.

        Without two whole seasons, it has no season and forecasts nothing.
        """
        season, values = panel.season_bins(self.season_s), panel.values
        floor = _smallest_profile(values)
        if season < 2 or panel.bins < 2 * season:
            return LevelOverProfile(0, np.ones((len(values), 2)), floor)
        pairs = list(product(PROFILE_GAINS, LEVEL_GAINS))
        errors = []  # by pair, in the same order: mean error of each series
        for profile_gain in PROFILE_GAINS:
            _, profile = _season_levels_and_profile(values, season, profile_gain, floor)
            for level_gain in LEVEL_GAINS:
                level = _ratio(values, profile, level_gain)
                next_bin = profile[:, 1:] * level[:, :-1]  # forecast of each bin by the one before
                errors.append(_mean_error(values[:, season + 1 :], next_bin[:, season:]))
        best_pair = np.argmin(errors, axis=0)  # [series]
        return LevelOverProfile(season, np.array(pairs)[best_pair], floor)


def _smallest_profile(values: FloatArray) -> FloatArray:
    """Return the smallest value of a profile, ``[series, 1]``: a share of the mean, or 1."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    return np.where(mean > 0, FLOOR * mean, 1.0)[:, None]


def discounted_mean(values: FloatArray, gain: float) -> FloatArray:
    """Return the mean of all values up to each bin, weighted by ``(1 - gain)^age``.

    It is NaN before the first observed bin.
    """
    return _ratio(values, np.ones_like(values), gain, before=np.nan)


def _season_levels(values: FloatArray, season: int, gain: float) -> FloatArray:
    """Return, after each bin, the level of its time of day, ``[series, bins]``.

    It is the discounted mean of that bin over the seasons so far. The last one has the weight
    ``gain``. ``season`` is the number of bins of a season.
    """
    series, bins = values.shape
    by_phase = split_seasons(values, season).transpose(0, 2, 1)  # [series, phase, season]
    levels = discounted_mean(by_phase.reshape(series * season, -1), gain).reshape(by_phase.shape)
    return levels.transpose(0, 2, 1).reshape(series, -1)[:, :bins]


def _season_levels_and_profile(
    values: FloatArray, season: int, gain: float, floor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ``_season_levels``, and the profile: the level one season before, NaN in the first."""
    levels = _season_levels(values, season, gain)
    profile = np.full_like(levels, np.nan)
    profile[:, season:] = np.maximum(levels[:, :-season], floor)
    return levels, profile


def _ratio(values: FloatArray, profile: FloatArray, gain: float, before: float = 1.0) -> FloatArray:
    """Return, after each bin, the discounted sum of ``values`` divided by that of ``profile``.

    Weights fall by ``1 - gain`` per bin. Bins where either is NaN do not count. The ratio is
    ``before`` until one bin has both.
    """
    both_known = ~np.isnan(values) & ~np.isnan(profile)
    # Discounted sums: sum_t = value_t + (1 - gain) sum_(t-1).
    lag = np.array([gain - 1.0])
    value_sum = recursion(np.where(both_known, values, 0.0), lag)
    profile_sum = recursion(np.where(both_known, profile, 0.0), lag)
    ratio = value_sum / np.maximum(profile_sum, np.finfo(float).tiny)
    # A bin that does not count has the ratio of the latest bin that does.
    ratio = forward_fill(np.where(both_known, ratio, np.nan))
    return np.where(np.isnan(ratio), before, ratio)


def _mean_error(actual: FloatArray, expected: FloatArray) -> FloatArray:
    """Return the mean absolute error of each series over the bins where both are known; else 0."""
    error = np.abs(actual - expected)
    both_known = ~np.isnan(error)
    return np.asarray(np.where(both_known, error, 0.0).sum(1) / np.maximum(both_known.sum(1), 1))
