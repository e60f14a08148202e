"""Naive forecasts that every other method must beat. They have no parameters to fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, forward_fill
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
        ahead = np.arange(steps)
        # The bin of the same phase in the last season before the origin, ``[origins, steps]``.
        same_phase = origins[:, None] + ahead - season * (1 + ahead // season)
        filled = fill_by_phase(panel.values, season)
        paths = np.where(same_phase >= 0, filled[:, np.maximum(same_phase, 0)], np.nan)
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
        seen = panel.observed_bins
        # The k-th observed bin of each series, so that gaps do not shorten the period.
        position = np.argsort(~seen, axis=1, kind="stable")
        amounts = np.take_along_axis(panel.values, position, axis=1)
        count = np.cumsum(seen, axis=1)[:, origins - 1]  # observed bins before each origin
        back_bins = max(1, round(self.back_s / panel.bin_s))
        index = count[:, :, None] - 1 - np.arange(back_bins)  # of the last observed bins
        series = np.arange(len(amounts))[:, None, None]
        latest = np.where(index >= 0, amounts[series, np.maximum(index, 0)], -np.inf)
        largest = np.where(count > 0, latest.max(axis=2), np.nan)
        return np.repeat(largest[:, :, None], steps, axis=2)


def fill_by_phase(values: FloatArray, season: int) -> FloatArray:
    """Return ``values [series, bins]`` with each gap as the last amount at its phase of the season.

    ``season`` is the number of bins of a season.
    """
    series, bins = values.shape
    seasons = -(-bins // season)
    padded = np.full((series, seasons * season), np.nan)
    padded[:, :bins] = values
    filled = forward_fill(padded.reshape(series, seasons, season))
    return filled.reshape(series, -1)[:, :bins]


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
        # The shape of the last day, which gives the level, and of the bins to forecast.
        last_day = np.arange(-day, 0)
        bins = origins[:, None] + np.concatenate([last_day, np.arange(steps) % season])
        total = np.zeros((len(filled), *bins.shape))
        count = np.zeros(bins.shape)
        for k in range(1, self.seasons + 1):
            source = bins - k * season
            # Only whole seasons count, so that the shape and its level have the same days.
            complete = (origins >= k * season + day)[:, None] & (source >= 0)
            total += np.where(complete, filled[:, np.maximum(source, 0)], 0.0)
            count += complete
        shape = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        last = filled[:, np.maximum(origins[:, None] + last_day, 0)]
        both_known = ~np.isnan(last) & ~np.isnan(shape[:, :, :day])
        shape_total = np.where(both_known, shape[:, :, :day], 0.0).sum(axis=2)
        last_total = np.where(both_known, last, 0.0).sum(axis=2)
        level = last_total / np.where(shape_total > 0, shape_total, 1.0)
        level = np.where(shape_total > 0, np.minimum(level, LARGEST_LEVEL), 1.0)
        return shape[:, :, day:] * level[:, :, None]
