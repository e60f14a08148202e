"""One series forecast by the batched methods: the ``Forecaster`` protocol around a batch of one."""

from __future__ import annotations

from time import perf_counter
from typing import Self

import numpy as np

from forecasting.batch import Batch, PanelForecast
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import Forecast
from forecasting.models.tail import Tail, check_steps, fitted
from forecasting.panel import Panel
from forecasting.rules.naive import Seasonal
from forecasting.rules.registry import AUTO, ENSEMBLE, RULES
from forecasting.words import chosen_because, made_of

FEWEST = 2  # observed bins that a method asked for by name needs


class Batched:
    """``method`` of BATCHED. The peak is that of ``horizon_bins`` bins, ``lead_bins`` ahead.

    "auto" and "ensemble" answer on any history: with little the last value, with none 0.
    """

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self.named = method
        self._batch = Batch(method, horizon_bins, lead_bins)
        self._tail: Tail | None = None
        self._last: PanelForecast | None = None
        self._seconds = 0.0

    @property
    def method(self) -> str:
        """The chosen method's name; "auto" before ``fit``."""
        return self.named if self._last is None else self._last.methods[0]

    def fit(self, series: DemandSeries) -> Self:
        """Raises SeriesTooShort where a method asked for by name has nothing to say."""
        began = perf_counter()
        self._tail = Tail.of(series)
        self._check(series)
        self._batch.fit(Panel.of([series]))
        self._last = self._batch.predict(self._batch.lead_bins + self._batch.horizon_bins)
        self._seconds = perf_counter() - began
        return self

    def update(self, series: DemandSeries) -> Self:
        self._tail = fitted(self._tail, self.named).follow(series)
        self._batch.update(series.values[None])
        return self

    def predict(self, steps: int) -> Forecast:
        tail = fitted(self._tail, self.named)
        check_steps(steps, self.named)
        told = self._last = self._batch.predict(steps)
        return tail.forecast(
            mean=told.mean[0],
            quantiles=told.quantiles[0],
            method=told.methods[0],
            order=made_of(told, 0),
            fit_seconds=self._seconds,
            reason=chosen_because(told, 0) if self.named == AUTO else "",
            window_bins=self._batch.horizon_bins,
            tops=told.top[0],
            peaks=told.peaks[0],
        )

    def _check(self, series: DemandSeries) -> None:
        if self.named in (AUTO, ENSEMBLE):
            return
        rule, observed = RULES[self.named], int((~np.isnan(series.values)).sum())
        if isinstance(rule, Seasonal):
            season = round(rule.season_s / series.bin_s)
            if abs(season * series.bin_s - rule.season_s) > 1e-6 * rule.season_s:
                raise ForecastError(
                    f"{series.key}: the season of {rule.season_s:g} s is not a whole number of "
                    f"bins of {series.bin_s:g} s; choose a bin width that divides it."
                )
            if series.bins < season:
                raise SeriesTooShort(
                    f"{series.key}: {self.named} needs one season, {season} bins, and 2 observed "
                    f"bins; it has {series.bins} bins, {observed} of them observed."
                )
        if observed < FEWEST:
            raise SeriesTooShort(
                f"{series.key}: {self.named} needs at least {FEWEST} observed bins and has "
                f"{observed}; give a longer history."
            )
