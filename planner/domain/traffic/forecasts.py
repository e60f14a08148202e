"""Forecast demand for each scaling decision of a window, from the demand known at that time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forecasting.backtest import bias, coverage, mase, peak_wape, rolling_forecasts, wape
from forecasting.demand import DemandSeries, SeriesKey
from forecasting.forecast import Forecast, Forecaster, MethodScore
from forecasting.past_forecasts import PastPeaks
from forecasting.selection import forecaster
from planner.domain.progress import Progress
from planner.domain.serialise import clean
from planner.domain.traffic.groups import Group, series_of
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.second_process import result_of
from simulation.arrays import FloatArray, ratio

QUANTILES = (0.1, 0.9)
DESCRIBED = "described"  # method of a series that the scenario describes


@dataclass(frozen=True, slots=True)
class PlanningLevel:
    """The demand to plan for: a quantile of the forecast (None: its mean) times a factor.

    ``str()`` describes it, as in "1.2 times P95".
    """

    quantile: float | None = None
    factor: float = 1.0

    def __str__(self) -> str:
        words = "the mean" if self.quantile is None else f"P{100 * self.quantile:.3g}"
        return words if self.factor == 1.0 else f"{self.factor:.3g} times {words}"


MEAN = PlanningLevel()


@dataclass(frozen=True, slots=True, eq=False)
class SeriesForecast:
    """The demand of one model, region and group of tiers, forecast for every period of the window.

    Arrays are amounts per bin, shape ``[bins of the window]``. ``actual`` is NaN after the end of
    the trace and in gaps.
    """

    key: SeriesKey
    method: str
    order: str
    fit_seconds: float
    start_s: float
    bin_s: float
    actual: FloatArray
    mean: FloatArray
    planned: FloatArray  # demand to plan for, at ``planning_level``
    low: FloatArray  # 10%
    high: FloatArray  # 90%
    planning_level: PlanningLevel
    errors: dict[str, float | None]  # wape, peak_wape, mase, coverage80, bias over the window
    past: PastPeaks | None  # peaks before the last decision; None if unknown
    levels: tuple[float, ...]  # levels of ``quantiles``
    quantiles: FloatArray  # [levels, bins of the window]
    compared: tuple[MethodScore, ...] = ()  # best first, at the last decision


def forecast_window(
    groups: Sequence[tuple[Group, PlanningLevel]],
    traffic: Traffic,
    window: Window,
    *,
    method: str,
    progress: Progress,
    at_once: bool = False,
) -> tuple[SeriesForecast, ...]:
    """Return the forecast of every model and region, for each group of tiers.

    Each group comes with its planning level: the quantile and factor to plan for. Each period uses
    only bins before its decision (``Window.origins_s``); with ``at_once``, before the first
    decision. Only the method "perfect" uses the actual demand.
    """
    series = [
        (demand, group.tiers, planning_level)
        for group, planning_level in groups
        for _, demand in series_of(traffic, group)
    ]
    forecasts = []
    for i, (demand, tiers, planning_level) in enumerate(series):
        key = demand.key
        progress(i / len(series), f"Forecasting {key.model} in {key.region}")
        described = traffic.described_demand(key, tiers, demand.unit, window)
        rolled = roll_forecast(demand, window, method, at_once=at_once, described=described)
        forecasts.append(rolled.at_level(planning_level))
    return tuple(forecasts)


@dataclass(frozen=True, slots=True, eq=False)
class RolledForecast:
    """The forecasts of a series, one per decision of a window, at all quantiles.

    ``pieces`` has one forecast per decision. Its first ``lead_bins`` bins are the decision's lead
    time. The others are the periods that the decision plans.
    """

    series: DemandSeries
    window: Window
    pieces: tuple[Forecast, ...]
    lead_bins: int
    actual: FloatArray  # [bins of the window]
    described: FloatArray | None = None  # [bins] mean given by the scenario; None: forecast it

    def quantile_or_mean(self, level: float | None) -> FloatArray:
        """Return the forecast's quantile ``level``, or its mean if None, ``[bins of the window]``.

        It includes the scenario's growth. If the scenario describes the traffic, the description is
        the mean, and quantiles keep their ratio to the mean of the forecast.
        """
        values = self._join_pieces(level)
        if self.described is not None:
            values = self.described * ratio(values, self._join_pieces(None), 1.0)
        return np.asarray(values * self.window.growth_factors, np.float64)

    def _join_pieces(self, level: float | None) -> FloatArray:
        """Return a quantile (None: the mean) of all pieces, ``[bins of the window]``."""
        values = [piece.mean if level is None else piece.quantile(level) for piece in self.pieces]
        return np.concatenate([value[self.lead_bins :] for value in values])

    def at_level(self, planning_level: PlanningLevel) -> SeriesForecast:
        """Return the forecast with its past errors, and its demand to plan for."""
        mean = self.quantile_or_mean(None)
        low, high = (self.quantile_or_mean(level) for level in QUANTILES)
        first, last = self.pieces[0], self.pieces[-1]
        method, order, compared = first.method, first.order, last.compared
        if self.described is not None:
            method, order, compared = DESCRIBED, f"errors as of {first.method}", ()
        return SeriesForecast(
            key=self.series.key,
            method=method,
            order=order,
            fit_seconds=first.fit_seconds,
            start_s=self.window.start_s,
            bin_s=self.window.bin_s,
            actual=self.actual,
            mean=mean,
            planned=self.planned_demand(planning_level),
            low=low,
            high=high,
            planning_level=planning_level,
            errors=_errors(self.series, self.window, self.actual, mean, low, high),
            past=last.past,
            levels=first.levels,
            quantiles=np.stack([self.quantile_or_mean(level) for level in first.levels]),
            compared=compared,
        )

    def planned_demand(self, planning_level: PlanningLevel) -> FloatArray:
        """Return the demand to plan for: a quantile times a factor, ``[bins of the window]``."""
        demand = self.quantile_or_mean(planning_level.quantile)
        return np.asarray(planning_level.factor * demand, np.float64)


def roll_forecast(
    series: DemandSeries,
    window: Window,
    method: str,
    *,
    at_once: bool = False,
    described: FloatArray | None = None,
) -> RolledForecast:
    """Return forecasts of a series for every period of the window, from bins before its decision.

    With ``at_once``, the first decision forecasts all periods. ``described [bins of the window]``
    is the mean that the scenario describes; None: the mean is forecast.
    """
    series = series.since_launch(window.first_decision_s)
    bins, bin_s = round(window.duration_s / window.bin_s), window.bin_s
    pieces = result_of(
        rolling_forecasts, *window_forecast_arguments(series, window, method, at_once=at_once)
    )
    actual = np.full(bins, np.nan)  # of the window; its part after the end of the trace stays NaN
    observed = series.window(window.start_s, window.end_s)
    offset = round((observed.start_s - window.start_s) / bin_s) if observed.bins else 0
    actual[offset : offset + observed.bins] = observed.values
    return RolledForecast(series, window, tuple(pieces), lead_bins(window), actual, described)


def lead_bins(window: Window) -> int:
    """Return the number of bins from a decision to the first period that it plans."""
    return (
        0
        if window.after_traffic
        else round((window.start_s - window.first_decision_s) / window.bin_s)
    )


class RollingArguments(NamedTuple):
    """The arguments of ``rolling_forecasts``, which may run in a second process."""

    series: DemandSeries
    forecaster: Forecaster
    origins_s: Sequence[float]
    steps: int


def window_forecast_arguments(
    series: DemandSeries, window: Window, method: str, *, at_once: bool
) -> RollingArguments:
    """Return the arguments of ``rolling_forecasts`` for every decision of the window.

    With ``at_once``, the first decision plans the whole window.
    """
    series, lead = series.since_launch(window.first_decision_s), lead_bins(window)
    model = forecaster(method, horizon_bins=window.bins_per_period, lead_bins=lead, truth=series)
    origins, bins = window.origins_s.tolist(), window.bins_per_period
    if at_once or window.after_traffic:
        origins, bins = origins[:1], round(window.duration_s / window.bin_s)
    return RollingArguments(series, model, origins, lead + bins)


def _errors(
    series: DemandSeries,
    window: Window,
    actual: FloatArray,
    mean: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> dict[str, float | None]:
    """Return the errors of the forecasts over the window, by name; None if unknown.

    ``actual``, ``mean``, ``low`` (P10) and ``high`` (P90) are amounts, ``[bins of the window]``.
    """
    history = series.values[: round((window.start_s - series.start_s) / window.bin_s)]
    actuals = actual.reshape(-1, window.bins_per_period)  # [period, bin]
    means = mean.reshape(-1, window.bins_per_period)
    figures = {
        "wape": wape(actuals, means),
        "peak_wape": peak_wape(actuals, means),
        "mase": mase(actuals, means, history),
        "coverage80": coverage(actual, low, high),
        "bias": bias(actuals, means),
    }
    return {name: clean(float(value)) for name, value in figures.items()}
