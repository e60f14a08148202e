"""Hold forecasts made from past origins (the bins at which they began), and their errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PastForecasts:
    """Forecasts from past origins, each made from the bins before its origin only."""

    origins: IntArray  # [origin] first bin of each forecast
    peaks: FloatArray  # [method, series, origin] peak of each method's path in the window
    ensemble_peaks: FloatArray  # [series, origin] peak of the ensemble in the window
    paths: FloatArray  # [series, origin, step] forecast of the selected method
    peak_factors: FloatArray  # [series, origin] its forecast peak divided by the peak of its path

    @classmethod
    def empty(cls, methods: int, series: int, reach: int) -> PastForecasts:
        """Return an empty record for so many ``methods`` and ``series``, with ``reach`` steps."""
        return cls(
            origins=np.empty(0, np.int64),
            peaks=np.empty((methods, series, 0)),
            ensemble_peaks=np.empty((series, 0)),
            paths=np.empty((series, 0, reach)),
            peak_factors=np.empty((series, 0)),
        )

    def add(self, **figures: FloatArray | IntArray) -> PastForecasts:
        """Return the record with the ``figures`` of further origins, by the names of fields."""
        columns: dict[str, FloatArray | IntArray] = {}
        for name, new in figures.items():
            origin_axis = 1 if name == "paths" else -1
            columns[name] = np.concatenate([getattr(self, name), new], axis=origin_axis)
        return replace(self, **columns)  # type: ignore[arg-type]

    @property
    def reach(self) -> int:
        """Return the number of steps of each path."""
        return int(self.paths.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RecentErrors:
    """Discounted mean errors of peaks, as they were known at each origin."""

    bias: FloatArray  # [method, series, origin] log ratio of actual to forecast peaks
    # [2 methods, series, origin] absolute errors of the peaks, then of the bias-corrected peaks
    errors: FloatArray
    ensemble: FloatArray  # [series, origin] absolute errors of the ensemble's peaks


@dataclass(frozen=True, slots=True, eq=False)
class SelectedForecast:
    """The forecast of the method that is selected for each series and origin.

    ``peak_factor`` is the forecast peak divided by the peak of the path. ``chosen`` is an index:
    first the methods, then the methods with corrected peaks, then the ensemble and the last day.
    """

    path: FloatArray  # [series, origin, step]
    peak_factor: FloatArray  # [series, origin]
    chosen: IntArray  # [series, origin]
    shares: FloatArray  # [method, series, origin] weights in the ensemble
    end_shares: FloatArray  # [method, series, origin] the same at the last step


@dataclass(frozen=True, slots=True, eq=False)
class PastPeaks:
    """Forecast and actual peaks of the past windows of one series."""

    starts_s: FloatArray  # [window] begin, UTC epoch seconds, equally spaced
    actual: FloatArray  # [window] NaN for windows that were not observed
    forecast: FloatArray  # [window]
    scale: float  # mean demand per bin
