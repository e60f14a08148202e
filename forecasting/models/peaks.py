"""What one forecaster said of past windows' peaks, window after window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.panel import at_origins
from forecasting.said import Past

WINDOWS = 336  # as many as are judged where series are forecast together
FIRST = 0.25  # share of the history that is not judged: there hardly anything was known


@dataclass(frozen=True, slots=True, eq=False)
class Peaks:
    """Windows of ``horizon_bins``, one right after the other, each ``lead_bins`` after its
    origin."""

    horizon_bins: int
    lead_bins: int
    next_origin: int  # bins
    origins: IntArray  # [w] bins
    told: FloatArray  # [w] amount per bin

    @classmethod
    def none(cls, horizon_bins: int, lead_bins: int, bins: int) -> Self:
        """Of a history of so many bins, nothing said yet."""
        windows = min(WINDOWS, int((1 - FIRST) * bins) // horizon_bins)
        first = max(1, bins - windows * horizon_bins)
        return cls(horizon_bins, lead_bins, first, np.empty(0, np.int64), np.empty(0))

    def then(self, origin: int, forecast: float) -> Self:
        return replace(
            self,
            next_origin=origin + self.horizon_bins,
            origins=np.append(self.origins, origin),
            told=np.append(self.told, forecast),
        )

    def past(self, history: DemandSeries, scale: float) -> Past:
        """Beside what came of the windows that are over; NaN where a bin was not observed."""
        over = self.origins + self.lead_bins + self.horizon_bins <= history.bins
        first = self.origins[over] + self.lead_bins
        came = at_origins(history.values[None], first, self.horizon_bins)[0].max(axis=1)
        starts = np.asarray(history.start_s + history.bin_s * first, np.float64)
        return Past(starts, came, self.told[over], scale)
