"""Any number of series forecast together: fit once, follow bin by bin, choose by what came.

From every past origin of the history each method says what it would have said then, with
parameters of the time before. What those paths missed by chooses among methods ("auto", "ensemble")
and makes the bands of a forecast, per bin and of the peak of a window. Parameters are learnt anew
as the history grows by half, and once a day; every bin between only moves the state.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecasting import conformal
from forecasting.arrays import FloatArray, IntArray
from forecasting.choice import Running, choose, ensemble_weights
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES, PanelForecast
from forecasting.learning import Learning
from forecasting.panel import Panel, at_origins, scale_of
from forecasting.rules.registry import AUTO, ENSEMBLE, LAST_VALUE, RULES
from forecasting.rules.scales import OFFSET
from forecasting.said import InForce, Past, PastForecasts, RecentErrors
from forecasting.threads import alone, side_by_side

ORIGINS = 336  # past moments that methods are judged from: every one, or so many of them
BAND = 168  # latest windows that bands rest on: a week by the hour
FIRST = 0.25  # share of the history that the first of them has
CLIP = 1.0  # log ratio beyond which a peak that was missed says nothing of the next
TOGETHER = 2000  # series times bins of the window at a time, to bound memory


class Batch:
    """``method`` for every series of a panel. The peak it is judged on is that of a window of
    ``horizon_bins`` which begins ``lead_bins`` after the origin."""

    def __init__(self, method: str, horizon_bins: int = 4, lead_bins: int = 0) -> None:
        if method not in (AUTO, ENSEMBLE, *RULES):
            raise ForecastError(f"{method} does not forecast series together; choose another.")
        if horizon_bins < 1 or lead_bins < 0:
            raise ForecastError(
                f"{method}: a window of {horizon_bins} bins, {lead_bins} ahead; give at least 1 "
                "bin and a lead of 0 or more."
            )
        self.method, self.horizon_bins, self.lead_bins = method, horizon_bins, lead_bins
        self._groups: list[_Group] = []
        self._rows: list[slice] = []

    def fit(self, panel: Panel) -> Self:
        if not panel.bins:  # nothing yet is one bin that was not observed
            nothing = np.full((len(panel.values), 1), np.nan)
            panel = replace(panel, start_s=panel.start_s - panel.bin_s, values=nothing)
        size = max(1, TOGETHER // (self.lead_bins + self.horizon_bins))
        self._rows = [slice(start, start + size) for start in range(0, len(panel.values), size)]
        with alone():
            parts = [replace(panel, values=panel.values[rows]) for rows in self._rows]
            self._groups = side_by_side(partial(_Group, self), parts)
        return self

    def update(self, values: FloatArray) -> Self:
        """Take in the bins ``values [series, new]`` that follow."""
        with alone():
            new = [values[rows] for rows in self._rows]
            side_by_side(_Group.update, self._groups, new)
        return self

    def predict(self, steps: int) -> PanelForecast:
        with alone():
            pieces = side_by_side(partial(_Group.predict, steps=steps), self._groups)
        return replace(
            pieces[0],
            mean=np.concatenate([piece.mean for piece in pieces]),
            top=np.concatenate([piece.top for piece in pieces]),
            quantiles=np.concatenate([piece.quantiles for piece in pieces]),
            peaks=np.concatenate([piece.peaks for piece in pieces]),
            methods=tuple(name for piece in pieces for name in piece.methods),
            past=tuple(past for piece in pieces for past in piece.past),
            errors=np.concatenate([piece.errors for piece in pieces], axis=1),
            shares=np.concatenate([piece.shares for piece in pieces], axis=1),
        )


class _Group:
    """Series of one chunk."""

    def __init__(self, batch: Batch, panel: Panel) -> None:
        self.method = batch.method
        self.names = tuple(RULES) if batch.method in (AUTO, ENSEMBLE) else (batch.method,)
        self.horizon, self.lead = batch.horizon_bins, batch.lead_bins
        self.window = self.lead + self.horizon
        self.panel = panel
        self.scale = scale_of(panel.values)
        self.first = max(1, int(FIRST * panel.bins))
        self.stride = max(1, -(-(panel.bins - self.first) // ORIGINS))
        self.learning = Learning(self.names, panel, self.first)
        self._begin(2 * self.window)

    def _begin(self, reach: int) -> None:
        """Say from all origins what would have been said, ``reach`` bins ahead."""
        methods, series = len(self.names), len(self.panel.values)
        apart = self.stride / self.horizon
        self.said = PastForecasts.nothing(methods, series, reach)
        # log ratio of what came to each path's peak; errors of peaks as they are, then corrected
        # by that; and of the ensemble's
        self.bias = Running.of_none((methods, series), apart, none=0.0)
        self.errors = Running.of_none((2 * methods, series), apart, none=np.inf)
        self.mixed = Running.of_none((series,), apart, none=np.inf)
        self.here: tuple[int, FloatArray] | None = None  # paths after so many bins
        self._follow()

    def update(self, values: FloatArray) -> None:
        self.panel = replace(self.panel, values=np.concatenate([self.panel.values, values], axis=1))
        self._follow()

    def predict(self, steps: int) -> PanelForecast:
        panel = self.panel
        seen = panel.observed
        ages = np.where(seen.any(axis=1), np.argmax(seen[:, ::-1], axis=1), 0)
        reach = max(self.window, steps) + int(ages.max(initial=0))
        if reach > self.said.reach:
            self._begin(max(reach, 2 * self.said.reach))
        here = np.array([panel.bins])
        paths = self._ahead(here, max(steps, self.window))
        known = self._recent_errors(np.array([len(self.said.origins) + self._lag]))
        both = self._both(self._tops(paths), known.bias)
        combined = self._in_force(paths, both, known, self._last(here, paths))
        mean = combined.path[:, 0, :steps]
        top = running_top(mean, self.horizon)
        quantiles = np.empty((len(mean), len(QUANTILES), steps))
        peaks = np.empty_like(quantiles)
        lift = combined.lift[:, :1]
        for age in np.unique(ages):
            rows = np.flatnonzero(ages == age)
            bands = self._bands(rows, int(age), np.hstack([mean[rows], (lift * top)[rows]]))
            quantiles[rows], peaks[rows] = bands[:, :, :steps], bands[:, :, steps:]
        names = (*self.names, *self.names, ENSEMBLE)
        errors = np.concatenate([known.errors, known.mixed[None]])[:, :, 0]
        return PanelForecast(
            start_s=panel.start_s + panel.bins * panel.bin_s,
            bin_s=panel.bin_s,
            mean=mean,
            top=lift * top,
            levels=QUANTILES,
            quantiles=quantiles,
            peaks=peaks,
            methods=tuple(names[m] for m in combined.chosen[:, 0]),
            candidates=(*self.names, ENSEMBLE),
            errors=_better_of_both(errors, len(self.names)) / self.scale[:, 0],
            shares=self._by_method(both, known.errors)[:, :, 0],
            past=self._past(),
        )

    def _past(self) -> tuple[Past, ...]:
        """What was in force of each series, windows that do not overlap."""
        windows = np.arange(len(self.said.origins))[:: self._apart]
        windows = windows[self.said.origins[windows] + self.window <= self.panel.bins]
        origins = self.said.origins[windows] + self.lead
        came = at_origins(self.panel.values, origins, self.horizon).max(axis=2)  # a gap is one
        forecast = self.said.lifts[:, windows] * self._tops(self.said.paths[:, windows])
        starts = np.asarray(self.panel.start_s + origins * self.panel.bin_s, np.float64)
        scale = self.scale[:, 0].tolist()
        return tuple(Past(starts, *row) for row in zip(came, forecast, scale, strict=True))

    @property
    def _apart(self) -> int:
        """Origins from a window to the next that does not overlap it."""
        return max(1, round(self.horizon / self.stride))

    def _follow(self) -> None:
        """Say what would have been said from the origins that are new."""
        spoken = self.said
        origins = np.arange(
            self.first + self.stride * len(spoken.origins), self.panel.bins, self.stride
        )
        if not origins.size:
            self._judge()
            return
        paths = self.learning.paths(self.panel, np.append(origins, self.panel.bins), spoken.reach)
        self.here = self.panel.bins, paths[:, :, -1:].copy()
        paths = paths[:, :, :-1]
        new = len(spoken.origins) + np.arange(len(origins))
        self.said = spoken = replace(
            spoken,
            origins=np.concatenate([spoken.origins, origins]),
            tops=np.concatenate([spoken.tops, self._tops(paths)], axis=2),
        )
        self._judge()
        last = self._last(origins, paths)
        known = self._recent_errors(new)
        both = self._both(spoken.tops[:, :, new[0] :], known.bias)
        _, mixed_top = self._mixed(paths, both, known.errors, last)
        mixed_tops = np.concatenate([spoken.mixed_tops, mixed_top], axis=1)
        self.said = spoken = replace(spoken, mixed_tops=mixed_tops)
        self._judge()  # what was told just now, where it is of the past
        combined = self._in_force(paths, both, self._recent_errors(new), last)
        self.said = replace(
            spoken,
            paths=np.concatenate([spoken.paths, combined.path], axis=1),
            lifts=np.concatenate([spoken.lifts, combined.lift], axis=1),
        )
        self.bias, self.errors, self.mixed = (
            running.latest(self._lag) for running in (self.bias, self.errors, self.mixed)
        )

    def _ahead(self, here: IntArray, steps: int) -> FloatArray:
        """Paths from ``here``, the end, at least so many steps."""
        if self.here is None or self.here[0] < here[0] or self.here[1].shape[3] < steps:
            self.here = int(here[0]), self.learning.paths(self.panel, here, steps)
        return self.here[1]

    def _last(self, origins: IntArray, paths: FloatArray) -> FloatArray:
        """What stands where a method has nothing to say: the last value, 0 before there is any."""
        last = RULES[LAST_VALUE].learn(self.panel).paths(self.panel, origins, paths.shape[3])
        return np.nan_to_num(last)

    def _tops(self, paths: FloatArray) -> FloatArray:
        """Peaks of the window of paths [..., steps]."""
        return np.asarray(paths[..., self.lead : self.window].max(axis=-1))

    @property
    def _lag(self) -> int:
        """Origins until a window that began is over."""
        return -(-self.window // self.stride)

    def _judge(self) -> None:
        """Take in how far off peaks were, of windows that are over and not yet taken in."""
        spoken, over = self.said, int((self.said.origins + self.window <= self.panel.bins).sum())
        if over > self.bias.end:
            new = np.arange(self.bias.end, over)
            actual, tops = self._came(new), spoken.tops[:, :, new]
            ratio = np.clip(conformal.scores(actual, tops, self.scale), -CLIP, CLIP)
            self.bias = self.bias.then(ratio)
            both = self._both(tops, self.bias.upto(new - self._lag))
            self.errors = self.errors.then(np.abs(both - actual))
        windows = np.arange(self.mixed.end, min(over, spoken.mixed_tops.shape[1]))
        if windows.size:
            error = np.abs(spoken.mixed_tops[:, windows] - self._came(windows))
            self.mixed = self.mixed.then(error)

    def _recent_errors(self, origins: IntArray) -> RecentErrors:
        """How far off peaks were as far as it was known at each of ``origins``."""
        before = origins - self._lag
        return RecentErrors(
            *(running.upto(before) for running in (self.bias, self.errors, self.mixed))
        )

    def _came(self, origins: IntArray) -> FloatArray:
        """Peaks that came of the windows of ``origins``: [series, o]."""
        came = at_origins(self.panel.values, self.said.origins[origins] + self.lead, self.horizon)
        top = np.where(np.isnan(came), -np.inf, came).max(axis=2)
        # a window that ends in a gap is never counted, so that gaps tell nothing
        return np.where(np.isnan(came[:, :, -1]), np.nan, top)

    def _both(self, tops: FloatArray, bias: FloatArray) -> FloatArray:
        """Peaks as the paths have them, and corrected by what such peaks lacked lately."""
        little = OFFSET * self.scale
        corrected = np.maximum(0.0, (tops + little) * np.exp(bias) - little)
        return np.concatenate([tops, corrected])

    def _mixed(
        self, paths: FloatArray, both: FloatArray, errors: FloatArray, last: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The ensemble's paths [series, o, steps] and peaks [series, o]; the last value where no
        error is known yet."""
        weights = ensemble_weights(np.where(np.isnan(both), np.inf, errors))
        known = weights.sum(axis=0) > 0
        top = (weights * np.nan_to_num(both)).sum(axis=0)
        path = np.einsum("mso,msok->sok", _together(weights), np.nan_to_num(paths))
        return (
            np.where(known[:, :, None], path, last),
            np.where(known, top, self._tops(last)),
        )

    def _by_method(self, both: FloatArray, errors: FloatArray) -> FloatArray:
        """Shares of the ensemble [methods, series, o]."""
        return _together(ensemble_weights(np.where(np.isnan(both), np.inf, errors)))

    def _in_force(
        self, paths: FloatArray, both: FloatArray, known: RecentErrors, last: FloatArray
    ) -> InForce:
        """What the method in force says; where it has nothing to say, the last value."""
        mixed, mixed_top = self._mixed(paths, both, known.errors, last)
        ensemble = len(both)
        if self.method == ENSEMBLE:
            chosen = np.full(mixed_top.shape, ensemble)
        elif self.method == AUTO:
            single = np.where(np.isnan(both), np.inf, known.errors)
            chosen = choose(single, known.mixed)
        else:
            chosen = np.zeros(mixed_top.shape, np.int64)
        everyone = np.concatenate([paths, paths, mixed[None]])
        path = np.take_along_axis(everyone, chosen[None, :, :, None], axis=0)[0]
        top = np.take_along_axis(np.concatenate([both, mixed_top[None]]), chosen[None], axis=0)[0]
        path = np.where(np.isnan(path), last, path)
        on_path = self._tops(path)
        lift = np.where((on_path > 0) & ~np.isnan(top), top / np.where(on_path > 0, on_path, 1), 1)
        return InForce(path, lift, chosen)

    def _bands(self, rows: IntArray, age: int, forecast: FloatArray) -> FloatArray:
        """``forecast [rows, bins and tops]``, ``age`` bins after the last observed one, at each
        level: [rows, levels, bins and tops]."""
        steps = forecast.shape[1] // 2
        windows = np.arange(len(self.said.origins))[:: self._apart][-BAND:]
        origins, paths = self.said.origins[windows], self.said.paths[rows][:, windows]
        values, scale = self.panel.values[rows], self.scale[rows]
        reach = age + steps
        after = np.full((len(rows), reach), np.nan)
        came = at_origins(np.concatenate([values, after], axis=1), origins, reach)
        seen = ~np.isnan(came)
        tops = np.where(seen, running_top(np.where(seen, came, -np.inf), self.horizon), np.nan)
        forecasts = paths[:, :, :reach]
        lifted = self.said.lifts[rows][:, windows, None] * running_top(forecasts, self.horizon)
        past = np.concatenate([
            conformal.scores(came, forecasts, scale[:, :, None])[:, :, age:],
            conformal.scores(tops, lifted, scale[:, :, None])[:, :, age:],
        ], axis=2)  # fmt: skip
        return conformal.quantiles(forecast, past, values, scale, QUANTILES)


def running_top(paths: FloatArray, window: int) -> FloatArray:
    """The largest of the last ``window`` steps up to each: [..., steps]."""
    before = np.full((*paths.shape[:-1], window - 1), -np.inf)
    padded = np.concatenate([before, paths], axis=-1)
    return np.asarray(sliding_window_view(padded, window, axis=-1).max(axis=-1))


def _together(weights: FloatArray) -> FloatArray:
    """Of each method with its corrected self: [methods, ...] from [2 methods, ...]."""
    methods = len(weights) // 2
    return np.asarray(weights[:methods] + weights[methods:])


def _better_of_both(errors: FloatArray, methods: int) -> FloatArray:
    """Of each method the lesser error, as it is or corrected, then the ensemble's."""
    lesser = np.minimum(errors[:methods], errors[methods : 2 * methods])
    return np.concatenate([lesser, errors[-1:]])
