"""What a forecaster hands over, and the protocol all forecasters follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from forecasting.arrays import FloatArray
from forecasting.demand import DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.said import Past

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Expected demand of one series over the coming bins, never negative.

    ``mean`` has shape ``[steps]`` and ``quantiles`` shape ``[len(levels), steps]``; both are
    amounts of ``unit`` per bin, like the series they continue.
    """

    key: SeriesKey
    start_s: float  # left edge of the first forecast bin, UTC epoch seconds
    bin_s: float
    unit: str
    mean: FloatArray
    levels: tuple[float, ...]
    quantiles: FloatArray
    method: str  # the one that was chosen, where it was left to "auto"
    order: str  # what was selected, e.g. "(2, 0, 1) + 3 daily harmonics"; "" where there is none
    fit_seconds: float
    reason: str = ""  # why this method, where it was chosen
    window_bins: int = 0  # of the windows that peaks are of; 0: all bins
    # Of the window that ends with each step; left out, the peak of the bins' own figures.
    tops: FloatArray | None = None  # [steps]
    peaks: FloatArray | None = None  # [len(levels), steps]
    past: Past | None = None  # how peaks were forecast before; None where nobody kept it

    def __post_init__(self) -> None:
        for name in ("mean", "quantiles", "tops", "peaks"):
            if getattr(self, name) is None:
                continue
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def steps(self) -> int:
        return int(self.mean.size)

    def quantile(self, level: float) -> FloatArray:
        """Amounts per bin at ``level``, linear between the levels held, shape ``[steps]``."""
        return self._between(level, self.quantiles)

    def peak(self, level: float | None = None) -> float:
        """The largest bin of the window that ends the forecast, expected or at ``level``."""
        if self.tops is not None and self.peaks is not None:
            quantiles = self.tops if level is None else self._between(level, self.peaks)
            return float(quantiles[-1])
        bins = self.mean if level is None else self.quantile(level)
        return float(bins[-self.window_bins :].max())

    def _between(self, level: float, quantiles: FloatArray) -> FloatArray:
        """``held [levels, steps]`` at ``level``, linear between the levels held."""
        if not self.levels[0] <= level <= self.levels[-1]:
            raise ForecastError(
                f"{self.key}: the quantile {level:g} is outside {self.levels[0]:g} to "
                f"{self.levels[-1]:g}, which the forecast holds; choose one within."
            )
        return np.asarray(between(np.asarray(self.levels), quantiles, np.array([level]))[0])


@dataclass(frozen=True, slots=True, eq=False)
class PanelForecast:
    """The next bins of every series: amounts per bin, never negative."""

    start_s: float
    bin_s: float
    mean: FloatArray  # [series, steps]
    top: FloatArray  # [series, steps] peak of the window that ends with the step
    levels: tuple[float, ...]
    quantiles: FloatArray  # [series, levels, steps]
    peaks: FloatArray  # [series, levels, steps] quantiles of top
    methods: tuple[str, ...]  # [series] what each rests on
    candidates: tuple[str, ...]  # [methods]
    errors: FloatArray  # [methods, series] recent error of its peaks over mean demand; inf: unknown
    shares: FloatArray  # [methods, series] of each in the ensemble
    past: tuple[Past, ...]  # [series] peaks as they were forecast before, and as they came


def between(levels: FloatArray, quantiles: FloatArray, targets: FloatArray) -> FloatArray:
    """``held [levels, steps]`` at each level ``wanted [k]``, linear between those held and on
    beyond the outermost: [k, steps]."""
    above = np.clip(np.searchsorted(levels, targets), 1, len(levels) - 1)
    share = (targets - levels[above - 1]) / (levels[above] - levels[above - 1])
    low, high = quantiles[above - 1], quantiles[above]
    return np.asarray(low + share[:, None] * (high - low), np.float64)


class Forecaster(Protocol):
    """Fit once, then follow: parameters from ``fit``, state moved on by ``update``."""

    @property
    def method(self) -> str: ...

    def fit(self, series: DemandSeries) -> Self:
        """Estimate parameters on ``series``; raises SeriesTooShort with what it would need."""
        ...

    def update(self, series: DemandSeries) -> Self:
        """Take in the bins that follow the fitted ones, parameters kept as they are."""
        ...

    def predict(self, steps: int) -> Forecast:
        """The next ``steps`` bins after the last one seen."""
        ...
