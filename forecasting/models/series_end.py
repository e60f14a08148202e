"""Check that new bins follow the last seen bin of a series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from forecasting.demand import DemandSeries, SeriesKey
from forecasting.errors import ForecastError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SeriesEnd:
    """The key of a series and the right edge of its last seen bin, which an update continues."""

    key: SeriesKey
    bin_s: float
    unit: str
    end_s: float  # UTC epoch seconds

    @classmethod
    def of(cls, series: DemandSeries) -> SeriesEnd:
        """Return the end of ``series``; raise ForecastError for negative or infinite amounts."""
        _check_amounts(series)
        return cls(series.key, series.bin_s, series.unit, series.end_s)

    def extend(self, series: DemandSeries) -> SeriesEnd:
        """Return the end of ``series``; raise ForecastError unless it begins at this end."""
        _check_amounts(series)
        same_series = (series.key, series.bin_s, series.unit) == (self.key, self.bin_s, self.unit)
        if not same_series or abs(series.start_s - self.end_s) > 1e-6 * self.bin_s:
            raise ForecastError(
                f"{self.key}: an update must hold the {self.unit} bins of {self.bin_s:g} s from "
                f"epoch second {self.end_s:.0f} on, not {series.key} in {series.unit} bins of "
                f"{series.bin_s:g} s from {series.start_s:.0f}. Give unseen bins as gaps (NaN)."
            )
        return replace(self, end_s=self.end_s + series.bins * self.bin_s)


def require_fitted(state: T | None, method: str) -> T:
    """Return ``state``; raise ForecastError if it is None because ``fit`` was not called."""
    if state is None:
        raise ForecastError(f"{method}: fit a series before updating or predicting.")
    return state


def check_steps(steps: int, method: str) -> None:
    """Raise ForecastError unless there is at least one step."""
    if steps < 1:
        raise ForecastError(f"{method}: ask for at least one step, not {steps}.")


def _check_amounts(series: DemandSeries) -> None:
    """Raise ForecastError for negative or infinite amounts."""
    wrong = np.flatnonzero((series.values < 0) | np.isinf(series.values))
    if wrong.size:
        raise ForecastError(
            f"{series.key}: bin {wrong[0]} holds {series.values[wrong[0]]:g} {series.unit}; "
            "amounts must be finite and not negative, with NaN for a gap."
        )
