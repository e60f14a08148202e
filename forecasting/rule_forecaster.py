"""Define forecasters of many series, or of one, that use ``PanelForecaster``."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Self

import numpy as np

from forecasting.demand import DemandSeries, Panel
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import Forecast, MethodScore, PanelForecast
from forecasting.harmonics import DAY_S
from forecasting.method_choice import MARGIN
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.arima import MIN_OBSERVED, Arima
from forecasting.rules.naive import Seasonal, ShapeTimesLevel
from forecasting.rules.registry import ARIMA, AUTO, ENSEMBLE, NAIVE, RULES

SMALLEST_SHARE = 0.05  # methods with a smaller weight in an ensemble are not named
FEWEST = 2  # observed bins that a method needs


def _check_amounts(series: DemandSeries) -> None:
    """Raise ForecastError for negative or infinite amounts."""
    wrong = np.flatnonzero((series.values < 0) | np.isinf(series.values))
    if wrong.size:
        raise ForecastError(
            f"{series.key}: bin {wrong[0]} holds {series.values[wrong[0]]:g} {series.unit}; "
            "amounts must be finite and not negative, with NaN for a gap."
        )


def order_in_words(forecast: PanelForecast, row: int) -> str:
    """Return the order of an ARIMA or the weights of an ensemble as text; "" for other methods.

    ``row`` is the index of the series.
    """
    if forecast.methods[row] == ARIMA or forecast.candidates[0] == "arima-fourier":
        return forecast.orders[row]
    if forecast.methods[row] != ENSEMBLE:
        return ""
    shares = forecast.shares[:, row]
    order = [m for m in np.argsort(-shares, kind="stable") if shares[m] >= SMALLEST_SHARE]
    return ", ".join(f"{forecast.candidates[m]} {shares[m]:.0%}" for m in order)


def compared_methods(forecast: PanelForecast, row: int) -> tuple[MethodScore, ...]:
    """Return the methods whose recent errors for series ``row`` are known, smallest error first."""
    errors = forecast.errors[:, row].tolist()
    # The last candidate is the ensemble itself, with the share 1.
    shares = [*forecast.shares[:, row].tolist(), 1.0]
    end_shares = [*forecast.end_shares[:, row].tolist(), 1.0]
    scores = [
        MethodScore(name, errors[m], shares[m], end_shares[m], name == forecast.methods[row])
        for m, name in enumerate(forecast.candidates)
        if np.isfinite(errors[m])
    ]
    return tuple(sorted(scores, key=lambda score: score.error))


def selection_reason(forecast: PanelForecast, row: int) -> str:
    """Return a sentence on the recent errors of the chosen, next best and naive methods.

    ``row`` is the index of the series.
    """
    chosen = forecast.methods[row]
    errors = {score.method: score.error for score in compared_methods(forecast, row)}
    if chosen not in errors:
        return f"{chosen}: too little history to compare methods."
    if chosen == ENSEMBLE:
        why = f"no single method was {MARGIN:.0%} better"
    else:
        why = f"at least {MARGIN:.0%} better than the ensemble"
    error = f"recent peak error {errors.pop(chosen):.1%} of mean demand"
    next_best = list(errors)[:1]
    rivals = next_best + [name for name in NAIVE if name in errors and name not in next_best]
    compared = ", ".join(f"{name} {errors[name]:.1%}" for name in rivals)
    return f"{chosen}: {error}, {why}{f' ({compared})' if compared else ''}."


class MultiSeriesForecaster:
    """Forecast series on the same bins with ``method``, one of PANEL_METHODS.

    "auto" chooses a method by the error of its peak: the largest of ``horizon_bins`` bins that
    begin ``lead_bins`` ahead. "auto" and "ensemble" accept any history. They repeat the last day of
    a short one, and return 0 for an empty one.
    """

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self.requested = method
        self._forecaster = PanelForecaster(method, horizon_bins, lead_bins)
        self._latest_bins: Sequence[DemandSeries] = ()  # of each series, by the last call
        self._latest: PanelForecast | None = None
        self._fit_seconds = 0.0  # per series

    @property
    def methods(self) -> tuple[str, ...] | None:
        """Return the chosen method of each series, or None before ``fit``."""
        return None if self._latest is None else self._latest.methods

    def fit(self, series: Sequence[DemandSeries]) -> Self:
        """Fit the series; raise SeriesTooShort if one is too short for the method."""
        began = perf_counter()
        for demand in series:
            _check_amounts(demand)
            _check_length(self.requested, demand)
        self._latest_bins = series
        forecaster = self._forecaster.fit(Panel.of(series))
        # A first forecast, since it is the one that chooses the methods.
        self._latest = forecaster.predict(forecaster.lead_bins + forecaster.horizon_bins)
        self._fit_seconds = (perf_counter() - began) / len(series)
        return self

    def update(self, series: Sequence[DemandSeries]) -> Self:
        """Add the bins that follow; ``series`` has the same series in the same order."""
        self._latest_bins = series
        self._forecaster.update(np.stack([demand.values for demand in series]))
        return self

    def predict(self, steps: int) -> list[Forecast]:
        """Forecast the next ``steps`` bins of each series."""
        panel = self._latest = self._forecaster.predict(steps)
        return [
            Forecast(
                key=demand.key,
                start_s=demand.end_s,
                bin_s=demand.bin_s,
                unit=demand.unit,
                mean=panel.mean[row],
                levels=panel.levels,
                quantiles=panel.quantiles[row],
                method=panel.methods[row],
                order=order_in_words(panel, row),
                fit_seconds=self._fit_seconds,
                reason=selection_reason(panel, row) if self.requested == AUTO else "",
                window_bins=self._forecaster.horizon_bins,
                peaks=panel.peak[row],
                peak_quantiles=panel.peak_quantiles[row],
                past=panel.past[row],
                compared=compared_methods(panel, row) if self.requested in (AUTO, ENSEMBLE) else (),
            )
            for row, demand in enumerate(self._latest_bins)
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
        """Fit the series; raise SeriesTooShort if it is too short for the method."""
        self._forecaster.fit([series])
        return self

    def update(self, series: DemandSeries) -> Self:
        self._forecaster.update([series])
        return self

    def predict(self, steps: int) -> Forecast:
        return self._forecaster.predict(steps)[0]


def _check_length(method: str, series: DemandSeries) -> None:
    """Raise SeriesTooShort if ``series`` is too short for ``method``.

    Raise ForecastError if the method has a season that is not a whole number of bins.
    """
    if method in (AUTO, ENSEMBLE):
        return
    rule, observed = RULES[method], int((~np.isnan(series.values)).sum())
    if isinstance(rule, Seasonal):
        _check_bins(method, series, _season_bins(rule.season_s, series), "one season")
    if isinstance(rule, ShapeTimesLevel):
        needed = _season_bins(rule.season_s, series) + round(DAY_S / series.bin_s)
        _check_bins(method, series, needed, "one season and a day")
    fewest = MIN_OBSERVED if isinstance(rule, Arima) else FEWEST
    if observed < fewest:
        raise SeriesTooShort(
            f"{series.key}: {method} needs at least {fewest} observed bins and has "
            f"{observed}. Give a longer history or use narrower bins."
        )


def _season_bins(season_s: float, series: DemandSeries) -> int:
    """Return the bins of a season; raise ForecastError if they are not a whole number."""
    season = round(season_s / series.bin_s)
    if abs(season * series.bin_s - season_s) > 1e-6 * season_s:
        raise ForecastError(
            f"{series.key}: the season of {season_s:g} s is not a whole number of "
            f"bins of {series.bin_s:g} s. Choose a bin width that divides it."
        )
    return season


def _check_bins(method: str, series: DemandSeries, needed: int, what: str) -> None:
    """Raise SeriesTooShort if ``series`` has fewer than the ``needed`` bins (``what`` they are)."""
    if series.bins < needed:
        observed = int((~np.isnan(series.values)).sum())
        raise SeriesTooShort(
            f"{series.key}: too short for {method}. It needs {what} ({needed:,} bins) and has "
            f"{series.bins:,} bins, {observed:,} of them observed."
        )
