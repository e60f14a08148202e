"""Forecast from past moments, and compare the forecast with naive methods that repeat demand.

A past moment is one whose later demand is known by now, so the error of its forecast shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.backtest import rolling_forecasts
from forecasting.demand import INPUT_TOKENS, DemandSeries, SeriesKey
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast
from forecasting.multi_series import past_forecasts_by_series
from forecasting.rules.registry import AUTO
from forecasting.selection import forecaster
from planner.domain.progress import Progress
from planner.domain.traffic.forecasts import MEAN, QUANTILES, SeriesForecast, roll_forecast
from planner.domain.traffic.groups import Group, series_of
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import DAY_S, Window
from simulation.arrays import FloatArray

NAIVE = {
    "last-value": "repeating the last value",
    "seasonal-naive": "repeating the day before",
    "seasonal-naive-week": "repeating the week before",
}
NEGLIGIBLE = 0.05  # share of the naive error; a smaller gain is not worth naming
MAX_SERIES = 6  # only the largest series: they are for charts, not for figures
MAX_ORIGINS = 48  # past moments of a chart
MAX_STEPS = 192  # bins of a forecast in a chart
HISTORY_SHOWN_S = 2 * DAY_S  # history shown before the first moment


@dataclass(frozen=True, slots=True)
class NaiveComparison:
    """The error (WAPE) of a forecast over all series, and that of the best naive method.

    ``naive`` is one of ``NAIVE``. If no naive method can be used, it is "" and ``naive_error`` is
    None.
    """

    error: float
    methods: str  # of the forecast, such as "ensemble, arima"
    naive: str = ""
    naive_error: float | None = None

    @property
    def naive_words(self) -> str:
        """Return the naive method with its error: "repeating the day before (9.8%)"."""
        return f"{NAIVE[self.naive]} ({self.naive_error:.1%})"

    @property
    def is_worse(self) -> bool:
        """Return whether the naive method has a smaller error."""
        return self.naive_error is not None and self.error > self.naive_error

    @property
    def standing(self) -> str:
        """Return how the forecast compares with the best naive method, in words."""
        if self.naive_error is None:
            return "no naive forecast compares"
        if self.is_worse:
            return f"worse than {self.naive_words}"
        if self.methods == self.naive:
            return "no naive forecast is better"
        if self.error <= (1 - NEGLIGIBLE) * self.naive_error:
            return f"better than {self.naive_words}"
        return f"about as good as {self.naive_words}"


@dataclass(frozen=True, slots=True, eq=False)
class PastForecasts:
    """Forecasts of a series from past moments, with its demand, for charts of forecast errors.

    ``mean``, ``low`` and ``high`` (P10 and P90) are in ``unit`` per bin, ``[moment, step]``.
    ``history`` holds the actual amounts ``[bins]`` from ``history_s`` on. NaN marks bins that were
    not observed.
    """

    key: SeriesKey
    bin_s: float
    origins_s: FloatArray  # the past moments, in epoch s
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    history_s: float
    history: FloatArray
    unit: str = INPUT_TOKENS


def largest_past_forecasts(
    groups: Sequence[Group], traffic: Traffic, window: Window, method: str, progress: Progress
) -> tuple[PastForecasts, ...]:
    """Return past forecasts of the ``MAX_SERIES`` largest series, each about a day long.

    They begin at the moments of ``origins``. Series that are too short for the method are omitted.
    """
    series = [demand for group in groups for _, demand in series_of(traffic, group)]
    series.sort(key=lambda demand: -float(np.nansum(demand.values)))
    past = []
    for i, demand in enumerate(series[:MAX_SERIES]):
        progress(i / min(len(series), MAX_SERIES), f"Looking back on {demand.key.model}")
        try:
            past.append(_forecast_from_past(demand, window, method))
        except SeriesTooShort:
            continue
    return tuple(past)


def past_forecasts_of_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float
) -> tuple[PastForecasts, ...]:
    """Return past forecasts of the first ``MAX_SERIES`` series of a trace, without a scenario.

    They begin at up to ``MAX_ORIGINS`` moments before the trace's end, ``horizon_s`` apart. Series
    that are too short are omitted.
    """
    shown = series[:MAX_SERIES]
    forecasts = past_forecasts_by_series(shown, method, horizon_s, DAY_S, MAX_ORIGINS)
    return tuple(
        _cut_to_shown_steps(demand, forecasts_of_series)
        for demand, forecasts_of_series in zip(shown, forecasts, strict=True)
        if forecasts_of_series
    )


def _cut_to_shown_steps(series: DemandSeries, forecasts: Sequence[Forecast]) -> PastForecasts:
    """Return ``forecasts`` of a series, cut to at most ``MAX_STEPS`` bins, with its demand."""
    origins_s = np.array([forecast.start_s for forecast in forecasts])
    steps = min(forecasts[0].steps, MAX_STEPS)
    last_s = float(origins_s[-1]) + steps * series.bin_s
    observed = series.window(float(origins_s[0]) - HISTORY_SHOWN_S, last_s)
    low_level, high_level = QUANTILES
    return PastForecasts(
        key=series.key,
        bin_s=series.bin_s,
        origins_s=origins_s,
        mean=np.stack([forecast.mean for forecast in forecasts])[:, :steps],
        low=np.stack([forecast.quantile(low_level) for forecast in forecasts])[:, :steps],
        high=np.stack([forecast.quantile(high_level) for forecast in forecasts])[:, :steps],
        history_s=observed.start_s,
        history=observed.values,
        unit=series.unit,
    )


def origins(window: Window) -> FloatArray:
    """Return at most ``MAX_ORIGINS`` past moments to forecast from, in epoch seconds.

    They are decisions of the window. If it is ahead of the traffic, they are a period apart and
    lie before it.
    """
    moments = window.origins_s
    if window.after_traffic:
        periods = len(window.period_starts_s)
        moments = np.asarray(
            window.start_s - window.period_s * np.arange(periods)[::-1], np.float64
        )
    every = int(np.ceil(len(moments) / MAX_ORIGINS))
    return np.asarray(moments[::every], np.float64)


def _forecast_from_past(series: DemandSeries, window: Window, method: str) -> PastForecasts:
    """Return forecasts of a series from past moments; raise SeriesTooShort without history."""
    moments = origins(window)
    moments = moments[moments > series.start_s + window.bin_s]
    if not moments.size:
        raise SeriesTooShort(f"{series.key}: no traffic before the past decisions.")
    lead = round((window.start_s - window.first_decision_s) / window.bin_s)
    # As far as a decision forecasts, or a day if that is longer: errors are shown by hour ahead.
    steps = max(lead + window.bins_per_period, min(round(DAY_S / window.bin_s), MAX_STEPS))
    model = forecaster(method, horizon_bins=window.bins_per_period, lead_bins=lead)
    return _cut_to_shown_steps(series, rolling_forecasts(series, model, moments.tolist(), steps))


def naive_comparison(
    groups: Sequence[Group],
    traffic: Traffic,
    window: Window,
    forecasts: Sequence[SeriesForecast],
) -> NaiveComparison | None:
    """Compare the forecast's error with that of the best naive method.

    Return None if the window has no observed demand.
    """
    own_error = wape([(forecast.actual, forecast.mean) for forecast in forecasts])
    if own_error is None:
        return None
    methods = ", ".join(dict.fromkeys(forecast.method for forecast in forecasts))
    errors = _naive_errors(groups, traffic, window)
    if not errors:
        return NaiveComparison(own_error, methods)
    best = min(errors, key=lambda method: errors[method])
    return NaiveComparison(own_error, methods, best, errors[best])


def naive_sentence(compared: NaiveComparison | None, method_asked: str, periods: int) -> str:
    """Return the error of a forecast of ``periods`` periods, and how a naive method compares.

    ``method_asked`` is the method that the scenario names, which may be "auto". Return "" for None.
    """
    if compared is None:
        return ""
    own = f"Forecast error (WAPE): {compared.error:.1%} ({compared.methods})."
    standing = f"{compared.standing[0].upper()}{compared.standing[1:]}."
    if not compared.is_worse:
        return f"{own} {standing}"
    if method_asked == AUTO:
        return f"{standing} {own} Measured over {periods:,} periods. A backtest shows the cost."
    return f"{standing} {own} Choose forecast.method {compared.naive}, or auto."


def _naive_errors(groups: Sequence[Group], traffic: Traffic, window: Window) -> dict[str, float]:
    """Return the WAPE of each naive method over all series, by method.

    Methods that need a longer history are omitted.
    """
    series = [demand for group in groups for _, demand in series_of(traffic, group)]
    errors: dict[str, float] = {}
    for method in NAIVE:
        try:
            naive = [roll_forecast(demand, window, method).at_level(MEAN) for demand in series]
        except SeriesTooShort:
            continue
        error = wape([(forecast.actual, forecast.mean) for forecast in naive])
        if error is not None:
            errors[method] = error
    return errors


def wape(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> float | None:
    """Return the WAPE over the observed bins of (actual, forecast) pairs; None without demand."""
    demand = sum(float(np.nansum(actual)) for actual, _ in pairs)
    error = sum(float(np.nansum(np.abs(actual - mean))) for actual, mean in pairs)
    return error / demand if demand > 0 else None
