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
class _Row:
    """The fitted model of one series; see ``FittedArima`` for the fields."""

    cycles: FloatArray  # [columns of the design of the most harmonics]
    ar: FloatArray  # [lags]
    ma: FloatArray  # [lags]
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class FittedArima:
    """An ARIMA around harmonics for every series.

    ``ar`` is NaN for series with too few observed bins.
    """

    scale: Root
    harmonics: Harmonics
    cycles: FloatArray  # [series, columns of the harmonics' design] coefficients
    ar: FloatArray  # [series, lags] coefficients of past deviations, with differences multiplied in
    ma: FloatArray  # [series, lags] coefficients of past shocks
    labels: tuple[str, ...]  # [series] orders in words

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the forecast of ``steps`` bins from each origin, ``[series, origins, steps]``.

        Later shocks are expected to be 0. A series without an observed bin before the origin has
        NaN.
        """
        bins = int(origins[-1])
        # Arrays begin at bin ``first``: earlier bins hardly matter.
        first = max(0, int(origins[0]) - MEMORY)
        start = origins - first  # index of each origin in these arrays
        start_s = panel.start_s + first * panel.bin_s
        design = self.harmonics.design(start_s, panel.bin_s, bins - first + steps)
        cycle = self.cycles @ design.T
        root = self.scale.transform(panel.values[:, first:bins])
        # They begin with an extra bin for each of their lags.
        deviations, shocks = self._filter(root - cycle[:, : bins - first])
        ar_lags, ma_lags = self.ar.shape[1], self.ma.shape[1]

        deviations_ahead = np.zeros((len(root), len(origins), steps))
        for step in range(steps):
            for lag, weight in enumerate(self.ar.T, start=1):
                if lag <= step:  # the lagged bin is forecast too
                    lagged = deviations_ahead[:, :, step - lag]
                else:
                    lagged = deviations[:, ar_lags + start + step - lag]
                deviations_ahead[:, :, step] += weight[:, None] * lagged
            for lag, weight in enumerate(self.ma.T, start=1):
                if lag > step:  # later shocks are expected to be 0
                    shock = shocks[:, ma_lags + start + step - lag]
                    deviations_ahead[:, :, step] += weight[:, None] * shock
        amounts = self.scale.inverse(deviations_ahead + windows_at(cycle, start, steps))
        observed_so_far = np.logical_or.accumulate(panel.observed_bins[:, :bins], axis=1)
        return np.where(observed_so_far[:, origins - 1, None], amounts, np.nan)

    def _filter(self, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``rest [series, bins]`` with filled gaps, and the one-step errors (shocks).

        ``rest`` are the transformed amounts less the cycles. A gap gets its expected value and no
        shock. Both results are ``[series, lags and bins]``: they begin with extra bins that the
        first lags need.
        """
        known = ~np.isnan(rest)
        series, bins = rest.shape
        ar_lags, ma_lags = self.ar.shape[1], self.ma.shape[1]
        # A random walk begins at its first observed value, a stationary series at its mean.
        first_observed = rest[np.arange(series), np.argmax(known, axis=1)]
        begin = np.where(known.any(axis=1), first_observed, 0.0)
        is_walk = np.isclose(self.ar.sum(axis=1), 1.0)
        # Both are [lags and bins, series].
        filled = np.empty((ar_lags + bins, series))
        filled[:ar_lags] = np.where(is_walk, begin, 0.0)
        shocks = np.zeros((ma_lags + bins, series))
        has_gap = ~known.all(axis=1)
        for row in np.flatnonzero(~has_gap):  # a compiled recursion suffices without gaps
            filled[ar_lags:, row] = rest[row]
            unexplained = np.convolve(filled[:, row], np.r_[1.0, -self.ar[row]], mode="valid")
            shocks[ma_lags:, row] = recursion(unexplained[None], self.ma[row])
        if has_gap.any():
            self._filter_by_bin(rest[has_gap], np.flatnonzero(has_gap), filled, shocks)
        return filled.T, shocks.T

    def _filter_by_bin(
        self, rest: FloatArray, rows: IntArray, filled: FloatArray, shocks: FloatArray
    ) -> None:
        """Filter series with gaps bin by bin, and write the results to ``filled`` and ``shocks``.

        Both are ``[lags and bins, series]``. ``rest [rows, bins]`` are the deviations of the series
        ``rows``.
        """
        ar, ma = self.ar[rows, ::-1].T, self.ma[rows, ::-1].T  # [lags, rows], the oldest bin first
        ar_lags, ma_lags = len(ar), len(ma)
        values, errors = filled[:, rows], shocks[:, rows]
        for t, value in enumerate(np.ascontiguousarray(rest.T)):
            # The lagged bins of bin t are the rows before ``t + lags``.
            expected = (ar * values[t : t + ar_lags]).sum(axis=0)
            expected += (ma * errors[t : t + ma_lags]).sum(axis=0)
            known = ~np.isnan(value)
            values[t + ar_lags] = np.where(known, value, expected)
            errors[t + ma_lags] = np.where(known, value - expected, 0.0)
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
    ) -> _Row:
        """Return the fit of one series.

        ``root [bins]`` is the square root of its demand, NaN in gaps. ``options`` are the harmonics
        to choose among, and ``design [bins, columns]`` that of the most harmonics. With too few
        observed bins, ``ar`` is NaN.
        """
        seen = ~np.isnan(root)
        cycles = np.zeros(design.shape[1])
        ar, ma = np.zeros(self.limits.p + 1), np.zeros(self.limits.q)
        if seen.sum() < MIN_OBSERVED:
            return _Row(cycles, np.full_like(ar, np.nan), ma, "")
        if np.ptp(root[seen]) < SMALLEST_SPREAD:  # a constant: repeat it
            ar[0] = 1.0
            return _Row(cycles, ar, ma, "(0, 1, 0)")

        # Number of differences (0 or 1), then the cycles.
        d = choose_differences(root, design)
        if d and (seen[1:] & seen[:-1]).sum() < MIN_OBSERVED:  # hardly a difference is known
            root = harmonics.carry_forward(root)
        chosen = harmonics.choose_harmonics(root, d, design, options)
        columns = chosen.columns(options[-1])
        cycles[columns] = harmonics.regress(root, d, design[:, columns])

        # ARMA orders of the rest, scaled to a mean square of 1.
        rest = root - design @ cycles
        spread = _spread(rest, d)
        best = FittedOrder((0, d, 0), np.empty(0), np.inf)  # white noise, if nothing is left
        if spread > SMALLEST_SPREAD:
            scaled = (rest - rest[seen][0] * d) / spread  # a differenced series begins at 0
            best = fit_orders(scaled, d, self.limits.p, self.limits.q)
        p, _, q = best.order
        ma[:q] = best.parameters[p:]
        # The AR polynomial times (1 - B)^d, where B is the lag, forecasts the values themselves.
        ar_polynomial, difference = [1.0, *-best.parameters[:p]], [1.0, -1.0][: 1 + d]
        ar[: p + d] = -np.convolve(ar_polynomial, difference)[1:]
        label = " + ".join(filter(None, (str(best.order), str(chosen))))
        return _Row(cycles, ar, ma, label)


def _spread(values: FloatArray, d: int) -> float:
    """Return the root mean square of the ``d``-th differences, at least SMALLEST_SPREAD."""
    squares = np.diff(values, n=d) ** 2
    squares = squares[~np.isnan(squares)]
    if squares.size == 0:  # gaps between all observed bins: no difference is known
        return _spread(values, 0)
    return max(SMALLEST_SPREAD, float(np.sqrt(squares.mean())))
