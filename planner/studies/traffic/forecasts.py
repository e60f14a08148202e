"""What each decision of the window would be told: demand forecast from what was known then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.backtest import coverage, mase, peak_wape, rolling_forecasts, wape
from forecasting.demand import DemandSeries, SeriesKey
from forecasting.forecast import Forecast
from forecasting.selection import forecaster
from planner.studies.progress import Progress
from planner.studies.traffic.groups import Group, series_of
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import FloatArray

QUANTILES = (0.1, 0.9)


@dataclass(frozen=True, slots=True)
class Height:
    """What of a forecast is planned for: a quantile of it (None: the mean), so many times."""

    level: float | None = None
    times: float = 1.0

    def __str__(self) -> str:
        what = "the mean" if self.level is None else f"the quantile {self.level:g}"
        return what if self.times == 1.0 else f"{self.times:g} times {what}"


MEAN = Height()


@dataclass(frozen=True, slots=True, eq=False)
class SeriesForecast:
    """One model's and region's interactive input tokens, forecast for every period of the window.

    Arrays are amounts per bin, shape ``[bins of the window]``; ``actual`` is NaN ahead of the
    trace and in gaps.
    """

    key: SeriesKey
    method: str
    order: str
    fit_seconds: float
    start_s: float
    bin_s: float
    actual: FloatArray
    mean: FloatArray
    planned: FloatArray  # at ``height``
    low: FloatArray  # 10%
    high: FloatArray  # 90%
    height: Height  # that is planned for
    errors: dict[str, float | None]  # wape, peak_wape, mase, coverage80 over the window


def forecast_window(
    groups: Sequence[tuple[Group, Height]],
    traffic: Traffic,
    window: Window,
    *,
    method: str,
    progress: Progress,
    at_once: bool = False,
) -> tuple[SeriesForecast, ...]:
    """Forecast what every model x region has of each group of tiers, period by period, each group
    planned for at its own height.

    Each period uses only bins before its decision (``Window.origins_s``), or ``at_once`` all of
    them those before the first; "perfect" alone is told the truth.
    """
    series = [(one, at) for group, at in groups for _, one in series_of(traffic, group)]
    done = []
    for i, (one, at) in enumerate(series):
        progress(i / len(series), f"Forecasting {one.key.model} in {one.key.region}")
        done.append(_forecast_series(one, window, method, at, at_once=at_once))
    return tuple(done)


def _forecast_series(
    series: DemandSeries,
    window: Window,
    method: str,
    height: Height,
    *,
    at_once: bool = False,
) -> SeriesForecast:
    per_period, bin_s = window.bins_per_period, window.bin_s
    bins = round(window.duration_s / bin_s)
    model = forecaster(method, horizon_bins=per_period, truth=series)
    if window.ahead:
        forecasts = rolling_forecasts(series, model, [window.start_s], bins)
        pieces = [(forecasts[0], 0, bins)]
    else:
        lead = round((window.start_s - window.origins_s[0]) / bin_s)
        origins = window.origins_s.tolist()[: 1 if at_once else None]
        per_period = bins if at_once else per_period
        forecasts = rolling_forecasts(series, model, origins, lead + per_period)
        pieces = [(forecast, lead, lead + per_period) for forecast in forecasts]

    def joined(of: str | float) -> FloatArray:
        values = [
            (piece.mean if of == "mean" else piece.quantile(float(of)))[first:last]
            for piece, first, last in pieces
        ]
        return np.concatenate(values)

    actual = np.full(bins, np.nan)
    seen = series.window(window.start_s, window.end_s)
    offset = round((seen.start_s - window.start_s) / bin_s) if seen.bins else 0
    actual[offset : offset + seen.bins] = seen.values
    mean, low, high = joined("mean"), joined(QUANTILES[0]), joined(QUANTILES[1])
    first: Forecast = forecasts[0]
    return SeriesForecast(
        key=series.key,
        method=first.method,
        order=first.order,
        fit_seconds=first.fit_seconds,
        start_s=window.start_s,
        bin_s=bin_s,
        actual=actual,
        mean=mean,
        planned=height.times * (mean if height.level is None else joined(height.level)),
        low=low,
        high=high,
        height=height,
        errors=_errors(series, window, actual, mean, low, high),
    )


def _errors(
    series: DemandSeries,
    window: Window,
    actual: FloatArray,
    mean: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> dict[str, float | None]:
    """Errors of what was forecast period by period; None where nothing was observed."""
    rows = (-1, window.bins_per_period)
    history = series.values[: round((window.start_s - series.start_s) / window.bin_s)]
    a, m = actual.reshape(rows), mean.reshape(rows)
    figures = {
        "wape": wape(a, m),
        "peak_wape": peak_wape(a, m),
        "mase": mase(a, m, history),
        "coverage80": coverage(actual, low, high),
    }
    return {name: float(v) if np.isfinite(v) else None for name, v in figures.items()}
