"""Many series on the same bins as one array, the input of the forecasting rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.holidays import NO_HOLIDAYS, Holidays

SMALLEST_MEAN = 1e-200  # amount per bin: dividing by less would overflow


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Amounts per bin, ``values [series, bins]``, NaN for gaps."""

    start_s: float  # left edge of the first bin, UTC epoch seconds
    bin_s: float
    values: FloatArray
    holidays: Holidays = NO_HOLIDAYS
    level_errors: FloatArray | None = None  # [series], see DemandSeries.level_error

    @classmethod
    def of(cls, series: Sequence[DemandSeries]) -> Panel:
        """Stack ``series``; raise ForecastError when their bins differ."""
        first = series[0]
        for demand in series:
            same_bins = (demand.bin_s, demand.bins, demand.holidays) == (
                first.bin_s,
                first.bins,
                first.holidays,
            )
            if not same_bins or abs(demand.start_s - first.start_s) > 1e-6 * first.bin_s:
                raise ForecastError(
                    f"{demand.key}: {demand.bins} bins of {demand.bin_s:g} s from "
                    f"{demand.start_s:.0f} differ from {first.bins} of {first.bin_s:g} s from "
                    f"{first.start_s:.0f}. Series forecast together need the same bins, with "
                    "gaps (NaN) for missing ones."
                )
        values = np.stack([demand.values for demand in series])
        errors = np.array([demand.level_error for demand in series])
        return cls(first.start_s, first.bin_s, values, first.holidays, errors)

    @property
    def bins(self) -> int:
        return int(self.values.shape[1])

    @property
    def observed(self) -> BoolArray:
        """Return the mask of observed bins, ``[series, bins]``."""
        return ~np.isnan(self.values)

    def season_bins(self, season_s: float) -> int:
        """Return the number of bins of a season, or 0 if it is not whole."""
        bins = round(season_s / self.bin_s)
        return bins if bins > 0 and abs(bins * self.bin_s - season_s) < 1e-6 * season_s else 0


def forward_fill(values: FloatArray, axis: int = 1) -> FloatArray:
    """Replace each gap by the last amount before it; gaps at the begin stay NaN."""
    index = np.arange(values.shape[axis])
    index = index.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    source = np.where(np.isnan(values), 0, index)
    np.maximum.accumulate(source, axis=axis, out=source)
    return np.take_along_axis(values, source, axis)


def windows_at(values: FloatArray, origins: IntArray, steps: int) -> FloatArray:
    """Return the ``steps`` bins of ``values`` from each origin on, ``[series, origins, steps]``."""
    return values[:, origins[:, None] + np.arange(steps)]


def mean_scale(values: FloatArray) -> FloatArray:
    """Return the mean amount of each series, or 1 if it is zero: ``[series, 1]``."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    return np.where(mean > SMALLEST_MEAN, mean, 1.0)[:, None]
