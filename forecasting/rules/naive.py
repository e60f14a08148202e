"""The forecasts any other must beat. Nothing is learnt: each rule is its own parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.panel import Panel, last_observed


@dataclass(frozen=True, slots=True)
class LastValue:
    """What comes is as now: the last observed amount, for every step."""

    def learn(self, panel: Panel) -> LastValue:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        last = last_observed(panel.values)[:, origins - 1]
        return np.repeat(last[:, :, None], steps, axis=2)


@dataclass(frozen=True, slots=True)
class Seasonal:
    """What comes is as a season ago: the last observed amount of the same phase.

    A phase that was never observed takes the step before it.
    """

    season_s: float

    def learn(self, panel: Panel) -> Seasonal:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        season = panel.season(self.season_s)
        if not season:
            return np.full((len(panel.values), len(origins), steps), np.nan)
        ahead = np.arange(steps)
        source = origins[:, None] + ahead - season * (1 + ahead // season)
        before = by_phase(panel.values, season)
        paths = np.where(source >= 0, before[:, np.maximum(source, 0)], np.nan)
        paths[:, origins < season] = np.nan
        return last_observed(paths, axis=2)


@dataclass(frozen=True, slots=True)
class MovingMaximum:
    """What comes is as the largest of the last observed bins, for every step."""

    back_s: float  # how much of what was observed; at least one bin

    def learn(self, panel: Panel) -> MovingMaximum:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        seen = panel.observed
        # the k-th observed bin of each series, so that gaps do not shorten the look back
        position = np.argsort(~seen, axis=1, kind="stable")
        amounts = np.take_along_axis(panel.values, position, axis=1)
        count = np.cumsum(seen, axis=1)[:, origins - 1]
        back = count[:, :, None] - 1 - np.arange(max(1, round(self.back_s / panel.bin_s)))
        series = np.arange(len(amounts))[:, None, None]
        latest = np.where(back >= 0, amounts[series, np.maximum(back, 0)], -np.inf)
        largest = np.where(count > 0, latest.max(axis=2), np.nan)
        return np.repeat(largest[:, :, None], steps, axis=2)


def by_phase(values: FloatArray, season: int) -> FloatArray:
    """Each bin's amount, or the last one observed at its phase of the season: [series, bins]."""
    series, bins = values.shape
    seasons = -(-bins // season)
    padded = np.full((series, seasons * season), np.nan)
    padded[:, :bins] = values
    seen = last_observed(padded.reshape(series, seasons, season))
    return seen.reshape(series, -1)[:, :bins]
