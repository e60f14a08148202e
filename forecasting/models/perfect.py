"""The truth itself: the bound that no forecast can pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES, Forecast
from forecasting.models.tail import Tail, check_steps, fitted


class Perfect:
    """Told the truth: the bound no forecast can pass, for comparison only.

    Every quantile is the truth. A gap in the truth is interpolated between its neighbours.
    """

    method = "perfect"

    def __init__(self, truth: DemandSeries) -> None:
        Tail.of(truth)
        index = np.arange(truth.bins)
        known = ~np.isnan(truth.values)
        if not known.any():
            raise ForecastError(
                f"{truth.key}: the truth holds no observed bin; give one that does."
            )
        self._truth = replace(truth, values=np.interp(index, index[known], truth.values[known]))
        self._tail: Tail | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Notes where ``series`` ends; raises ForecastError unless the truth shares its bins."""
        tail = Tail.of(series)
        truth = self._truth
        offset = (series.start_s - truth.start_s) / truth.bin_s
        same = (series.key, series.bin_s, series.unit) == (truth.key, truth.bin_s, truth.unit)
        if not same or abs(offset - round(offset)) > 1e-6:
            raise ForecastError(
                f"{series.key}: the truth given is {truth.key} in {truth.unit} bins of "
                f"{truth.bin_s:g} s; give the truth of the same series on the same bin edges."
            )
        self._tail = tail
        return self

    def update(self, series: DemandSeries) -> Self:
        self._tail = fitted(self._tail, self.method).follow(series)
        return self

    def predict(self, steps: int) -> Forecast:
        tail = fitted(self._tail, self.method)
        check_steps(steps, self.method)
        first = round((tail.end_s - self._truth.start_s) / tail.bin_s)
        if first < 0 or first + steps > self._truth.bins:
            raise ForecastError(
                f"{tail.key}: the truth covers bins 0 to {self._truth.bins - 1} and bins {first} "
                f"to {first + steps - 1} are asked for; choose origins whose forecasts end inside."
            )
        mean = self._truth.values[first : first + steps]
        return tail.forecast(
            mean=mean,
            quantiles=np.tile(mean, (len(QUANTILES), 1)),
            method=self.method,
            order="",
            fit_seconds=0.0,
        )
