"""The end of what a forecaster has seen: checks that new bins follow on, labels forecasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from forecasting.arrays import FloatArray
from forecasting.demand import DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES, Forecast
from forecasting.said import Past

T = TypeVar("T")

MIN_OBSERVED = 24  # bins for ARIMA: three for each of eight parameters, (3, d, 2) with a mean


@dataclass(frozen=True, slots=True)
class Tail:
    """Identity of a series and the right edge of its last seen bin."""

    key: SeriesKey
    bin_s: float
    unit: str
    end_s: float  # UTC epoch seconds

    @classmethod
    def of(cls, series: DemandSeries) -> Tail:
        """The tail of ``series``; raises ForecastError where an amount is negative or infinite."""
        _check_amounts(series)
        return cls(series.key, series.bin_s, series.unit, series.end_s)

    def follow(self, series: DemandSeries) -> Tail:
        """The tail after ``series``, which must be the bins right after this one."""
        _check_amounts(series)
        same = (series.key, series.bin_s, series.unit) == (self.key, self.bin_s, self.unit)
        if not same or abs(series.start_s - self.end_s) > 1e-6 * self.bin_s:
            raise ForecastError(
                f"{self.key}: an update must hold the {self.unit} bins of {self.bin_s:g} s from "
                f"epoch second {self.end_s:.0f} on, not {series.key} in {series.unit} bins of "
                f"{series.bin_s:g} s from {series.start_s:.0f}; give unseen bins as gaps (NaN)."
            )
        return replace(self, end_s=self.end_s + series.bins * self.bin_s)

    def forecast(
        self,
        mean: FloatArray,
        quantiles: FloatArray,
        method: str,
        order: str,
        fit_seconds: float,
        reason: str = "",
        window_bins: int = 0,
        tops: FloatArray | None = None,
        peaks: FloatArray | None = None,
        past: Past | None = None,
    ) -> Forecast:
        """The forecast of the bins after this tail: ``mean [steps]``, ``quantiles [7, steps]``."""
        return Forecast(
            key=self.key,
            start_s=self.end_s,
            bin_s=self.bin_s,
            unit=self.unit,
            mean=mean,
            levels=QUANTILES,
            quantiles=quantiles,
            method=method,
            order=order,
            fit_seconds=fit_seconds,
            reason=reason,
            window_bins=window_bins,
            tops=tops,
            peaks=peaks,
            past=past,
        )


def fitted(state: T | None, method: str) -> T:
    """``state``, or ForecastError where nothing has been fitted yet."""
    if state is None:
        raise ForecastError(f"{method}: fit a series before updating or predicting.")
    return state


def check_steps(steps: int, method: str) -> None:
    if steps < 1:
        raise ForecastError(f"{method}: ask for at least one step, not {steps}.")


def _check_amounts(series: DemandSeries) -> None:
    wrong = np.flatnonzero((series.values < 0) | np.isinf(series.values))
    if wrong.size:
        raise ForecastError(
            f"{series.key}: bin {wrong[0]} holds {series.values[wrong[0]]:g} {series.unit}; "
            "amounts must be finite and not negative, with NaN for a gap."
        )
