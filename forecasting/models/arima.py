"""ARIMA with daily and weekly harmonics, orders by AIC: the forecast of SageServe (methods E6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Self

import numpy as np
import scipy

from forecasting import harmonics
from forecasting.arrays import FloatArray, IntArray
from forecasting.cleaning import newly_cleaned
from forecasting.demand import DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import QUANTILES, Forecast
from forecasting.harmonics import Harmonics
from forecasting.holidays import HolidayRatio
from forecasting.models.arima_order import FittedOrder, Order, choose_differences, fit_orders
from forecasting.models.peak_history import PeakHistory
from forecasting.models.series_end import MIN_OBSERVED, SeriesEnd, check_steps, require_fitted
from forecasting.models.state_space import StateSpace
from forecasting.threads import single_blas_thread

SMALLEST_SPREAD = 1e-9  # of a series around 1: below it there is only rounding


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest orders and history of a fit."""

    p: int = 3
    q: int = 2
    daily: int = 6  # harmonics
    weekly: int = 3
    bins: int = 4032  # six weeks of 15 min, two of 5 min: bounds the time of a fit


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """``sqrt(y / amount) = design @ coefficients + origin + spread * u``, ``u`` an ARIMA."""

    end: SeriesEnd
    amount: float  # mean of the history, in its unit per bin
    harmonics: Harmonics
    coefficients: FloatArray  # [columns of the harmonics' design]
    origin: float
    spread: float
    model: StateSpace  # of u, after the last bin
    label: str
    fit_seconds: float
    fitted_model: StateSpace  # of u, after the bins of the fit
    fitted_bins: int
    history: DemandSeries  # as observed
    lost: IntArray  # bins after the fit that are no demand
    holidays: HolidayRatio | None
    peaks: PeakHistory

    def standardised(self, series: DemandSeries) -> FloatArray:
        """Return ``u`` of each bin of ``series``, ``[bins]``."""
        cycles = self.cycles(series.start_s, series.bin_s, series.bins)
        usual = series.values / self.factor(series.start_s, series.bins)
        return (np.sqrt(usual / self.amount) - cycles - self.origin) / self.spread

    def path(self, model: StateSpace, start_s: float, steps: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and deviation of the root from ``start_s`` on, the end of ``model``."""
        u_mean, u_variance = model.forecast(steps)
        mean = self.cycles(start_s, self.end.bin_s, steps) + self.origin + self.spread * u_mean
        return mean, self.spread * np.sqrt(u_variance)

    def peak(self, model: StateSpace, start_s: float) -> float:
        """Return the forecast peak of the judged window after ``start_s``, the end of ``model``."""
        peaks = self.peaks
        path = _mean_square(*self.path(model, start_s, peaks.lead_bins + peaks.horizon_bins))
        path *= self.factor(start_s, path.size)
        return self.amount * float(path[peaks.lead_bins :].max())

    def factor(self, start_s: float, bins: int) -> FloatArray:
        if self.holidays is None:
            return np.ones(bins)
        factor = self.holidays.factor(start_s, self.end.bin_s, bins)[0]
        return np.asarray(factor, np.float64)

    def cycles(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        return self.harmonics.design(start_s, bin_s, bins) @ self.coefficients


class Arima:
    """ARIMA(p, d, q) around daily and weekly harmonics, of the square root of demand.

    The root keeps forecasts positive, evens out the variance of counts (that of a Poisson count's
    root is 1/4), is defined at zero and scales with the demand. With ``z ~ N(m, s^2)`` the root,
    quantiles are ``max(0, m + s q)^2`` and the mean is
    ``E[max(0, z)^2] = (m^2 + s^2) Phi(m / s) + m s phi(m / s)``.

    A KPSS test on the residuals of the harmonics gives ``d``. AIC then chooses the number of
    harmonics, which may be 0, and ``(p, q)``. Gaps are missing observations of the state space.
    Quantiles include future shocks, not the uncertainty of the parameters.

    Only the latest ``limits.bins`` bins are used; the order's text says so. With ``always`` there
    is at least one harmonic of the day and of the week if the history can identify them
    ("arima-fourier").
    """

    def __init__(
        self,
        horizon_bins: int = 4,
        lead_bins: int = 0,
        *,
        limits: Limits = DEFAULT_LIMITS,
        always: bool = False,
    ) -> None:
        self.horizon_bins, self.lead_bins = horizon_bins, lead_bins
        self.limits = limits
        self.always = always
        self.method = "arima-fourier" if always else "arima"
        self._state: _Fit | None = None

    def fit(self, series: DemandSeries) -> Self:
        """Choose orders and estimate; raise SeriesTooShort below MIN_OBSERVED observed bins."""
        # More BLAS threads gain nothing on such small matrices. On busy cores they wait for each
        # other: 0.3 s becomes 10 s.
        with single_blas_thread():
            self._state = self._estimate(series)
        return self

    def update(self, series: DemandSeries) -> Self:
        state = require_fitted(self._state, self.method)
        old_values = state.history.values
        history = replace(state.history, values=np.concatenate([old_values, series.values]))
        lost = newly_cleaned(history.values[None], history.bin_s, state.fitted_bins)[1]
        lost = lost[lost >= state.fitted_bins]
        # Start again from the fit if earlier bins turn out to be no demand only now.
        restart = not np.array_equal(lost[lost < old_values.size], state.lost)
        first = state.fitted_bins if restart else old_values.size
        model = state.fitted_model if restart else state.model
        state = replace(state, end=state.end.extend(series), history=history, lost=lost)
        values = state.standardised(_with_gaps(history, lost))
        peaks = state.peaks
        for origin in range(peaks.next_origin, history.bins, peaks.horizon_bins):
            if origin > first:
                model = model.advance(values[first:origin])
            first = max(origin, first)
            start_s = history.start_s + origin * history.bin_s
            peaks = peaks.append(origin, state.peak(model, start_s))
        model = model.advance(values[first:])
        self._state = replace(state, model=model, peaks=peaks)
        return self

    def predict(self, steps: int) -> Forecast:
        state = require_fitted(self._state, self.method)
        check_steps(steps, self.method)
        end = state.end
        mean, deviation = state.path(state.model, end.end_s, steps)
        amount = state.amount * state.factor(end.end_s, steps)
        roots = mean + deviation * scipy.special.ndtri(QUANTILES)[:, None]
        return Forecast(
            key=end.key,
            start_s=end.end_s,
            bin_s=end.bin_s,
            unit=end.unit,
            mean=amount * _mean_square(mean, deviation),
            levels=QUANTILES,
            quantiles=amount * np.maximum(0.0, roots) ** 2,
            method=self.method,
            order=state.label,
            fit_seconds=state.fit_seconds,
            past=state.peaks.past_peaks(state.history, state.amount),
        )

    def _estimate(self, series: DemandSeries) -> _Fit:
        started = perf_counter()
        end = SeriesEnd.of(series)
        observed = self._latest_bins(series)
        lost = newly_cleaned(observed.values[None], observed.bin_s, 0)[1]
        history = _with_gaps(observed, lost)
        holidays = HolidayRatio.fit(
            observed.holidays, history.values[None], observed.start_s, observed.bin_s
        )
        if holidays is not None:
            factor = holidays.factor(observed.start_s, observed.bin_s, observed.bins)[0]
            history = replace(history, values=history.values / factor)
        amount = float(np.nanmean(history.values)) or 1.0
        root = np.sqrt(history.values / amount)
        constant = bool(np.nanmax(root) - np.nanmin(root) < SMALLEST_SPREAD)
        cycles, d = (Harmonics(), 1) if constant else self._cycles(root, history)
        design = cycles.design(history.start_s, history.bin_s, history.bins)
        coefficients = np.zeros(1) if constant else harmonics.regress(root, d, design)
        residual = root - design @ coefficients
        # An ARIMA with d = 1 has no mean: start it at 0.
        origin = float(residual[~np.isnan(residual)][0]) if d else 0.0
        spread = _spread(residual, d)
        max_p, max_q = (0, 0) if spread <= SMALLEST_SPREAD else (self.limits.p, self.limits.q)
        best = fit_orders((residual - origin) / spread, d, max_p, max_q)
        fit = _Fit(
            end=end,
            amount=amount,
            harmonics=cycles,
            coefficients=coefficients,
            origin=origin,
            spread=spread,
            model=best.model,
            label=_label(best.order, cycles, series.bins, self.limits.bins),
            fit_seconds=perf_counter() - started,
            fitted_model=best.model,
            fitted_bins=observed.bins,
            history=observed,
            lost=lost[:0],
            holidays=holidays,
            peaks=PeakHistory.empty(self.horizon_bins, self.lead_bins, observed.bins),
        )
        return replace(fit, peaks=_peaks_before_fit(fit, best))

    def _latest_bins(self, series: DemandSeries) -> DemandSeries:
        """Return the latest ``limits.bins`` bins from the first observed one on."""
        limit = self.limits.bins
        observed = np.flatnonzero(~np.isnan(series.values[-limit:]))
        if observed.size < MIN_OBSERVED:
            raise SeriesTooShort(
                f"{series.key}: arima needs at least {MIN_OBSERVED} observed bins and has "
                f"{observed.size}. Give a longer history or use narrower bins."
            )
        first = max(0, series.bins - limit) + int(observed[0])
        return replace(
            series,
            start_s=series.start_s + first * series.bin_s,
            values=series.values[first:],
        )

    def _cycles(self, root: FloatArray, history: DemandSeries) -> tuple[Harmonics, int]:
        """Return harmonics and ``d``, from the residuals of the most harmonics."""
        start_s, bin_s, bins = history.start_s, history.bin_s, history.bins
        options = harmonics.candidate_harmonics(bin_s, bins, self.limits.daily, self.limits.weekly)
        if self.always:
            day, week = min(1, options[-1].daily), min(1, options[-1].weekly)
            options = tuple(
                option for option in options if option.daily >= day and option.weekly >= week
            )
        full_design = options[-1].design(start_s, bin_s, bins)
        residual = root - full_design @ harmonics.regress(root, 0, full_design)
        constant = _spread(residual, 0) <= SMALLEST_SPREAD
        d = 0 if constant else choose_differences(residual)
        return harmonics.choose_harmonics(root, d, start_s, bin_s, options), d


def _peaks_before_fit(fit: _Fit, best: FittedOrder) -> PeakHistory:
    """Forecast the peaks of past windows with the parameters of the fit."""
    peaks = fit.peaks
    for origin in range(peaks.next_origin, fit.history.bins, peaks.horizon_bins):
        start_s = fit.history.start_s + origin * fit.history.bin_s
        peaks = peaks.append(origin, fit.peak(best.at(origin), start_s))
    return peaks


def _with_gaps(series: DemandSeries, lost: IntArray) -> DemandSeries:
    """Replace the ``lost`` bins by gaps."""
    values = series.values.copy()
    values[lost] = np.nan
    return replace(series, values=values)


def _spread(values: FloatArray, d: int) -> float:
    """Return the root mean square of the values or differences, at least SMALLEST_SPREAD."""
    squares = np.diff(values, n=d) ** 2
    squares = squares[~np.isnan(squares)]
    if squares.size == 0:  # gaps between all observed bins: no difference is known
        return _spread(values, 0)
    return max(SMALLEST_SPREAD, float(np.sqrt(squares.mean())))


def _mean_square(mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return ``E[max(0, z)^2]`` for ``z ~ N(mean, deviation^2)``."""
    ratio = np.clip(mean / np.maximum(deviation, 1e-12), -40.0, 40.0)  # Phi and phi are flat there
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    square = (mean**2 + deviation**2) * scipy.special.ndtr(ratio) + mean * deviation * density
    return np.asarray(np.maximum(0.0, square))  # rounding can make it negative


def _label(order: Order, cycles: Harmonics, bins: int, limit: int) -> str:
    label = f"{order} + {cycles}" if str(cycles) else str(order)
    return f"{label}, on the last {limit} bins" if bins > limit else label
