"""Define the result of a forecaster, and the protocol that all forecasters follow."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from forecasting.arrays import FloatArray
from forecasting.demand import DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.past_forecasts import PastPeaks

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class MethodScore:
    """How a method did in the comparison of methods for a series."""

    method: str
    error: float  # error of recent peaks, as a share of mean demand
    share: float  # weight of the method in the ensemble, for the first window ahead
    end_share: float  # the same, for the last step
    chosen: bool


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Expected demand of one series over the coming bins, never negative.

    ``mean`` has the shape ``[steps]`` and ``quantiles`` the shape ``[len(levels), steps]``. Both
    are amounts of ``unit`` per bin.
    """

    key: SeriesKey
    start_s: float  # left edge of the first forecast bin, UTC epoch seconds
    bin_s: float
    unit: str
    mean: FloatArray
    levels: tuple[float, ...]
    quantiles: FloatArray
    method: str  # for "auto", the chosen method
    order: str  # selected parameters, such as "(2, 0, 1) + 3 daily harmonics"; "" if none
    fit_seconds: float
    reason: str = ""  # why the method was chosen, for "auto"
    window_bins: int = 0  # length of the window whose peak ``peak`` returns; 0: all bins
    # Expected peak of the window that ends with each step, and its quantiles. None: peaks are those
    # of ``mean`` and ``quantiles``.
    peaks: FloatArray | None = None  # [steps]
    peak_quantiles: FloatArray | None = None  # [len(levels), steps]
    past: PastPeaks | None = None
    compared: tuple[MethodScore, ...] = ()  # best first, for "auto" and "ensemble"

    def __post_init__(self) -> None:
        for name in ("mean", "quantiles", "peaks", "peak_quantiles"):
            if getattr(self, name) is None:
                continue
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def steps(self) -> int:
        return int(self.mean.size)

    def quantile(self, level: float) -> FloatArray:
        """Return the quantile ``level`` in amounts per bin, linear between levels, ``[steps]``."""
        return self._at_level(level, self.quantiles)

    def peak(self, level: float | None = None) -> float:
        """Return the peak of the last window: the amount of its largest bin.

        ``level`` is the probability of the quantile to return; None: the expected peak.
        """
        if self.peaks is not None and self.peak_quantiles is not None:
            peaks = self.peaks if level is None else self._at_level(level, self.peak_quantiles)
            return float(peaks[-1])
        bins = self.mean if level is None else self.quantile(level)
        return float(bins[-self.window_bins :].max())

    def _at_level(self, level: float, quantiles: FloatArray) -> FloatArray:
        """Return ``quantiles [len(levels), steps]`` interpolated to ``level``."""
        if not self.levels[0] <= level <= self.levels[-1]:
            raise ForecastError(
                f"{self.key}: the quantile {level:g} is outside {self.levels[0]:g} to "
                f"{self.levels[-1]:g}, which the forecast holds. Choose one within."
            )
        levels, wanted = np.asarray(self.levels), np.array([level])
        return np.asarray(interpolate_quantiles(levels, quantiles, wanted)[0])


@dataclass(frozen=True, slots=True, eq=False)
class PanelForecast:
    """Expected demand of every series of a panel over the coming bins, never negative.

    Amounts are per bin. The window is the time whose peak decides between methods.
    """

    start_s: float
    bin_s: float
    mean: FloatArray  # [series, steps]
    peak: FloatArray  # [series, steps] expected peak of the window that ends with the step
    levels: tuple[float, ...]
    quantiles: FloatArray  # [series, levels, steps]
    peak_quantiles: FloatArray  # [series, levels, steps] quantiles of ``peak``
    methods: tuple[str, ...]  # [series] the chosen method
    candidates: tuple[str, ...]  # [methods] all methods that were compared
    errors: FloatArray  # [methods, series] recent error of peaks over mean demand; inf: unknown
    shares: FloatArray  # [methods, series] weights of the ensemble, for the window
    end_shares: FloatArray  # [methods, series] the same, for the last step
    orders: tuple[str, ...]  # [series] of ARIMA; "" where it was not fitted
    past: tuple[PastPeaks, ...]  # [series]
    limit: FloatArray  # [series, 1] largest amount that is forecast; infinite from a week on
    # [series, origins, steps] errors (log ratios) of past forecasts; NaN: unknown
    scores: FloatArray
    growth_share: float  # share of joint paths that follow the prior for growth
    growth: FloatArray  # [series] standard deviation of a day's log growth
    swing: float  # log amplitude of a daily rhythm of unknown phase; 0 if the rhythm is known


def interpolate_quantiles(
    levels: FloatArray, quantiles: FloatArray, wanted: FloatArray
) -> FloatArray:
    """Return quantiles at the levels ``wanted``, linear between ``quantiles [levels, steps]``.

    Beyond the outermost levels they are extrapolated. The result is ``[wanted, steps]``.
    """
    above = np.clip(np.searchsorted(levels, wanted), 1, len(levels) - 1)
    share = (wanted - levels[above - 1]) / (levels[above] - levels[above - 1])
    low, high = quantiles[above - 1], quantiles[above]
    return np.asarray(low + share[:, None] * (high - low), np.float64)


class Forecaster(Protocol):
    """Protocol of a forecaster: ``fit`` estimates parameters, ``update`` only adds later bins."""

    @property
    def method(self) -> str: ...

    def fit(self, series: DemandSeries) -> Self:
        """Estimate parameters on ``series``; raise SeriesTooShort if it has too few bins."""
        ...

    def update(self, series: DemandSeries) -> Self:
        """Add the bins that follow the last one seen, without changing parameters."""
        ...

    def predict(self, steps: int) -> Forecast:
        """Forecast the next ``steps`` bins."""
        ...
