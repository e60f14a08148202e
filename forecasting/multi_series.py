"""Forecast and backtest many series; those on the same bins are forecast in one batch."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from forecasting.backtest import Backtest, evaluate, last_origins
from forecasting.demand import DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast
from forecasting.holidays import Holidays
from forecasting.rule_forecaster import MultiSeriesForecaster

T = TypeVar("T")

BATCH_SIZE = 20_000  # series times bins ahead at a time, to bound memory


def forecast_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float
) -> list[Forecast]:
    """Return the forecast of each series over the next ``horizon_s`` seconds."""

    def forecast(batch: Sequence[DemandSeries], steps: int) -> list[Forecast]:
        return MultiSeriesForecaster(method, steps).fit(batch).predict(steps)

    return _by_group(series, horizon_s, forecast)


def backtest_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float, origins: int
) -> list[Backtest]:
    """Backtest ``method`` on each series from its last ``origins`` origins, one horizon apart.

    Raises SeriesTooShort for a series that is too short.
    """
    return _by_group(series, horizon_s, partial(_backtest, method, origins))


def backtest_long_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float, origins: int
) -> list[Backtest | None]:
    """Backtest each series as ``backtest_series`` does; None for a series that is too short."""
    backtest = partial(_backtest, method, origins)
    return _by_group(series, horizon_s, partial(_or_none, backtest))


def past_forecasts_by_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float, ahead_s: float, moments: int
) -> list[list[Forecast]]:
    """Return forecasts of each series, ``ahead_s`` seconds long, from up to ``moments`` origins.

    An origin is the bin at which a forecast begins. Origins are ``horizon_s`` apart in the second
    half of the series, the last one a horizon before its end. A forecast covers at least a horizon.
    A series that is too short has an empty list.
    """

    def forecasts_of(batch: Sequence[DemandSeries], window: int) -> list[list[Forecast]]:
        """Return the past forecasts of series on the same bins; a horizon has ``window`` bins."""
        bins = batch[0].bins
        count = min(moments, bins // 2 // window)
        if not count:
            return [[] for _ in batch]
        origins = range(bins - window * count, bins, window)
        # ``rolling`` takes series and steps, and has a list of forecasts for each series.
        steps = max(window, steps_of(batch[0], ahead_s))
        rolling = partial(_rolling_forecasts_by_series, method, origins, window)
        return [forecasts or [] for forecasts in _or_none(rolling, batch, steps)]

    return _by_group(series, horizon_s, forecasts_of)


def steps_of(series: DemandSeries, horizon_s: float) -> int:
    """Return the number of bins of a horizon, at least one."""
    return max(1, round(horizon_s / series.bin_s))


def _by_group(
    series: Sequence[DemandSeries],
    horizon_s: float,
    function: Callable[[Sequence[DemandSeries], int], Sequence[T]],
) -> list[T]:
    """Return the result of ``function`` for each series, from calls with batches of series.

    The series of a batch have the same bins. ``function`` also gets the horizon in bins, and
    returns a result for each series.
    """
    groups: dict[tuple[float, float, int, Holidays], list[int]] = defaultdict(list)
    for i, demand in enumerate(series):
        groups[demand.start_s, demand.bin_s, demand.bins, demand.holidays].append(i)
    result_of: dict[int, T] = {}  # by index of the series
    for indices in groups.values():
        steps = steps_of(series[indices[0]], horizon_s)
        size = max(1, BATCH_SIZE // steps)
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            results = function([series[i] for i in batch], steps)
            result_of.update(zip(batch, results, strict=True))
    return [result_of[i] for i in range(len(series))]


def _backtest(
    method: str, origins: int, series: Sequence[DemandSeries], steps: int
) -> list[Backtest]:
    """Return the backtest of each of several series on the same bins.

    Forecasts begin at the last ``origins`` origins, ``steps`` bins apart, and are as long.
    """
    origin_bins = last_origins(series[0], steps, origins, steps)
    forecasts = _rolling_forecasts_by_series(method, origin_bins.tolist(), steps, series, steps)
    return [
        evaluate(demand, origin_bins, demand_forecasts)
        for demand, demand_forecasts in zip(series, forecasts, strict=True)
    ]


def _or_none(
    function: Callable[[Sequence[DemandSeries], int], list[T]],
    series: Sequence[DemandSeries],
    steps: int,
) -> list[T | None]:
    """Return ``function`` of several series and ``steps``; None for a series that is too short."""
    try:
        return [*function(series, steps)]
    except SeriesTooShort:
        if len(series) == 1:
            return [None]
        return [result for demand in series for result in _or_none(function, [demand], steps)]


def _rolling_forecasts_by_series(
    method: str, origins: Sequence[int], window: int, series: Sequence[DemandSeries], steps: int
) -> list[list[Forecast]]:
    """Return the forecasts of each series from each origin (bin), ``steps`` bins ahead.

    There is one list per series. "auto" chooses by the errors in windows of ``window`` bins.
    """
    model, known_bins = MultiSeriesForecaster(method, window), 0
    forecasts: list[list[Forecast]] = []
    for origin in origins:
        new_bins = [
            replace(demand, start_s=demand.start_s + known_bins * demand.bin_s,
                    values=demand.values[known_bins:origin])
            for demand in series
        ]  # fmt: skip
        model = model.update(new_bins) if forecasts else model.fit(new_bins)
        forecasts.append(model.predict(steps))
        known_bins = origin
    return [[at_origin[i] for at_origin in forecasts] for i in range(len(series))]
