"""Make a forecaster from the name of its method, and define the oracle baseline "perfect"."""

from dataclasses import replace
from typing import Self

import numpy as np

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES, Forecast, Forecaster
from forecasting.rule_forecaster import RuleForecaster, SeriesEnd, check_steps, require_fitted
from forecasting.rules.registry import PANEL_METHODS

PERFECT = "perfect"
METHODS = (*PANEL_METHODS, PERFECT)


class Perfect:
    """A forecaster that returns the true demand, for comparison only.

    Every quantile is the truth. Gaps in the truth are interpolated.
    """

    method = PERFECT

    def __init__(self, truth: DemandSeries) -> None:
        SeriesEnd.of(truth)  # raises an error for impossible amounts
        index = np.arange(truth.bins)
        observed = ~np.isnan(truth.values)
        if not observed.any():
            raise ForecastError(
                f"{truth.key}: the truth holds no observed bin. Give one that does."
            )
        self._truth = replace(
            truth, values=np.interp(index, index[observed], truth.values[observed])
        )
        self._end: SeriesEnd | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Remember the end of ``series``; raise ForecastError if its bins are not the truth's."""
        end = SeriesEnd.of(series)
        truth = self._truth
        offset = (series.start_s - truth.start_s) / truth.bin_s
        same_series = (series.key, series.bin_s, series.unit) == (
            truth.key,
            truth.bin_s,
            truth.unit,
        )
        if not same_series or abs(offset - round(offset)) > 1e-6:
            raise ForecastError(
                f"{series.key}: the truth given is {truth.key} in {truth.unit} bins of "
                f"{truth.bin_s:g} s. Give the truth of the same series on the same bin edges."
            )
        self._end = end
        return self

    def update(self, series: DemandSeries) -> Self:
        self._end = require_fitted(self._end, self.method).extend(series)
        return self

    def predict(self, steps: int) -> Forecast:
        """Return the truth of the next ``steps`` bins; raise ForecastError beyond its end."""
        end = require_fitted(self._end, self.method)
        check_steps(steps, self.method)
        first = round((end.end_s - self._truth.start_s) / end.bin_s)
        if first < 0 or first + steps > self._truth.bins:
            raise ForecastError(
                f"{end.key}: the truth covers bins 0 to {self._truth.bins - 1}, not bins {first} "
                f"to {first + steps - 1}. Choose origins whose forecasts end inside."
            )
        mean = self._truth.values[first : first + steps]
        return Forecast(
            key=end.key,
            start_s=end.end_s,
            bin_s=end.bin_s,
            unit=end.unit,
            mean=mean,
            levels=QUANTILES,
            quantiles=np.tile(mean, (len(QUANTILES), 1)),
            method=self.method,
            order="",
            fit_seconds=0.0,
        )


def forecaster(
    method: str, *, horizon_bins: int = 4, lead_bins: int = 0, truth: DemandSeries | None = None
) -> Forecaster:
    """Return an unfitted forecaster for ``method``, one of METHODS.

    "auto" chooses by the error of the peak of ``horizon_bins`` bins, which begin ``lead_bins``
    after the last known bin. "perfect" returns the series ``truth``. Raises ForecastError for an
    unknown name.
    """
    if method in PANEL_METHODS:
        return RuleForecaster(method, horizon_bins, lead_bins)
    if method == PERFECT:
        if truth is None:
            raise ForecastError("perfect: the truth is missing. Pass the series to come as truth.")
        return Perfect(truth)
    raise ForecastError(f"There is no method {method!r}. Choose one of {', '.join(METHODS)}.")
