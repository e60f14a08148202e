"""Forecasters that use the panel methods, for many series or for one."""

from collections.abc import Sequence
from time import perf_counter
from typing import Self

import numpy as np

from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.explanation import compared_methods, order_in_words, selection_reason
from forecasting.forecast import Forecast, PanelForecast
from forecasting.harmonics import DAY_S
from forecasting.models.series_end import SeriesEnd, check_steps, require_fitted
from forecasting.panel import Panel
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.arima import MIN_OBSERVED, Arima
from forecasting.rules.naive import Seasonal, ShapeTimesLevel
from forecasting.rules.registry import AUTO, ENSEMBLE, RULES

FEWEST = 2  # observed bins that a rule needs


class MultiSeriesForecaster:
    """Forecast series on the same bins with ``method``, one of PANEL_METHODS.

    The peak is the largest of ``horizon_bins`` bins that begin ``lead_bins`` ahead. "auto" and
    "ensemble" accept any history. They repeat the last value of a short one, and return 0 for an
    empty one.
    """

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self.requested = method
        self._forecaster = PanelForecaster(method, horizon_bins, lead_bins)
        self._ends: list[SeriesEnd] | None = None
        self._latest: PanelForecast | None = None
        self._fit_seconds = 0.0  # per series

    @property
    def methods(self) -> tuple[str, ...] | None:
        """Return the chosen method of each series, or None before ``fit``."""
        return None if self._latest is None else self._latest.methods

    def fit(self, series: Sequence[DemandSeries]) -> Self:
        """Fit the series; raise SeriesTooShort if one is too short for a rule."""
        began = perf_counter()
        self._ends = [SeriesEnd.of(demand) for demand in series]
        for demand in series:
            _check_length(self.requested, demand)
        forecaster = self._forecaster.fit(Panel.of(series))
        self._latest = forecaster.predict(forecaster.lead_bins + forecaster.horizon_bins)
        self._fit_seconds = (perf_counter() - began) / len(series)
        return self

    def update(self, series: Sequence[DemandSeries]) -> Self:
        """Add the bins that follow, of the same series in the same order."""
        ends = require_fitted(self._ends, self.requested)
        self._ends = [end.extend(demand) for end, demand in zip(ends, series, strict=True)]
        self._forecaster.update(np.stack([demand.values for demand in series]))
        return self

    def predict(self, steps: int) -> list[Forecast]:
        """Forecast the next ``steps`` bins of each series."""
        ends = require_fitted(self._ends, self.requested)
        check_steps(steps, self.requested)
        panel = self._latest = self._forecaster.predict(steps)
        return [
            Forecast(
                key=end.key,
                start_s=end.end_s,
                bin_s=end.bin_s,
                unit=end.unit,
                mean=panel.mean[row],
                levels=panel.levels,
                quantiles=panel.quantiles[row],
                method=panel.methods[row],
                order=order_in_words(panel, row),
                fit_seconds=self._fit_seconds,
                reason=selection_reason(panel, row) if self.requested == AUTO else "",
                window_bins=self._forecaster.horizon_bins,
                tops=panel.top[row],
                peaks=panel.peaks[row],
                past=panel.past[row],
                compared=compared_methods(panel, row) if self.requested in (AUTO, ENSEMBLE) else (),
            )
            for row, end in enumerate(ends)
        ]


class RuleForecaster:
    """Forecast one series with a ``MultiSeriesForecaster``."""

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self._forecaster = MultiSeriesForecaster(method, horizon_bins, lead_bins)

    @property
    def method(self) -> str:
        """Return the chosen method, or the requested one before ``fit``."""
        methods = self._forecaster.methods
        return self._forecaster.requested if methods is None else methods[0]

    def fit(self, series: DemandSeries) -> Self:
        """Fit the series; raise SeriesTooShort if it is too short for a rule."""
        self._forecaster.fit([series])
        return self

    def update(self, series: DemandSeries) -> Self:
        self._forecaster.update([series])
        return self

    def predict(self, steps: int) -> Forecast:
        return self._forecaster.predict(steps)[0]


def _check_length(method: str, series: DemandSeries) -> None:
    """Raise SeriesTooShort, or ForecastError for bins that do not divide the season."""
    if method in (AUTO, ENSEMBLE):
        return
    rule, observed = RULES[method], int((~np.isnan(series.values)).sum())
    if isinstance(rule, Seasonal | ShapeTimesLevel):
        season = round(rule.season_s / series.bin_s)
        if abs(season * series.bin_s - rule.season_s) > 1e-6 * rule.season_s:
            raise ForecastError(
                f"{series.key}: the season of {rule.season_s:g} s is not a whole number of "
                f"bins of {series.bin_s:g} s. Choose a bin width that divides it."
            )
        needed, what = season, "one season"
        if isinstance(rule, ShapeTimesLevel):
            needed, what = season + round(DAY_S / series.bin_s), "one season and a day"
        if series.bins < needed:
            raise SeriesTooShort(
                f"{series.key}: too short for {method}. It needs {what} ({needed:,} bins) and has "
                f"{series.bins:,} bins, {observed:,} of them observed."
            )
    fewest = MIN_OBSERVED if isinstance(rule, Arima) else FEWEST
    if observed < fewest:
        raise SeriesTooShort(
            f"{series.key}: {method} needs at least {fewest} observed bins and has "
            f"{observed}. Give a longer history or use narrower bins."
        )
