"""Many series on the same bins, as one array: what the batched forecasters work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.holidays import NO_HOLIDAYS, Holidays

LEAST = 1e-200  # amount per bin that is told from none: less overflows whatever is divided by it


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Amounts per bin, ``values [series, bins]``, NaN for gaps."""

    start_s: float  # left edge of the first bin, UTC epoch seconds
    bin_s: float
    values: FloatArray
    holidays: Holidays = NO_HOLIDAYS

    @classmethod
    def of(cls, series: Sequence[DemandSeries]) -> Panel:
        """The series side by side; raises ForecastError where their bins are not the same."""
        first = series[0]
        for demand in series:
            same = (demand.bin_s, demand.bins, demand.holidays) == (
                first.bin_s,
                first.bins,
                first.holidays,
            )
            if not same or abs(demand.start_s - first.start_s) > 1e-6 * first.bin_s:
                raise ForecastError(
                    f"{demand.key}: {demand.bins} bins of {demand.bin_s:g} s from "
                    f"{demand.start_s:.0f} stand beside {first.bins} of {first.bin_s:g} s from "
                    f"{first.start_s:.0f}; series forecast together need the same bins, with "
                    "gaps (NaN) where they lack some."
                )
        values = np.stack([demand.values for demand in series])
        return cls(first.start_s, first.bin_s, values, first.holidays)

    @property
    def bins(self) -> int:
        return int(self.values.shape[1])

    @property
    def observed(self) -> BoolArray:
        return ~np.isnan(self.values)

    def upto(self, bins: int) -> Panel:
        return replace(self, values=self.values[:, :bins])

    def season(self, season_s: float) -> int:
        """Bins of a season, 0 where it is no whole number of them."""
        bins = round(season_s / self.bin_s)
        return bins if bins > 0 and abs(bins * self.bin_s - season_s) < 1e-6 * season_s else 0


def last_observed(values: FloatArray, axis: int = 1) -> FloatArray:
    """Each bin's amount, or that of the last observed bin before it; NaN before the first."""
    index = np.arange(values.shape[axis])
    index = index.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    source = np.where(np.isnan(values), 0, index)
    np.maximum.accumulate(source, axis=axis, out=source)
    return np.take_along_axis(values, source, axis)


def at_origins(values: FloatArray, origins: IntArray, steps: int) -> FloatArray:
    """``values [series, bins]`` in the ``steps`` bins after each origin: [series, o, steps]."""
    return values[:, origins[:, None] + np.arange(steps)]


def scale_of(values: FloatArray) -> FloatArray:
    """Mean amount of each series, 1 where it has as good as none: [series, 1]."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    return np.where(mean > LEAST, mean, 1.0)[:, None]
