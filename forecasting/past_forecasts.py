"""Forecasts made from past origins, and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PastForecasts:
    """Forecasts from past origins, each made from the bins before its origin only."""

    origins: IntArray  # [o] bins
    tops: FloatArray  # [methods, series, o] peak of the window on each method's path
    mixed_tops: FloatArray  # [series, o] peak of the ensemble
    paths: FloatArray  # [series, o, reach] of the selected method
    lifts: FloatArray  # [series, o] its peak divided by the peak of its path

    @classmethod
    def empty(cls, methods: int, series: int, reach: int) -> PastForecasts:
        """Return no forecasts, for numbers of ``methods`` and ``series``, and ``reach`` bins."""
        return cls(
            origins=np.empty(0, np.int64),
            tops=np.empty((methods, series, 0)),
            mixed_tops=np.empty((series, 0)),
            paths=np.empty((series, 0, reach)),
            lifts=np.empty((series, 0)),
        )

    @property
    def reach(self) -> int:
        """Return the number of bins of each path."""
        return int(self.paths.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RecentErrors:
    """Discounted mean errors of peaks, as they were known at each origin."""

    bias: FloatArray  # [methods, series, o] log ratio of the actual to the forecast peak
    errors: FloatArray  # [2 methods, series, o] of the peaks, then of the bias-corrected peaks
    mixed: FloatArray  # [series, o] of the ensemble


@dataclass(frozen=True, slots=True, eq=False)
class SelectedForecast:
    """Forecast of the method that is selected for each series and origin.

    ``lift`` is the forecast peak over the peak of the path. ``chosen`` is the method's index: first
    the methods, then the same with corrected peaks, last the ensemble.
    """

    path: FloatArray  # [series, o, steps]
    lift: FloatArray  # [series, o]
    chosen: IntArray  # [series, o]
    end_shares: FloatArray  # [methods, series, o] weights of the last step in the ensemble


@dataclass(frozen=True, slots=True, eq=False)
class PastPeaks:
    """Forecast and actual peaks of the past windows of one series."""

    starts_s: FloatArray  # [w] begin of each window, UTC epoch seconds, equally spaced
    actual: FloatArray  # [w] NaN for windows that were not observed
    forecast: FloatArray  # [w]
    scale: float  # mean demand per bin
