"""The methods that forecast a panel, by name, and their protocol."""

from typing import Protocol

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel
from forecasting.harmonics import DAY_S, WEEK_S
from forecasting.rules.arima import Arima
from forecasting.rules.kalman import Kalman
from forecasting.rules.naive import LastValue, MovingMaximum, Seasonal, ShapeTimesLevel
from forecasting.rules.regression import Regression
from forecasting.rules.smoothing import SeasonalSmoothing, Smoothing


class FittedRule(Protocol):
    """A method with fitted parameters for every series of a panel."""

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the expected amounts of ``steps`` bins from each origin on.

        The shape is ``[series, origins, steps]``; NaN: no forecast. ``origins`` are rising bins of
        ``panel``, which begins with the same bin as the panel of the fit. A forecast uses only the
        bins before its origin.
        """
        ...


class Rule(Protocol):
    """A method that fits all series of a panel at once."""

    def fit(self, panel: Panel) -> FittedRule: ...


HOUR_S = 3600.0
LAST_VALUE, SEASONAL_NAIVE, ARIMA = "last-value", "seasonal-naive", "arima"
RULES: dict[str, Rule] = {
    LAST_VALUE: LastValue(),
    SEASONAL_NAIVE: Seasonal(DAY_S),
    "seasonal-naive-week": Seasonal(WEEK_S),
    "week-shape": ShapeTimesLevel(WEEK_S, seasons=4),
    "moving-maximum": MovingMaximum(HOUR_S),
    "exponential-smoothing": Smoothing(),
    "seasonal-smoothing": SeasonalSmoothing(),
    "kalman": Kalman(),
    "regression": Regression(),
    "regression-root": Regression(scale="root"),
    "autoregression": Regression(cycles=False),
    ARIMA: Arima(),
    "arima-fourier": Arima(always=True),
}
# Methods that "auto" compares.
MEMBERS = tuple(name for name in RULES if name != "arima-fourier")
NAIVE = (LAST_VALUE, SEASONAL_NAIVE, "seasonal-naive-week", "moving-maximum")
ENSEMBLE, AUTO = "ensemble", "auto"
LAST_DAY = "last-day"  # "auto" and "ensemble" repeat it as long as no error is known
PANEL_METHODS = (AUTO, ENSEMBLE, *RULES)
