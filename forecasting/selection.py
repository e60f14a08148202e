"""Make a forecaster from the name of its method."""

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import Forecaster
from forecasting.models.oracle import Perfect
from forecasting.models.rule_forecaster import RuleForecaster
from forecasting.rules.registry import PANEL_METHODS

PERFECT = "perfect"
METHODS = (*PANEL_METHODS, PERFECT)


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
