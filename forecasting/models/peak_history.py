"""Peaks of past windows as one forecaster forecast them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.panel import windows_at
from forecasting.past_forecasts import PastPeaks

WINDOWS = 336  # most windows, as in ``panel_forecaster.ORIGINS``
FIRST = 0.25  # share of the history that is too short to forecast from


@dataclass(frozen=True, slots=True, eq=False)
class PeakHistory:
    """Adjacent windows of ``horizon_bins``, each ``lead_bins`` after its origin."""

    horizon_bins: int
    lead_bins: int
    next_origin: int  # bins
    origins: IntArray  # [w] bins
    forecast: FloatArray  # [w] amount per bin

    @classmethod
    def empty(cls, horizon_bins: int, lead_bins: int, bins: int) -> Self:
        """Return no windows, the first one to come in a history of ``bins`` bins."""
        windows = min(WINDOWS, int((1 - FIRST) * bins) // horizon_bins)
        first = max(1, bins - windows * horizon_bins)
        return cls(horizon_bins, lead_bins, first, np.empty(0, np.int64), np.empty(0))

    def append(self, origin: int, forecast: float) -> Self:
        """Add the forecast peak of the window of ``origin``."""
        return replace(
            self,
            next_origin=origin + self.horizon_bins,
            origins=np.append(self.origins, origin),
            forecast=np.append(self.forecast, forecast),
        )

    def past_peaks(self, history: DemandSeries, scale: float) -> PastPeaks:
        """Compare with ``history``; windows with a gap are NaN, later windows are dropped."""
        over = self.origins + self.lead_bins + self.horizon_bins <= history.bins
        first = self.origins[over] + self.lead_bins
        actual = windows_at(history.values[None], first, self.horizon_bins)[0].max(axis=1)
        starts = np.asarray(history.start_s + history.bin_s * first, np.float64)
        return PastPeaks(starts, actual, self.forecast[over], scale)
