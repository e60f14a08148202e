"""Which forecaster: by name."""

from __future__ import annotations

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import Forecaster
from forecasting.models.batched import Batched
from forecasting.models.perfect import Perfect
from forecasting.rules.registry import BATCHED

ARIMA, ARIMA_FOURIER, PERFECT = "arima", "arima-fourier", "perfect"
METHODS = (*BATCHED, ARIMA, ARIMA_FOURIER, PERFECT)


def forecaster(
    method: str,
    *,
    horizon_bins: int = 4,
    lead_bins: int = 0,
    truth: DemandSeries | None = None,
) -> Forecaster:
    """The forecaster named ``method``, one of METHODS, not yet fitted.

    "auto" is judged on the peak of ``horizon_bins`` bins, ``lead_bins`` after what is known;
    ``truth`` is what "perfect" is told. Raises ForecastError for an unknown name.
    """
    if method in BATCHED:
        return Batched(method, horizon_bins, lead_bins)
    if method in (ARIMA, ARIMA_FOURIER):
        from forecasting.models.arima import Arima  # statsmodels takes a second to import

        return Arima(horizon_bins, lead_bins, always=method == ARIMA_FOURIER)
    if method == PERFECT:
        if truth is None:
            raise ForecastError("perfect: the truth is missing; pass the series to come as truth.")
        return Perfect(truth)
    raise ForecastError(f"There is no method {method!r}; choose one of {', '.join(METHODS)}.")
