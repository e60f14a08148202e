"""Naive forecasts that every other method must beat. They have no parameters to fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, forward_fill, same_phase_bins, split_seasons
from forecasting.harmonics import DAY_S

LARGEST_LEVEL = 5.0  # largest ratio of the last day to the same day of the mean season


@dataclass(frozen=True, slots=True)
class LastValue:
    """Repeat the last observed amount."""

    def fit(self, panel: Panel) -> LastValue:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        last = forward_fill(panel.values)[:, origins - 1]
        return np.repeat(last[:, :, None], steps, axis=2)


@dataclass(frozen=True, slots=True)
class Seasonal:
    """Repeat the last observed amount of the same phase of the season.

    A phase that was never observed repeats the step before it.
    """

    season_s: float

    def fit(self, panel: Panel) -> Seasonal:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the last amounts of each phase of the season, ``[series, origins, steps]``.

        They are NaN for origins within the first season.
        """
        season = panel.season_bins(self.season_s)
        if not season:
            return np.full((len(panel.values), len(origins), steps), np.nan)
        filled = fill_by_phase(panel.values, season)
        paths = filled[:, np.maximum(same_phase_bins(origins, steps, season), 0)]
        paths[:, origins < season] = np.nan
        return forward_fill(paths, axis=2)


@dataclass(frozen=True, slots=True)
class MovingMaximum:
    """Repeat the largest of the last observed bins."""

    back_s: float  # length of the observed bins in seconds, at least one bin

    def fit(self, panel: Panel) -> MovingMaximum:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the largest amount of the last ``back_s`` seconds, repeated for every step.

        The shape is ``[series, origins, steps]``. Gaps do not shorten the period. NaN: nothing was
        observed before the origin.
        """
        observed = panel.observed_bins
        # Observed amounts of each series without the gaps between them, then NaN.
        observed_first = np.argsort(~observed, axis=1, kind="stable")
        amounts = np.take_along_axis(panel.values, observed_first, axis=1)
        count = np.cumsum(observed, axis=1)[:, origins - 1]  # observed bins before each origin
        back_bins = max(1, round(self.back_s / panel.bin_s))
        # [series, origin, back] indices in ``amounts`` of the last ones before each origin
        index = count[:, :, None] - 1 - np.arange(back_bins)
        series = np.arange(len(amounts))[:, None, None]
        latest = np.where(index >= 0, amounts[series, np.maximum(index, 0)], -np.inf)
        largest = np.where(count > 0, latest.max(axis=2), np.nan)
        return np.repeat(largest[:, :, None], steps, axis=2)


def fill_by_phase(values: FloatArray, season: int) -> FloatArray:
    """Return ``values [series, bins]`` with each gap as the last amount at its phase of the season.

    ``season`` is the number of bins of a season.
    """
    filled = forward_fill(split_seasons(values, season))
    return filled.reshape(len(values), -1)[:, : values.shape[1]]


@dataclass(frozen=True, slots=True)
class ShapeTimesLevel:
    """Repeat the mean of the last seasons (the shape), scaled to the level of the last day.

    The scale is the total of the last day divided by that of the same day of the shape.
    """

    season_s: float
    seasons: int  # largest number of seasons in the mean

    def fit(self, panel: Panel) -> ShapeTimesLevel:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the mean season at the level of the last day, ``[series, origins, steps]``.

        NaN if less than a season and a day is known.
        """
        season, day = panel.season_bins(self.season_s), panel.season_bins(DAY_S)
        if not season or not day:
            return np.full((len(panel.values), len(origins), steps), np.nan)
        filled = forward_fill(fill_by_phase(panel.values, season))
        # The bins of the last day, which gives the level, then those to forecast.
        last_day = origins[:, None] + np.arange(-day, 0)
        ahead = origins[:, None] + np.arange(steps) % season
        shape = self._shape(filled, np.concatenate([last_day, ahead], axis=1), season, day)
        level = _level_of_day(filled[:, np.maximum(last_day, 0)], shape[:, :, :day])
        return shape[:, :, day:] * level[:, :, None]

    def _shape(self, filled: FloatArray, bins: IntArray, season: int, day: int) -> FloatArray:
        """Return the mean of ``bins [origin, bin]`` one to ``seasons`` seasons earlier."""
        total = np.zeros((len(filled), *bins.shape))
        count = np.zeros(bins.shape)
        for seasons_back in range(1, self.seasons + 1):
            earlier = bins - seasons_back * season
            # Only whole seasons count, so that the shape and its level have the same days.
            is_whole = earlier[:, :1] >= 0
            total += np.where(is_whole, filled[:, np.maximum(earlier, 0)], 0.0)
            count += is_whole
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _level_of_day(amounts: FloatArray, shape: FloatArray) -> FloatArray:
    """Return the total of ``amounts`` over that of ``shape``, ``[series, origin]``; 1 for zeros."""
    both_known = ~np.isnan(amounts) & ~np.isnan(shape)
    shape_total = np.where(both_known, shape, 0.0).sum(axis=2)
    total = np.where(both_known, amounts, 0.0).sum(axis=2)
    level = total / np.where(shape_total > 0, shape_total, 1.0)
    return np.where(shape_total > 0, np.minimum(level, LARGEST_LEVEL), 1.0)
