"""Demand in equal bins, the input of forecasting and planning, and panels of several series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.errors import ForecastError
from forecasting.holidays import NO_HOLIDAYS, Holidays

REQUESTS = "requests"
INPUT_TOKENS = "input_tokens"
OUTPUT_TOKENS = "output_tokens"
TOTAL_TOKENS = "total_tokens"  # for files that do not separate input and output

NEW_BINS = 48  # bins after its first demand that a new series needs, to forecast from them alone
IDLE_SHARE = 0.05  # largest share of these bins without demand
SMALLEST_MEAN = 1e-200  # amount per bin: dividing by less would overflow


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """Identity of a series: a model, a region and a tier."""

    model: str
    region: str
    tier: str

    def __str__(self) -> str:
        return f"{self.model} / {self.region} / {self.tier}"


@dataclass(frozen=True, slots=True, eq=False)
class DemandSeries:
    """Amounts per bin of one model, region and tier.

    ``values`` has the shape ``[bins]``: the amount of ``unit``, one of the constants above, that
    arrived in each bin. NaN marks a gap: a bin that was not observed. A bin without demand is 0.
    """

    key: SeriesKey
    start_s: float  # left edge of the first bin, UTC epoch seconds
    bin_s: float
    values: FloatArray
    unit: str
    holidays: Holidays = NO_HOLIDAYS
    # Relative standard error of all values together, if they come from a sample of requests.
    level_error: float = 0.0

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)  # a copy, since it becomes read-only
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def bins(self) -> int:
        return int(self.values.size)

    @property
    def end_s(self) -> float:
        """Return the right edge of the last bin, UTC epoch seconds."""
        return self.start_s + self.bins * self.bin_s

    @property
    def gaps(self) -> int:
        return int(np.isnan(self.values).sum())

    def rate(self) -> FloatArray:
        """Return the amount per second in each bin, ``[bins]``; NaN for gaps."""
        return self.values / self.bin_s

    def window(self, start_s: float, end_s: float) -> DemandSeries:
        """Return the bins that lie completely inside ``[start_s, end_s)`` (epoch s) as a series."""
        tolerance = 1e-6  # of a bin: edges are sums of floats
        first = max(0, int(np.ceil((start_s - self.start_s) / self.bin_s - tolerance)))
        last = min(self.bins, int(np.floor((end_s - self.start_s) / self.bin_s + tolerance)))
        return replace(
            self,
            start_s=self.start_s + first * self.bin_s,
            values=self.values[first : max(first, last)],
        )

    def since_launch(self, before_s: float) -> DemandSeries:
        """Return the series from its first demand on: forecasts would learn the zeros before it.

        The zeros stay if the series has too few bins, or too many idle ones, from its first demand
        up to ``before_s`` (epoch s). It is then an idle series and not a new one.
        """
        known = self.window(self.start_s, before_s).values
        first = int(np.argmax(np.nan_to_num(known) > 0)) if known.size else 0
        later = known[first:][~np.isnan(known[first:])]
        if later.size < NEW_BINS or np.mean(later == 0) > IDLE_SHARE:
            return self
        return self.window(self.start_s + first * self.bin_s, self.end_s)

    def resample(self, bin_s: float) -> DemandSeries:
        """Return the series summed over bins of ``bin_s``, a whole multiple of the present width.

        A coarse bin that contains a gap is a gap. An incomplete last bin is dropped.
        """
        factor = round(bin_s / self.bin_s)
        if factor < 1 or abs(factor * self.bin_s - bin_s) > 1e-6 * bin_s:
            raise ForecastError(
                f"{self.key}: {bin_s:g} s is not a whole multiple of the bin width "
                f"{self.bin_s:g} s. Choose one that is."
            )
        covered = self.bins // factor * factor
        return replace(
            self, bin_s=bin_s, values=self.values[:covered].reshape(-1, factor).sum(axis=1)
        )


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
        """Return ``series``, which have the same bins, as one panel."""
        first = series[0]
        values = np.stack([demand.values for demand in series])
        errors = np.array([demand.level_error for demand in series])
        return cls(first.start_s, first.bin_s, values, first.holidays, errors)

    @property
    def bins(self) -> int:
        return int(self.values.shape[1])

    @property
    def observed_bins(self) -> BoolArray:
        """Return the mask of observed bins, ``[series, bins]``."""
        return ~np.isnan(self.values)

    def season_bins(self, season_s: float) -> int:
        """Return the number of bins of a season, or 0 if it is not a whole number."""
        bins = round(season_s / self.bin_s)
        return bins if bins > 0 and abs(bins * self.bin_s - season_s) < 1e-6 * season_s else 0


def forward_fill(values: FloatArray, axis: int = 1) -> FloatArray:
    """Return ``values`` with each gap as the last amount before it; gaps at the begin stay NaN.

    ``axis`` is that of time.
    """
    index = np.arange(values.shape[axis])
    index = index.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    source = np.where(np.isnan(values), 0, index)
    np.maximum.accumulate(source, axis=axis, out=source)
    return np.take_along_axis(values, source, axis)


def windows_at(values: FloatArray, origins: IntArray, steps: int) -> FloatArray:
    """Return the ``steps`` bins of ``values [series, bins]`` from each origin on.

    The shape is ``[series, origins, steps]``.
    """
    return values[:, origins[:, None] + np.arange(steps)]


def same_phase_bins(origins: IntArray, steps: int, season: int) -> IntArray:
    """Return the last bin before each origin at the phase of each step, ``[origins, steps]``.

    ``season`` is the number of bins of a season. A bin before the history is negative.
    """
    ahead = np.arange(steps)
    seasons_back = 1 + ahead // season
    return np.asarray(origins[:, None] + ahead - season * seasons_back)


def split_seasons(values: FloatArray, season: int) -> FloatArray:
    """Return ``values [series, bins]`` as ``[series, seasons, season]``, with NaN after the end."""
    series, bins = values.shape
    seasons = -(-bins // season)  # rounded up
    padded = np.full((series, seasons * season), np.nan)
    padded[:, :bins] = values
    return padded.reshape(series, seasons, season)


def mean_scale(values: FloatArray) -> FloatArray:
    """Return the mean amount of each series, or 1 if it is zero: ``[series, 1]``."""
    seen = ~np.isnan(values)
    mean = np.where(seen, values, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    return np.where(mean > SMALLEST_MEAN, mean, 1.0)[:, None]
