"""Which forecaster: by name, or by rolling-origin error ("auto")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from forecasting.backtest import Backtest, backtest
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import Forecast, Forecaster
from forecasting.models.baselines import DAY_S, LastValue, Perfect, SeasonalNaive
from forecasting.models.tail import fitted

CANDIDATES = ("arima", "seasonal-naive", "last-value")
METHODS = ("auto", *CANDIDATES, "perfect")
ORIGINS = 24


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The method of least mean absolute error, and how each of the candidates did."""

    method: str
    backtests: dict[str, Backtest]
    refused: dict[str, str]  # method to the sentence why it could not be tried


def forecaster(
    method: str,
    *,
    horizon_bins: int = 4,
    season_s: float = DAY_S,
    truth: DemandSeries | None = None,
) -> Forecaster:
    """The forecaster named ``method``, one of METHODS, not yet fitted.

    ``horizon_bins`` is what "auto" is judged on, ``season_s`` the season of "seasonal-naive" and
    ``truth`` what "perfect" is told. Raises ForecastError for an unknown name.
    """
    match method:
        case "auto":
            return Auto(horizon_bins, season_s=season_s)
        case "arima":
            from forecasting.models.arima import Arima  # statsmodels takes a second to import

            return Arima()
        case "last-value":
            return LastValue()
        case "seasonal-naive":
            return SeasonalNaive(season_s)
        case "perfect" if truth is not None:
            return Perfect(truth)
        case "perfect":
            raise ForecastError("perfect: the truth is missing; pass the series to come as truth.")
    raise ForecastError(f"There is no method {method!r}; choose one of {', '.join(METHODS)}.")


def select(
    series: DemandSeries,
    horizon_bins: int,
    candidates: Sequence[str] = CANDIDATES,
    origins: int = ORIGINS,
    season_s: float = DAY_S,
) -> Selection:
    """The candidate of least mean absolute error from the last ``origins`` origins of ``series``.

    All candidates are judged on the same bins, so that this is also the one of least WAPE. Fewer
    origins are used where so many would leave less than half of the series to fit on. Candidates
    that refuse the shorter history are kept in ``refused``; raises SeriesTooShort if all do.
    """
    origins = min(origins, max(1, series.bins // (2 * horizon_bins)))
    backtests: dict[str, Backtest] = {}
    refused: dict[str, str] = {}
    for method in candidates:
        make = partial(forecaster, method, horizon_bins=horizon_bins, season_s=season_s)
        try:
            backtests[method] = backtest(series, make, horizon_bins, origins)
        except SeriesTooShort as error:
            refused[method] = str(error)
    if not backtests:
        raise SeriesTooShort(
            f"{series.key}: no method can be tried on {series.bins} bins "
            f"({next(iter(refused.values()), 'no candidates were given')})"
        )
    best = min(backtests, key=lambda method: backtests[method].mae)
    return Selection(best, backtests, refused)


class Auto:
    """The forecaster that ``select`` picks within the fitted history, fitted on all of it."""

    def __init__(
        self,
        horizon_bins: int,
        candidates: Sequence[str] = CANDIDATES,
        origins: int = ORIGINS,
        season_s: float = DAY_S,
    ) -> None:
        self.horizon_bins = horizon_bins
        self.candidates = candidates
        self.origins = origins
        self.season_s = season_s
        self._chosen: Forecaster | None = None

    @property
    def method(self) -> str:
        """The chosen method's name; "auto" before ``fit``."""
        return "auto" if self._chosen is None else self._chosen.method

    def fit(self, series: DemandSeries) -> Self:
        """Select, then fit; raises SeriesTooShort where no candidate can be tried."""
        selection = select(series, self.horizon_bins, self.candidates, self.origins, self.season_s)
        chosen = forecaster(selection.method, season_s=self.season_s)
        self._chosen = chosen.fit(series)
        return self

    def update(self, series: DemandSeries) -> Self:
        self._chosen = fitted(self._chosen, "auto").update(series)
        return self

    def predict(self, steps: int) -> Forecast:
        return fitted(self._chosen, "auto").predict(steps)
