"""Series forecast by the batched methods, together or one by one (the ``Forecaster`` protocol)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Self

import numpy as np

from forecasting.batch import Batch
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import Forecast, PanelForecast
from forecasting.models.tail import Tail, check_steps, fitted
from forecasting.panel import Panel
from forecasting.rules.naive import Seasonal
from forecasting.rules.registry import AUTO, ENSEMBLE, RULES
from forecasting.words import chosen_because, made_of

FEWEST = 2  # observed bins that a method asked for by name needs


class Together:
    """``method`` of BATCHED for series on the same bins. The peak is that of ``horizon_bins`` bins,
    ``lead_bins`` ahead.

    "auto" and "ensemble" answer on any history: with little the last value, with none 0.
    """

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self.named = method
        self._batch = Batch(method, horizon_bins, lead_bins)
        self._tails: list[Tail] | None = None
        self._last: PanelForecast | None = None
        self._seconds = 0.0  # of fitting, of each series' share

    @property
    def methods(self) -> tuple[str, ...] | None:
        """Of each series the chosen method's name; None before ``fit``."""
        return None if self._last is None else self._last.methods

    def fit(self, series: Sequence[DemandSeries]) -> Self:
        """Raises SeriesTooShort where a method asked for by name has nothing to say of one."""
        began = perf_counter()
        self._tails = [Tail.of(demand) for demand in series]
        for demand in series:
            _check(self.named, demand)
        self._batch.fit(Panel.of(series))
        self._last = self._batch.predict(self._batch.lead_bins + self._batch.horizon_bins)
        self._seconds = (perf_counter() - began) / len(series)
        return self

    def update(self, series: Sequence[DemandSeries]) -> Self:
        """Take in the bins that follow, of the same series in the same order."""
        tails = fitted(self._tails, self.named)
        self._tails = [tail.follow(demand) for tail, demand in zip(tails, series, strict=True)]
        self._batch.update(np.stack([demand.values for demand in series]))
        return self

    def predict(self, steps: int) -> list[Forecast]:
        tails = fitted(self._tails, self.named)
        check_steps(steps, self.named)
        panel = self._last = self._batch.predict(steps)
        return [
            tail.forecast(
                mean=panel.mean[row],
                quantiles=panel.quantiles[row],
                method=panel.methods[row],
                order=made_of(panel, row),
                fit_seconds=self._seconds,
                reason=chosen_because(panel, row) if self.named == AUTO else "",
                window_bins=self._batch.horizon_bins,
                tops=panel.top[row],
                peaks=panel.peaks[row],
                past=panel.past[row],
            )
            for row, tail in enumerate(tails)
        ]


class Batched:
    """One series: ``Together`` of one."""

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        self._together = Together(method, horizon_bins, lead_bins)

    @property
    def method(self) -> str:
        """The chosen method's name; "auto" before ``fit``."""
        methods = self._together.methods
        return self._together.named if methods is None else methods[0]

    def fit(self, series: DemandSeries) -> Self:
        """Raises SeriesTooShort where a method asked for by name has nothing to say."""
        self._together.fit([series])
        return self

    def update(self, series: DemandSeries) -> Self:
        self._together.update([series])
        return self

    def predict(self, steps: int) -> Forecast:
        return self._together.predict(steps)[0]


def _check(named: str, series: DemandSeries) -> None:
    if named in (AUTO, ENSEMBLE):
        return
    rule, observed = RULES[named], int((~np.isnan(series.values)).sum())
    if isinstance(rule, Seasonal):
        season = round(rule.season_s / series.bin_s)
        if abs(season * series.bin_s - rule.season_s) > 1e-6 * rule.season_s:
            raise ForecastError(
                f"{series.key}: the season of {rule.season_s:g} s is not a whole number of "
                f"bins of {series.bin_s:g} s; choose a bin width that divides it."
            )
        if series.bins < season:
            raise SeriesTooShort(
                f"{series.key}: {named} needs one season, {season} bins, and 2 observed "
                f"bins; it has {series.bins} bins, {observed} of them observed."
            )
    if observed < FEWEST:
        raise SeriesTooShort(
            f"{series.key}: {named} needs at least {FEWEST} observed bins and has "
            f"{observed}; give a longer history."
        )
