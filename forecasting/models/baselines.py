"""The forecasts any other must beat: last value, seasonal naive, and the truth itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Self

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import QUANTILES, Forecast
from forecasting.models.tail import Tail, check_steps, fitted

DAY_S = 86_400.0
MIN_ERRORS = 20  # the outermost levels, 0.05 and 0.95, need one error in twenty beyond them


@dataclass(frozen=True, slots=True, eq=False)
class _LastSeen:
    tail: Tail
    last: float  # amount of the last observed bin
    age: int  # gaps after it
    history: FloatArray  # [bins] of the fit, the source of the errors
    longest_lag: int  # beyond it errors are too few and are extrapolated
    error_quantiles: dict[int, FloatArray]  # [len(QUANTILES)] by lag, filled as they are asked for
    fit_seconds: float


class LastValue:
    """Tomorrow is like now: the mean of every step is the last observed amount.

    The band of step ``h`` holds the quantiles of the empirical ``h``-step errors
    ``y[t + h] - y[t]`` over the fitted history, so it widens (and leans) as the history did.
    Steps with fewer than ``MIN_ERRORS`` such errors take those of the longest lag ``k`` that has
    them, times ``sqrt(h / k)`` as for a random walk.
    """

    method = "last-value"

    def __init__(self) -> None:
        self._state: _LastSeen | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Needs two observed bins; raises SeriesTooShort below that."""
        started = perf_counter()
        tail = Tail.of(series)
        observed = np.flatnonzero(~np.isnan(series.values))
        if observed.size < 2:
            raise SeriesTooShort(
                f"{series.key}: last-value needs at least 2 observed bins and has "
                f"{observed.size}; give a longer history."
            )
        history = series.values[observed[0] :]
        self._state = _LastSeen(
            tail=tail,
            last=float(series.values[observed[-1]]),
            age=series.bins - 1 - int(observed[-1]),
            history=history,
            longest_lag=_longest_lag(history),
            error_quantiles={},
            fit_seconds=perf_counter() - started,
        )
        return self

    def update(self, series: DemandSeries) -> Self:
        state = fitted(self._state, self.method)
        observed = np.flatnonzero(~np.isnan(series.values))
        self._state = replace(
            state,
            tail=state.tail.follow(series),
            last=float(series.values[observed[-1]]) if observed.size else state.last,
            age=series.bins - 1 - int(observed[-1]) if observed.size else state.age + series.bins,
        )
        return self

    def predict(self, steps: int) -> Forecast:
        state = fitted(self._state, self.method)
        check_steps(steps, self.method)
        errors = [self._error_quantiles(state, state.age + step) for step in range(1, steps + 1)]
        return state.tail.forecast(
            mean=np.full(steps, state.last),
            quantiles=np.maximum(0.0, state.last + np.stack(errors, axis=1)),
            method=self.method,
            order="",
            fit_seconds=state.fit_seconds,
        )

    @staticmethod
    def _error_quantiles(state: _LastSeen, lag: int) -> FloatArray:
        known = state.error_quantiles
        if lag not in known:
            errors = _lagged_errors(state.history, lag)
            growth = 1.0
            if errors.size < MIN_ERRORS:
                errors = _lagged_errors(state.history, state.longest_lag)
                growth = np.sqrt(max(1.0, lag / state.longest_lag))
            known[lag] = growth * np.quantile(errors, QUANTILES)
        return known[lag]


@dataclass(frozen=True, slots=True, eq=False)
class _Season:
    tail: Tail
    bins_seen: int
    amount: FloatArray  # [season] last observed amount at each phase, NaN where never observed
    seen_at: IntArray  # [season] index of the bin it was observed in
    errors: FloatArray  # [len(QUANTILES)] of one season ahead
    fit_seconds: float


class SeasonalNaive:
    """Today is like yesterday: each step repeats the last observed amount one season before.

    The band holds the quantiles of the in-sample errors ``y[t] - y[t - season]``, the same for
    every step of the coming season, times ``sqrt(k)`` where the amount repeated is ``k`` seasons
    old (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, section 5.5). While
    fewer than ``MIN_ERRORS`` of them exist, the history's deviations from its mean stand in: a
    band as wide as the season itself. A phase that was never observed is interpolated between
    its neighbours around the season.
    """

    method = "seasonal-naive"

    def __init__(self, season_s: float = DAY_S) -> None:
        self.season_s = season_s
        self._state: _Season | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Needs one season of bins, two of them observed; raises SeriesTooShort below that."""
        started = perf_counter()
        tail = Tail.of(series)
        season = round(self.season_s / series.bin_s)
        if season < 1 or abs(season * series.bin_s - self.season_s) > 1e-6 * self.season_s:
            raise ForecastError(
                f"{series.key}: the season of {self.season_s:g} s is not a whole number of bins of "
                f"{series.bin_s:g} s; choose a bin width that divides it."
            )
        observed = series.values[~np.isnan(series.values)]
        if series.bins < season or observed.size < 2:
            raise SeriesTooShort(
                f"{series.key}: seasonal-naive needs one season, {season} bins, and 2 observed "
                f"bins; it has {series.bins} bins, {observed.size} of them observed."
            )
        errors = _lagged_errors(series.values, season)
        if errors.size < MIN_ERRORS:
            errors = observed - observed.mean()
        start = _Season(
            tail=tail,
            bins_seen=0,
            amount=np.full(season, np.nan),
            seen_at=np.arange(season) - season,  # never observed: older than the history
            errors=np.quantile(errors, QUANTILES),
            fit_seconds=0.0,
        )
        state = _take_in(start, series.values)
        self._state = replace(state, fit_seconds=perf_counter() - started)
        return self

    def update(self, series: DemandSeries) -> Self:
        state = fitted(self._state, self.method)
        self._state = replace(_take_in(state, series.values), tail=state.tail.follow(series))
        return self

    def predict(self, steps: int) -> Forecast:
        state = fitted(self._state, self.method)
        check_steps(steps, self.method)
        season = state.amount.size
        bins = state.bins_seen + np.arange(steps)
        phase = bins % season
        known = np.flatnonzero(~np.isnan(state.amount))
        mean = np.interp(phase, known, state.amount[known], period=season)
        seasons_old = (bins - state.seen_at[phase]) / season
        return state.tail.forecast(
            mean=mean,
            quantiles=np.maximum(0.0, mean + state.errors[:, None] * np.sqrt(seasons_old)),
            method=self.method,
            order="",
            fit_seconds=state.fit_seconds,
        )


class Perfect:
    """Told the truth: the bound no forecast can pass, for comparison only.

    Every quantile is the truth. A gap in the truth is interpolated between its neighbours.
    """

    method = "perfect"

    def __init__(self, truth: DemandSeries) -> None:
        Tail.of(truth)
        index = np.arange(truth.bins)
        known = ~np.isnan(truth.values)
        if not known.any():
            raise ForecastError(
                f"{truth.key}: the truth holds no observed bin; give one that does."
            )
        self._truth = replace(truth, values=np.interp(index, index[known], truth.values[known]))
        self._tail: Tail | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Notes where ``series`` ends; raises ForecastError unless the truth shares its bins."""
        tail = Tail.of(series)
        truth = self._truth
        offset = (series.start_s - truth.start_s) / truth.bin_s
        same = (series.key, series.bin_s, series.unit) == (truth.key, truth.bin_s, truth.unit)
        if not same or abs(offset - round(offset)) > 1e-6:
            raise ForecastError(
                f"{series.key}: the truth given is {truth.key} in {truth.unit} bins of "
                f"{truth.bin_s:g} s; give the truth of the same series on the same bin edges."
            )
        self._tail = tail
        return self

    def update(self, series: DemandSeries) -> Self:
        self._tail = fitted(self._tail, self.method).follow(series)
        return self

    def predict(self, steps: int) -> Forecast:
        tail = fitted(self._tail, self.method)
        check_steps(steps, self.method)
        first = round((tail.end_s - self._truth.start_s) / tail.bin_s)
        if first < 0 or first + steps > self._truth.bins:
            raise ForecastError(
                f"{tail.key}: the truth covers bins 0 to {self._truth.bins - 1} and bins {first} "
                f"to {first + steps - 1} are asked for; choose origins whose forecasts end inside."
            )
        mean = self._truth.values[first : first + steps]
        return tail.forecast(
            mean=mean,
            quantiles=np.tile(mean, (len(QUANTILES), 1)),
            method=self.method,
            order="",
            fit_seconds=0.0,
        )


def _lagged_errors(values: FloatArray, lag: int) -> FloatArray:
    """``values[t + lag] - values[t]`` wherever both are observed."""
    errors = values[lag:] - values[:-lag]
    return errors[~np.isnan(errors)]


def _longest_lag(values: FloatArray) -> int:
    """The longest lag with MIN_ERRORS observed errors, else the lag with the most."""
    # How many pairs of observed bins lie each lag apart: the mask's autocorrelation, by FFT since
    # trying one lag after another takes minutes where nearly all bins are gaps.
    seen = np.fft.rfft(~np.isnan(values), 2 * values.size)
    pairs = np.rint(np.fft.irfft(np.abs(seen) ** 2, 2 * values.size))[1 : values.size]
    enough = np.flatnonzero(pairs >= MIN_ERRORS)
    return 1 + int(enough[-1] if enough.size else np.argmax(pairs))


def _take_in(state: _Season, values: FloatArray) -> _Season:
    """``state`` after the bins ``values``; gaps leave the older amounts in place."""
    season = state.amount.size
    bins = state.bins_seen + np.arange(values.size)
    observed = ~np.isnan(values)
    amount, seen_at = state.amount.copy(), state.seen_at.copy()
    # with a repeated index numpy keeps the last assignment: the latest observation of a phase
    amount[bins[observed] % season] = values[observed]
    seen_at[bins[observed] % season] = bins[observed]
    return replace(state, bins_seen=state.bins_seen + values.size, amount=amount, seen_at=seen_at)
