"""Cycles of day and week and an autoregression around them, of all series at once.

On the logarithm or the root of demand, in two steps. The cycles are Fourier terms whose design
matrix all series share, so that they are one product of matrices; gaps are filled with the fit
and fitted again. What they leave over is regressed on itself some bins, a day and a week before
by the normal equations of every series, with a ridge. Phases are those of UTC epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.harmonics import DAY_S, WEEK_S, Harmonics
from forecasting.panel import Panel, at_origins, scale_of
from forecasting.rules.scales import Logarithm, Root, Scale

DAILY, WEEKLY = 6, 3
LAGS = 6  # bins right before; with the day and the week one more each
RIDGE = 0.01  # of the mean square of a regressor
REFITS = 3  # of the cycles where there are gaps
MEMORY = 96  # bins before twice the farthest lag: as far back as gaps are filled from
AT_ONCE = 16  # fillings of all gaps, each right for one gap more of those in a row
CEILING = 2.0  # times the most that was ever seen: an autoregression must not run away
SMALLEST = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Autoregressive:
    scale: Scale
    harmonics: Harmonics
    cycles: FloatArray  # [series, columns of the harmonics' design]
    lags: tuple[int, ...]  # bins
    weights: FloatArray  # [series, lags]

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        bins = int(origins[-1])
        first = max(0, int(origins[0]) - 2 * max(self.lags, default=0) - MEMORY)
        start_s = panel.start_s + first * panel.bin_s
        design = self.harmonics.design(start_s, panel.bin_s, bins - first + steps)
        cycle = self.cycles @ design.T
        left = self.scale.forth(panel.values[:, first:bins]) - cycle[:, : bins - first]
        left = self._filled(left)
        ahead = np.zeros((len(left), len(origins), steps))
        for step in range(steps):
            for lag, weight in zip(self.lags, self.weights.T, strict=True):
                if lag <= step:
                    before = ahead[:, :, step - lag]
                else:
                    source = origins - first + step - lag
                    before = np.where(source >= 0, left[:, np.maximum(source, 0)], 0.0)
                ahead[:, :, step] += weight[:, None] * before
        amounts = self.scale.back(ahead + at_origins(cycle, origins - first, steps))
        most = np.fmax.accumulate(panel.values[:, :bins], axis=1)[:, origins - 1, None]
        return np.minimum(amounts, CEILING * np.nan_to_num(most))

    def _filled(self, left: FloatArray) -> FloatArray:
        """``left [series, bins]`` with what the autoregression expects in the gaps."""
        rows, bins = np.nonzero(np.isnan(left))
        filled = np.where(np.isnan(left), 0.0, left)
        source = bins[:, None] - np.array(self.lags, dtype=np.int64)
        weights = np.where(source >= 0, self.weights[rows], 0.0)
        source = np.maximum(source, 0)
        for _ in range(AT_ONCE):  # gaps rarely follow on each other for long
            expected = (weights * filled[rows[:, None], source]).sum(axis=1)
            if np.array_equal(expected, filled[rows, bins]):
                return filled
            filled[rows, bins] = expected
        order = np.argsort(bins, kind="stable")
        ends = np.flatnonzero(np.diff(bins[order], append=-1))
        for some in np.split(order, ends + 1)[:-1]:  # one bin after the other
            lagged = filled[rows[some][:, None], source[some]]
            filled[rows[some], bins[some]] = (weights[some] * lagged).sum(axis=1)
        return filled


@dataclass(frozen=True, slots=True)
class Regression:
    on: Literal["logarithm", "root"] = "logarithm"
    cycles: bool = True

    def learn(self, panel: Panel) -> Autoregressive:
        mean = scale_of(panel.values)
        scale = Logarithm(mean) if self.on == "logarithm" else Root(mean)
        scaled = scale.forth(panel.values)
        seen = ~np.isnan(scaled)
        harmonics = self._harmonics(panel)
        design = harmonics.design(panel.start_s, panel.bin_s, panel.bins)
        cycles = _cycles(scaled, seen, design)
        left = np.where(seen, scaled - cycles @ design.T, 0.0)
        lags = self._lags(panel)
        return Autoregressive(
            scale=scale,
            harmonics=harmonics,
            cycles=cycles,
            lags=lags,
            weights=_weights(left, seen, lags),
        )

    def _harmonics(self, panel: Panel) -> Harmonics:
        """Daily terms from two days on, weekly ones from two weeks on."""
        span_s = panel.bins * panel.bin_s
        nyquist = int((DAY_S / panel.bin_s - 1) // 2)
        daily = max(0, min(DAILY, nyquist)) if self.cycles and span_s >= 2 * DAY_S else 0
        return Harmonics(daily, WEEKLY if daily and span_s >= 2 * WEEK_S else 0)

    def _lags(self, panel: Panel) -> tuple[int, ...]:
        near = range(1, 1 + min(LAGS, panel.bins // (2 * LAGS)))
        far = [
            season + more
            for season in (panel.season(DAY_S), panel.season(WEEK_S))
            for more in (0, 1)
            if season > LAGS and panel.bins >= 2 * season + LAGS
        ]
        return (*near, *far)


def _cycles(scaled: FloatArray, seen: FloatArray, design: FloatArray) -> FloatArray:
    """Coefficients of every series on the shared design: [series, columns]."""
    columns = design.shape[1]
    ridge = RIDGE * len(design) * np.eye(columns)
    ridge[0, 0] = SMALLEST  # the mean is not held back
    solve = np.linalg.solve(design.T @ design + ridge, design.T)
    count = np.maximum(seen.sum(1, keepdims=True), 1)
    filled = np.where(seen, scaled, np.where(seen, scaled, 0.0).sum(1, keepdims=True) / count)
    coefficients = filled @ solve.T
    if not seen.all():
        for _ in range(REFITS):
            filled = np.where(seen, scaled, coefficients @ design.T)
            coefficients = filled @ solve.T
    return np.asarray(coefficients)


def _weights(left: FloatArray, seen: FloatArray, lags: tuple[int, ...]) -> FloatArray:
    """Of each series' bins on those ``lags`` before: [series, lags]."""
    if not lags:
        return np.zeros((len(left), 0))
    first, bins = max(lags), left.shape[1]
    target = left[:, first:] * seen[:, first:]
    before = [left[:, first - lag : bins - lag] * seen[:, first:] for lag in lags]
    normal = np.empty((len(left), len(lags), len(lags)))
    moments = np.empty((len(left), len(lags)))
    for i, lagged in enumerate(before):
        moments[:, i] = np.einsum("st,st->s", lagged, target)
        for j in range(i + 1):
            normal[:, i, j] = normal[:, j, i] = np.einsum("st,st->s", lagged, before[j])
    size = np.trace(normal, axis1=1, axis2=2)[:, None, None] / len(lags)
    normal += (RIDGE * size + SMALLEST) * np.eye(len(lags))
    return np.asarray(np.linalg.solve(normal, moments[:, :, None])[:, :, 0])
