"""Make a forecaster from the name of its method, and define the oracle baseline "perfect"."""

from dataclasses import replace
from typing import Self

import numpy as np

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES, Forecast, Forecaster
from forecasting.rule_forecaster import RuleForecaster
from forecasting.rules.registry import PANEL_METHODS

PERFECT = "perfect"
METHODS = (*PANEL_METHODS, PERFECT)


class Perfect:
    """A forecaster that returns the true demand, for comparison only.

    Every quantile is the truth. Gaps in the truth are interpolated.
    """

    method = PERFECT

    def __init__(self, truth: DemandSeries) -> None:
        index = np.arange(truth.bins)
        observed = ~np.isnan(truth.values)
        if not observed.any():
            raise ForecastError(
                f"{truth.key}: the truth holds no observed bin. Give one that does."
            )
        values = np.interp(index, index[observed], truth.values[observed])
        self._truth = replace(truth, values=values)
        self._origin_s = truth.start_s  # the next forecast begins here

    def fit(self, series: DemandSeries) -> Self:
        self._origin_s = series.end_s
        return self

    def update(self, series: DemandSeries) -> Self:
        return self.fit(series)

    def predict(self, steps: int) -> Forecast:
        """Return the truth of the next ``steps`` bins; raise ForecastError beyond its end."""
        truth = self._truth
        first = round((self._origin_s - truth.start_s) / truth.bin_s)
        if first + steps > truth.bins:
            raise ForecastError(
                f"{truth.key}: the truth covers bins 0 to {truth.bins - 1}, not bins {first} "
                f"to {first + steps - 1}. Choose origins whose forecasts end inside."
            )
        mean = truth.values[first : first + steps]
        return Forecast(
            key=truth.key,
            start_s=self._origin_s,
            bin_s=truth.bin_s,
            unit=truth.unit,
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
    after the last known bin. "perfect" returns the series ``truth``.
    """
    if method == PERFECT:
        assert truth is not None
        return Perfect(truth)
    return RuleForecaster(method, horizon_bins, lead_bins)
