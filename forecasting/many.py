"""Series of any bins forecast and judged: those on the same bins in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from forecasting.backtest import Backtest, backtest, judged, origins_of, rolling_forecasts
from forecasting.demand import DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast
from forecasting.holidays import Holidays
from forecasting.models.batched import Together
from forecasting.rules.registry import BATCHED
from forecasting.selection import forecaster

T = TypeVar("T")

TOGETHER = 20_000  # series times bins ahead at a time, to bound memory


def forecast_each(series: Sequence[DemandSeries], method: str, horizon_s: float) -> list[Forecast]:
    """What follows each series, ``horizon_s`` ahead."""
    return _by_group(series, horizon_s, partial(_forecast, method))


def backtest_each(
    series: Sequence[DemandSeries], method: str, horizon_s: float, origins: int
) -> list[Backtest]:
    """Of each series the backtest of ``method`` over its last origins, a horizon apart."""
    return _by_group(series, horizon_s, partial(_backtest, method, origins))


def backtest_able(
    series: Sequence[DemandSeries], method: str, horizon_s: float, origins: int
) -> list[Backtest | None]:
    """The same, None of a series that is too short for the method."""
    return _by_group(series, horizon_s, partial(_backtest_able, method, origins))


def told_each(
    series: Sequence[DemandSeries], method: str, horizon_s: float, ahead_s: float, moments: int
) -> list[list[Forecast]]:
    """What was said of each series at moments a horizon apart, up to its end and at most the half
    of it back, ``ahead_s`` ahead; nothing of series that are too short for the method."""

    def told(part: Sequence[DemandSeries], window: int) -> list[list[Forecast]]:
        count = min(moments, part[0].bins // 2 // window)
        origins = [part[0].bins - window * back for back in range(count, 0, -1)]
        try:
            steps = max(window, steps_of(part[0], ahead_s))
            return _rolled(method, origins, window, steps, part) if origins else [[] for _ in part]
        except SeriesTooShort:
            return (
                [[]]
                if len(part) == 1
                else [forecasts for demand in part for forecasts in told([demand], window)]
            )

    return _by_group(series, horizon_s, told)


def steps_of(series: DemandSeries, horizon_s: float) -> int:
    """Bins of a horizon, at least one."""
    return max(1, round(horizon_s / series.bin_s))


def _by_group(
    series: Sequence[DemandSeries],
    horizon_s: float,
    of: Callable[[Sequence[DemandSeries], int], Sequence[T]],
) -> list[T]:
    """``of`` the series that stand on the same bins, in the order that they were given."""
    groups: dict[tuple[float, float, int, Holidays], list[int]] = {}
    for i, demand in enumerate(series):
        groups.setdefault((demand.start_s, demand.bin_s, demand.bins, demand.holidays), []).append(
            i
        )
    results: dict[int, T] = {}
    for rows in groups.values():
        steps = steps_of(series[rows[0]], horizon_s)
        size = max(1, TOGETHER // steps)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            results |= dict(zip(part, of([series[i] for i in part], steps), strict=True))
    return [results[i] for i in range(len(series))]


def _forecast(method: str, series: Sequence[DemandSeries], steps: int) -> list[Forecast]:
    if method in BATCHED:
        return Together(method, steps).fit(series).predict(steps)
    return [forecaster(method, horizon_bins=steps).fit(demand).predict(steps) for demand in series]


def _backtest(
    method: str, origins: int, series: Sequence[DemandSeries], steps: int
) -> list[Backtest]:
    if method not in BATCHED:
        make = partial(forecaster, method, horizon_bins=steps)
        return [backtest(demand, make, steps, origins) for demand in series]
    origin_bins = origins_of(series[0], steps, origins, steps)
    forecasts = _rolled(method, origin_bins.tolist(), steps, steps, series)
    return [
        judged(demand, origin_bins, of_series)
        for demand, of_series in zip(series, forecasts, strict=True)
    ]


def _rolled(
    method: str, origins: Sequence[int], window: int, steps: int, series: Sequence[DemandSeries]
) -> list[list[Forecast]]:
    """Of each series what ``method``, which is judged on ``window`` bins, said at each of
    ``origins``, ``steps`` bins ahead."""
    if method not in BATCHED:
        return [
            rolling_forecasts(
                demand,
                forecaster(method, horizon_bins=window),
                [demand.start_s + origin * demand.bin_s for origin in origins],
                steps,
            )
            for demand in series
        ]
    model, until = Together(method, window), 0
    forecasts: list[list[Forecast]] = []
    for origin in origins:
        new = [_bins(demand, until, origin) for demand in series]
        model = model.update(new) if forecasts else model.fit(new)
        forecasts.append(model.predict(steps))
        until = origin
    return [[at_origin[i] for at_origin in forecasts] for i in range(len(series))]


def _backtest_able(
    method: str, origins: int, series: Sequence[DemandSeries], steps: int
) -> list[Backtest | None]:
    try:
        return [*_backtest(method, origins, series, steps)]
    except SeriesTooShort:
        if len(series) == 1:
            return [None]
        return [
            judgement
            for demand in series
            for judgement in _backtest_able(method, origins, [demand], steps)
        ]


def _bins(series: DemandSeries, first: int, end: int) -> DemandSeries:
    return replace(
        series, start_s=series.start_s + first * series.bin_s, values=series.values[first:end]
    )
