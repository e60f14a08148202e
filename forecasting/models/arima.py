"""ARIMA with daily and weekly harmonics, orders by AIC: the forecast of SageServe (methods E6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Self

import numpy as np
import scipy

from forecasting import harmonics
from forecasting.arrays import FloatArray, IntArray
from forecasting.cleaning import no_demand
from forecasting.demand import DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import QUANTILES, Forecast
from forecasting.harmonics import Harmonics
from forecasting.holidays import OfUsual
from forecasting.models.arima_order import FittedOrder, Order, differences, fit_orders
from forecasting.models.peaks import Peaks
from forecasting.models.state_space import StateSpace
from forecasting.models.tail import MIN_OBSERVED, Tail, check_steps, fitted
from forecasting.threads import alone

STILL = 1e-9  # spread, of a series around 1, below which only rounding is left to model


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """``sqrt(y / amount) = design @ coefficients + origin + spread * u``, ``u`` an ARIMA."""

    tail: Tail
    amount: float  # mean of the history, in its unit per bin
    harmonics: Harmonics
    coefficients: FloatArray  # [columns of the harmonics' design]
    origin: float
    spread: float
    model: StateSpace  # of u
    label: str
    fit_seconds: float
    begun: StateSpace  # of u, where parameters were estimated
    fitted: int  # bins of ``seen`` by then
    seen: DemandSeries  # as it came
    lost: IntArray  # bins of it since then that are no demand
    kind: OfUsual | None  # what holidays have of a usual day
    said: Peaks

    def standardised(self, series: DemandSeries) -> FloatArray:
        """``u`` of each bin of ``series``, ``[bins]``."""
        cycles = self.cycles(series.start_s, series.bin_s, series.bins)
        usual = series.values / self.factor(series.start_s, series.bins)
        return (np.sqrt(usual / self.amount) - cycles - self.origin) / self.spread

    def path(self, model: StateSpace, start_s: float, steps: int) -> tuple[FloatArray, FloatArray]:
        """Mean and deviation of the roots from ``start_s`` on, where ``model`` stands."""
        u_mean, u_variance = model.forecast(steps)
        mean = self.cycles(start_s, self.tail.bin_s, steps) + self.origin + self.spread * u_mean
        return mean, self.spread * np.sqrt(u_variance)

    def peak(self, model: StateSpace, start_s: float) -> float:
        """Of the window that is judged, ``model`` being what was known at ``start_s``."""
        peaks = self.said
        path = _mean_square(*self.path(model, start_s, peaks.lead_bins + peaks.horizon_bins))
        path *= self.factor(start_s, path.size)
        return self.amount * float(path[peaks.lead_bins :].max())

    def factor(self, start_s: float, bins: int) -> FloatArray:
        """Of every bin what it has of a usual day."""
        if self.kind is None:
            return np.ones(bins)
        factor = self.kind.factor(start_s, self.tail.bin_s, bins)[0]
        return np.asarray(factor, np.float64)

    def cycles(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        return self.harmonics.design(start_s, bin_s, bins) @ self.coefficients


class Arima:
    """ARIMA(p, d, q) around daily and weekly harmonics, of the square root of demand.

    The root keeps forecasts from going negative without a clip at the mean, evens out the
    variance of counts (that of a Poisson count's root is 1/4 at any rate), is defined at zero
    where a logarithm is not, and makes the forecast scale with the demand. Back again, with ``z ~
    N(m, s^2)`` the root: quantiles are ``max(0, m + s q)^2`` and the mean is
    ``E[max(0, z)^2] = (m^2 + s^2) Phi(m / s) + m s phi(m / s)``.

    ``d`` comes from a KPSS test on what the harmonics leave over, then the number of harmonics
    (none allowed) and then ``(p, q)`` by AIC. Gaps are missing observations of the state space.
    Bands hold the shocks to come, not the uncertainty of the parameters.

    ``max_bins`` bounds the time of a fit: only the latest so many bins are used, and the order's
    text says so. ``always`` has a harmonic of the day and of the week at least, wherever the
    history can tell them from a trend ("arima-fourier"), whatever AIC thinks of them.
    """

    def __init__(
        self,
        horizon_bins: int = 4,
        lead_bins: int = 0,
        *,
        max_p: int = 3,
        max_q: int = 2,
        max_daily: int = 6,
        max_weekly: int = 3,
        max_bins: int = 4032,  # six weeks of 15 min, two of 5 min
        always: bool = False,
    ) -> None:
        self.horizon_bins, self.lead_bins = horizon_bins, lead_bins
        self.max_p = max_p
        self.max_q = max_q
        self.max_daily = max_daily
        self.max_weekly = max_weekly
        self.max_bins = max_bins
        self.always = always
        self.method = "arima-fourier" if always else "arima"
        self._state: _Fit | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Choose orders and estimate; raises SeriesTooShort below MIN_OBSERVED observed bins."""
        # BLAS threads gain nothing on such small matrices, and on busy cores they wait for each
        # other: 0.3 s becomes 10 s
        with alone():
            self._state = self._estimate(series)
        return self

    def update(self, series: DemandSeries) -> Self:
        state = fitted(self._state, self.method)
        known = state.seen.values
        history = replace(state.seen, values=np.concatenate([known, series.values]))
        lost = no_demand(history.values[None], history.bin_s, state.fitted)[1]
        lost = lost[lost >= state.fitted]
        before = lost[lost < known.size]
        # what only now turns out to be no demand is taken back
        again = not np.array_equal(before, state.lost)
        first, model = (state.fitted, state.begun) if again else (known.size, state.model)
        state = replace(state, tail=state.tail.follow(series), seen=history, lost=lost)
        values = state.standardised(_without(history, lost))
        peaks = state.said
        for origin in range(peaks.next_origin, history.bins, peaks.horizon_bins):
            reached = model.advance(values[first:origin]) if origin > first else model
            first, model = max(origin, first), reached
            start_s = history.start_s + origin * history.bin_s
            peaks = peaks.then(origin, state.peak(model, start_s))
        model = model.advance(values[first:])
        self._state = replace(state, model=model, said=peaks)
        return self

    def predict(self, steps: int) -> Forecast:
        state = fitted(self._state, self.method)
        check_steps(steps, self.method)
        mean, deviation = state.path(state.model, state.tail.end_s, steps)
        amount = state.amount * state.factor(state.tail.end_s, steps)
        roots = mean + deviation * scipy.special.ndtri(QUANTILES)[:, None]
        return state.tail.forecast(
            mean=amount * _mean_square(mean, deviation),
            quantiles=amount * np.maximum(0.0, roots) ** 2,
            method=self.method,
            order=state.label,
            fit_seconds=state.fit_seconds,
            past=state.said.past(state.seen, state.amount),
        )

    def _estimate(self, series: DemandSeries) -> _Fit:
        started = perf_counter()
        tail = Tail.of(series)
        observed = self._history(series)
        lost = no_demand(observed.values[None], observed.bin_s, 0)[1]
        history = _without(observed, lost)
        kind = OfUsual.learn(
            observed.holidays, history.values[None], observed.start_s, observed.bin_s
        )
        if kind is not None:
            factor = kind.factor(observed.start_s, observed.bin_s, observed.bins)[0]
            history = replace(history, values=history.values / factor)
        amount = float(np.nanmean(history.values)) or 1.0
        root = np.sqrt(history.values / amount)
        still = bool(np.nanmax(root) - np.nanmin(root) < STILL)
        cycles, d = (Harmonics(), 1) if still else self._cycles(root, history)
        design = cycles.design(history.start_s, history.bin_s, history.bins)
        coefficients = np.zeros(1) if still else harmonics.regress(root, d, design)
        left = root - design @ coefficients
        origin = (
            float(left[~np.isnan(left)][0]) if d else 0.0
        )  # an ARIMA with d = 1 has no mean: start it at 0
        spread = _spread(left, d)
        max_p, max_q = (0, 0) if spread <= STILL else (self.max_p, self.max_q)
        best = fit_orders((left - origin) / spread, d, max_p, max_q)
        fit = _Fit(
            tail=tail,
            amount=amount,
            harmonics=cycles,
            coefficients=coefficients,
            origin=origin,
            spread=spread,
            model=best.model,
            label=_label(best.order, cycles, self.max_bins if series.bins > self.max_bins else 0),
            fit_seconds=perf_counter() - started,
            begun=best.model,
            fitted=observed.bins,
            seen=observed,
            lost=lost[:0],
            kind=kind,
            said=Peaks.none(self.horizon_bins, self.lead_bins, observed.bins),
        )
        return replace(fit, said=self._past_peaks(fit, best))

    def _past_peaks(self, fit: _Fit, best: FittedOrder) -> Peaks:
        """What would have been said of past windows, with the parameters of now."""
        peaks = fit.said
        for origin in range(peaks.next_origin, fit.seen.bins, peaks.horizon_bins):
            start_s = fit.seen.start_s + origin * fit.seen.bin_s
            peaks = peaks.then(origin, fit.peak(best.at(origin), start_s))
        return peaks

    def _history(self, series: DemandSeries) -> DemandSeries:
        """The latest ``max_bins`` bins from the first observed one on."""
        observed = np.flatnonzero(~np.isnan(series.values[-self.max_bins :]))
        if observed.size < MIN_OBSERVED:
            raise SeriesTooShort(
                f"{series.key}: arima needs at least {MIN_OBSERVED} observed bins and has "
                f"{observed.size}; give a longer history or use narrower bins."
            )
        first = max(0, series.bins - self.max_bins) + int(observed[0])
        return replace(
            series,
            start_s=series.start_s + first * series.bin_s,
            values=series.values[first:],
        )

    def _cycles(self, root: FloatArray, history: DemandSeries) -> tuple[Harmonics, int]:
        """Harmonics and ``d``: the test runs on what the richest harmonics leave over."""
        start_s, bin_s, bins = history.start_s, history.bin_s, history.bins
        options = harmonics.candidates(bin_s, bins, self.max_daily, self.max_weekly)
        if self.always:
            day, week = min(1, options[-1].daily), min(1, options[-1].weekly)
            options = tuple(
                option for option in options if option.daily >= day and option.weekly >= week
            )
        richest = options[-1].design(start_s, bin_s, bins)
        left = root - richest @ harmonics.regress(root, 0, richest)
        d = 0 if _spread(left, 0) <= STILL else differences(left)
        return harmonics.choose(root, d, start_s, bin_s, options), d


def _without(series: DemandSeries, lost: IntArray) -> DemandSeries:
    """The series with gaps where it has no demand."""
    values = series.values.copy()
    values[lost] = np.nan
    return replace(series, values=values)


def _spread(values: FloatArray, d: int) -> float:
    """Root mean square of the values or their differences, at least STILL."""
    squares = np.diff(values, n=d) ** 2
    squares = squares[~np.isnan(squares)]
    if squares.size == 0:  # gaps between all observed bins: no difference is known
        return _spread(values, 0)
    return max(STILL, float(np.sqrt(squares.mean())))


def _mean_square(mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """``E[max(0, z)^2]`` for ``z ~ N(mean, deviation^2)``."""
    ratio = np.clip(mean / np.maximum(deviation, 1e-12), -40.0, 40.0)  # Phi and phi are flat there
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    square = (mean**2 + deviation**2) * scipy.special.ndtr(ratio) + mean * deviation * density
    return np.asarray(np.maximum(0.0, square))  # rounding may leave a zero just below it


def _label(order: Order, cycles: Harmonics, only_last: int) -> str:
    label = f"{order} + {cycles}" if str(cycles) else str(order)
    return f"{label}, on the last {only_last} bins" if only_last else label
