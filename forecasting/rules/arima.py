"""ARIMA with daily and weekly harmonics, orders by AIC: the forecast of SageServe (methods E6).

It models the square root of demand: forecasts are then positive, counts have a constant variance,
and zero is defined. The root is the sum of cycles (harmonics) and an ARIMA process. Each series is
fitted alone (``arima_fit``). All series are forecast together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting import harmonics
from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, mean_scale, windows_at
from forecasting.harmonics import Harmonics
from forecasting.recursion import recursion
from forecasting.rules.arima_fit import FittedOrder, choose_differences, fit_orders
from forecasting.rules.cyclic import Cyclic
from forecasting.rules.scales import Root

MIN_OBSERVED = 24  # bins: three for each of eight parameters, (3, d, 2) with a mean
SMALLEST_SPREAD = 1e-9  # for series around 1: a smaller spread is only rounding
MEMORY = 512  # bins: an older one weighs less than 1e-11 (``arima_fit.LARGEST_MA_ROOT``)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest orders, numbers of harmonics and history of a fit."""

    p: int = 3
    q: int = 2
    daily: int = 6  # harmonics
    weekly: int = 3  # harmonics
    bins: int = 4032  # six weeks of 15 min, two of 5 min: limits the time of a fit


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, eq=False)
class _SeriesModel:
    """The fitted model of one series; see ``FittedArima`` for the fields."""

    cycles: FloatArray  # [columns of the design of the most harmonics]
    ar: FloatArray  # [lags]
    ma: FloatArray  # [lags]
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class FittedArima(Cyclic):
    """An ARIMA around harmonics for every series.

    ``ar`` is NaN for series with too few observed bins.
    """

    ar: FloatArray  # [series, lags] coefficients of past deviations, with differences multiplied in
    ma: FloatArray  # [series, lags] coefficients of past shocks
    labels: tuple[str, ...]  # [series] orders in words

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the forecast of ``steps`` bins from each origin, ``[series, origins, steps]``.

        A series without an observed bin before the origin has NaN.
        """
        amounts = self.paths_around(panel, origins, steps, MEMORY, self._deviations_ahead)
        observed_so_far = np.logical_or.accumulate(panel.observed_bins, axis=1)
        return np.where(observed_so_far[:, origins - 1, None], amounts, np.nan)

    def _deviations_ahead(
        self, deviations: FloatArray, origin_bins: IntArray, steps: int
    ) -> FloatArray:
        """Return the expected deviations from the cycles, ``[series, origins, steps]``.

        ``deviations [series, bins]`` are those of the past, and ``origin_bins`` is the bin of each
        origin. Later shocks are expected to be 0.
        """
        ar_lags, ma_lags = self.ar.shape[1], self.ma.shape[1]
        filled, shocks = self._filter(deviations)
        # These arrays begin with an extra bin for each lag. So the window of ``lags`` bins at index
        # ``origin_bins`` has the bins before the origin.
        past_shocks = windows_at(shocks, origin_bins, ma_lags)
        # The bins before the origin, then the steps: step k has the index ``ar_lags + k``.
        ahead = np.zeros((len(deviations), len(origin_bins), ar_lags + steps))
        ahead[:, :, :ar_lags] = windows_at(filled, origin_bins, ar_lags)
        for step in range(steps):
            expected = ahead[:, :, ar_lags + step]  # a view, which is changed in place
            for lag, weight in enumerate(self.ar.T, start=1):
                expected += weight[:, None] * ahead[:, :, ar_lags + step - lag]
            for lag in range(step + 1, ma_lags + 1):  # only shocks before the origin are not 0
                expected += self.ma[:, lag - 1, None] * past_shocks[:, :, ma_lags + step - lag]
        return ahead[:, :, ar_lags:]

    def _filter(self, deviations: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``deviations [series, bins]`` with filled gaps, and the one-step errors (shocks).

        ``deviations`` are the transformed amounts less the cycles. A gap gets its expected value
        and no shock. Both results are ``[series, lags and bins]``: they begin with extra bins that
        the first lags need.
        """
        series, bins = deviations.shape
        ar_lags, ma_lags = self.ar.shape[1], self.ma.shape[1]
        # Both are [lags and bins, series].
        filled = np.empty((ar_lags + bins, series))
        filled[:ar_lags] = self._first_values(deviations)
        shocks = np.zeros((ma_lags + bins, series))
        has_gap = np.isnan(deviations).any(axis=1)
        for row in np.flatnonzero(~has_gap):  # a compiled recursion suffices without gaps
            filled[ar_lags:, row] = deviations[row]
            unexplained = np.convolve(filled[:, row], np.r_[1.0, -self.ar[row]], mode="valid")
            shocks[ma_lags:, row] = recursion(unexplained[None], self.ma[row])
        if has_gap.any():
            self._filter_by_bin(deviations[has_gap], np.flatnonzero(has_gap), filled, shocks)
        return filled.T, shocks.T

    def _first_values(self, deviations: FloatArray) -> FloatArray:
        """Return the value before the first bin, ``[series]``.

        A random walk begins at its first observed value, a stationary series at its mean, 0.
        """
        known = ~np.isnan(deviations)
        first_observed = deviations[np.arange(len(deviations)), np.argmax(known, axis=1)]
        is_walk = np.isclose(self.ar.sum(axis=1), 1.0)
        return np.where(is_walk & known.any(axis=1), first_observed, 0.0)

    def _filter_by_bin(
        self, deviations: FloatArray, rows: IntArray, filled: FloatArray, shocks: FloatArray
    ) -> None:
        """Filter series with gaps bin by bin, and write the results to ``filled`` and ``shocks``.

        Both are ``[lags and bins, series]``. ``deviations [rows, bins]`` are the deviations of the
        series ``rows``.
        """
        ar, ma = self.ar[rows, ::-1].T, self.ma[rows, ::-1].T  # [lags, rows], the oldest bin first
        values, errors = filled[:, rows], shocks[:, rows]
        for t, value in enumerate(np.ascontiguousarray(deviations.T)):
            # The lagged bins of bin t are the rows before ``t + lags``.
            expected = (ar * values[t : t + len(ar)]).sum(axis=0)
            expected += (ma * errors[t : t + len(ma)]).sum(axis=0)
            known = ~np.isnan(value)
            values[t + len(ar)] = np.where(known, value, expected)
            errors[t + len(ma)] = np.where(known, value - expected, 0.0)
        filled[:, rows], shocks[:, rows] = values, errors


@dataclass(frozen=True, slots=True)
class Arima:
    """ARIMA(p, d, q) around harmonics; ``d`` by a KPSS test, then harmonics and orders by AIC.

    Only the latest ``limits.bins`` bins are used. With ``always`` ("arima-fourier") there is at
    least one harmonic of the day and of the week, if the history can identify them.
    """

    always: bool = False
    limits: Limits = DEFAULT_LIMITS

    def fit(self, panel: Panel) -> FittedArima:
        """Return a model with the cycles and ARMA orders of each series.

        They are fitted to the last ``limits.bins`` bins of the panel.
        """
        first = max(0, panel.bins - self.limits.bins)
        values = panel.values[:, first:]
        start_s = panel.start_s + first * panel.bin_s
        options = self._options(panel.bin_s, values.shape[1])
        scale = Root(mean_scale(values))
        most_harmonics = options[-1]
        design = most_harmonics.design(start_s, panel.bin_s, values.shape[1])
        rows = [self._fit_series(root, design, options) for root in scale.transform(values)]
        suffix = f", on the last {self.limits.bins} bins" if first else ""
        return FittedArima(
            scale=scale,
            harmonics=most_harmonics,
            cycles=np.stack([row.cycles for row in rows]),
            ar=np.stack([row.ar for row in rows]),
            ma=np.stack([row.ma for row in rows]),
            labels=tuple(row.label + suffix for row in rows),
        )

    def _options(self, bin_s: float, bins: int) -> tuple[Harmonics, ...]:
        """Return the numbers of harmonics that ``bins`` of history allow, the simplest first."""
        options = harmonics.candidate_harmonics(bin_s, bins, self.limits.daily, self.limits.weekly)
        if self.always:
            day, week = min(1, options[-1].daily), min(1, options[-1].weekly)
            options = tuple(
                option for option in options if option.daily >= day and option.weekly >= week
            )
        return options

    def _fit_series(
        self, root: FloatArray, design: FloatArray, options: Sequence[Harmonics]
    ) -> _SeriesModel:
        """Return the fit of one series.

        ``root [bins]`` is the square root of its demand, NaN in gaps. ``options`` are the harmonics
        to choose among, and ``design [bins, columns]`` that of the most harmonics. With too few
        observed bins, ``ar`` is NaN.
        """
        seen = ~np.isnan(root)
        cycles = np.zeros(design.shape[1])
        if seen.sum() < MIN_OBSERVED:
            return _SeriesModel(
                cycles, np.full(self.limits.p + 1, np.nan), np.zeros(self.limits.q), ""
            )
        if np.ptp(root[seen]) < SMALLEST_SPREAD:  # a constant: repeat it
            return self._series_model(cycles, FittedOrder((0, 1, 0), np.empty(0), np.inf), "")

        d = choose_differences(root, design)
        if d and (seen[1:] & seen[:-1]).sum() < MIN_OBSERVED:  # hardly a difference is known
            root = harmonics.carry_forward(root)
        chosen = harmonics.choose_harmonics(root, d, design, options)
        columns = chosen.columns(options[-1])
        cycles[columns] = harmonics.regress(root, d, design[:, columns])
        best = self._fit_arma(root - design @ cycles, d, first=int(np.argmax(seen)))
        return self._series_model(cycles, best, str(chosen))

    def _series_model(
        self, cycles: FloatArray, arma: FittedOrder, cycles_text: str
    ) -> _SeriesModel:
        """Return the model of a series with the cycles' coefficients and the process ``arma``."""
        p, d, q = arma.order
        ar, ma = np.zeros(self.limits.p + 1), np.zeros(self.limits.q)
        ma[:q] = arma.parameters[p:]
        # The AR polynomial times (1 - B)^d, where B is the lag, forecasts the values themselves.
        ar_polynomial, difference = [1.0, *-arma.parameters[:p]], [1.0, -1.0][: 1 + d]
        ar[: p + d] = -np.convolve(ar_polynomial, difference)[1:]
        label = f"{arma.order} + {cycles_text}" if cycles_text else str(arma.order)
        return _SeriesModel(cycles, ar, ma, label)

    def _fit_arma(self, deviations: FloatArray, d: int, first: int) -> FittedOrder:
        """Return the ARMA fit of ``deviations``, differenced ``d`` times; ``first`` is observed."""
        spread = _spread(deviations, d)
        if spread <= SMALLEST_SPREAD:
            return FittedOrder((0, d, 0), np.empty(0), np.inf)  # white noise: nothing is left
        scaled = (deviations - deviations[first] * d) / spread  # a differenced series begins at 0
        return fit_orders(scaled, d, self.limits.p, self.limits.q)


def _spread(values: FloatArray, d: int) -> float:
    """Return the root mean square of the ``d``-th differences, at least SMALLEST_SPREAD."""
    squares = np.diff(values, n=d) ** 2
    squares = squares[~np.isnan(squares)]
    if squares.size == 0:  # gaps between all observed bins: no difference is known
        return _spread(values, 0)
    return max(SMALLEST_SPREAD, float(np.sqrt(squares.mean())))
