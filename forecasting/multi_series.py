"""Forecast and backtest many series; those on the same bins are forecast in one batch."""

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
    return _by_group(series, horizon_s, partial(_forecast, method))


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
    return _by_group(series, horizon_s, partial(_backtest_or_none, method, origins))


def past_forecasts_by_series(
    series: Sequence[DemandSeries], method: str, horizon_s: float, ahead_s: float, moments: int
) -> list[list[Forecast]]:
    """Forecast each series ``ahead_s`` seconds ahead from up to ``moments`` past origins.

    Origins are a horizon apart in the second half of the series, the last one at its end. A series
    that is too short has an empty list.
    """

    def forecasts_of(part: Sequence[DemandSeries], window: int) -> list[list[Forecast]]:
        """Return the past forecasts of series on the same bins; a horizon has ``window`` bins."""
        count = min(moments, part[0].bins // 2 // window)
        if not count:
            return [[] for _ in part]
        origins = [part[0].bins - window * back for back in range(count, 0, -1)]
        try:
            steps = max(window, steps_of(part[0], ahead_s))
            return _rolling_forecasts_by_series(method, origins, window, steps, part)
        except SeriesTooShort:
            if len(part) == 1:
                return [[]]
            return [forecasts for demand in part for forecasts in forecasts_of([demand], window)]

    return _by_group(series, horizon_s, forecasts_of)


def steps_of(series: DemandSeries, horizon_s: float) -> int:
    """Return the number of bins of a horizon, at least one."""
    return max(1, round(horizon_s / series.bin_s))


def _by_group(
    series: Sequence[DemandSeries],
    horizon_s: float,
    function: Callable[[Sequence[DemandSeries], int], Sequence[T]],
) -> list[T]:
    """Return the results of ``function`` for series, called with batches that share their bins.

    The results have the order of ``series``. ``function`` also gets the horizon in bins.
    """
    groups: dict[tuple[float, float, int, Holidays], list[int]] = {}
    for i, demand in enumerate(series):
        bins = (demand.start_s, demand.bin_s, demand.bins, demand.holidays)
        groups.setdefault(bins, []).append(i)
    results: dict[int, T] = {}
    for rows in groups.values():
        steps = steps_of(series[rows[0]], horizon_s)
        size = max(1, BATCH_SIZE // steps)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            results |= dict(zip(part, function([series[i] for i in part], steps), strict=True))
    return [results[i] for i in range(len(series))]


def _forecast(method: str, series: Sequence[DemandSeries], steps: int) -> list[Forecast]:
    """Return the forecasts of series on the same bins, ``steps`` bins ahead."""
    return MultiSeriesForecaster(method, steps).fit(series).predict(steps)


def _backtest(
    method: str, origins: int, series: Sequence[DemandSeries], steps: int
) -> list[Backtest]:
    """Return the backtest of each of several series on the same bins."""
    # Origins are one horizon apart, and each forecast is one horizon long.
    origin_bins = last_origins(series[0], steps, origins, steps)
    forecasts = _rolling_forecasts_by_series(method, origin_bins.tolist(), steps, steps, series)
    return [
        evaluate(demand, origin_bins, of_series)
        for demand, of_series in zip(series, forecasts, strict=True)
    ]


def _backtest_or_none(
    method: str, origins: int, series: Sequence[DemandSeries], steps: int
) -> list[Backtest | None]:
    """Return the backtest of each series; None for a series that is too short."""
    try:
        return [*_backtest(method, origins, series, steps)]
    except SeriesTooShort:
        if len(series) == 1:
            return [None]
        return [
            result
            for demand in series
            for result in _backtest_or_none(method, origins, [demand], steps)
        ]


def _rolling_forecasts_by_series(
    method: str, origins: Sequence[int], window: int, steps: int, series: Sequence[DemandSeries]
) -> list[list[Forecast]]:
    """Return the forecasts from each origin, ``steps`` bins ahead, in one list per series.

    The method is chosen by its errors on windows of ``window`` bins.
    """
    model, seen = MultiSeriesForecaster(method, window), 0
    forecasts: list[list[Forecast]] = []
    for origin in origins:
        new = [_slice_bins(demand, seen, origin) for demand in series]
        model = model.update(new) if forecasts else model.fit(new)
        forecasts.append(model.predict(steps))
        seen = origin
    return [[at_origin[i] for at_origin in forecasts] for i in range(len(series))]


def _slice_bins(series: DemandSeries, first: int, end: int) -> DemandSeries:
    """Return the bins ``first`` to ``end`` of a series."""
    return replace(
        series, start_s=series.start_s + first * series.bin_s, values=series.values[first:end]
    )
