"""Any number of series forecast together: fit once, follow bin by bin, choose by what came.

From every past origin of the history each method says what it would have said then, with
parameters of the time before. What those paths missed by chooses among methods ("auto", "ensemble")
and makes the bands of a forecast, per bin and of the peak of a window. Parameters are learnt anew
as the history grows by half, and once a day; every bin between only moves the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from threadpoolctl import threadpool_limits

from forecasting import conformal
from forecasting.arrays import FloatArray, IntArray
from forecasting.choice import choose, ensemble_weights, running_mean
from forecasting.cleaning import cleaned
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES
from forecasting.harmonics import DAY_S
from forecasting.panel import Panel, at_origins, scale_of
from forecasting.rules.registry import AUTO, ENSEMBLE, LAST_VALUE, RULES
from forecasting.rules.rule import Learned
from forecasting.rules.scales import OFFSET
from forecasting.said import Judged, Past, Said, Told

T = TypeVar("T")

ORIGINS = 336  # past moments that methods are judged from: every one, or so many of them
BAND = 168  # latest windows that bands rest on: a week by the hour
FIRST = 0.25  # share of the history that the first of them has
GROWTH = 0.5  # of the history, after which parameters are learnt anew
CLIP = 1.0  # log ratio beyond which a peak that was missed says nothing of the next
TOGETHER = 2000  # series times bins of the window at a time, to bound memory


@dataclass(frozen=True, slots=True, eq=False)
class PanelForecast:
    """The next bins of every series: amounts per bin, never negative."""

    start_s: float
    bin_s: float
    mean: FloatArray  # [series, steps]
    top: FloatArray  # [series, steps] peak of the window that ends with the step
    levels: tuple[float, ...]
    quantiles: FloatArray  # [series, levels, steps]
    peaks: FloatArray  # [series, levels, steps] quantiles of top
    methods: tuple[str, ...]  # [series] what each rests on
    candidates: tuple[str, ...]  # [methods]
    errors: FloatArray  # [methods, series] recent error of its peaks over mean demand; inf: unknown
    shares: FloatArray  # [methods, series] of each in the ensemble
    past: tuple[Past, ...]  # [series] peaks as they were forecast before, and as they came


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
        self._rows = [slice(at, at + size) for at in range(0, len(panel.values), size)]
        with _alone():
            parts = [replace(panel, values=panel.values[rows]) for rows in self._rows]
            self._groups = _side_by_side(partial(_Group, self), parts)
        return self

    def update(self, values: FloatArray) -> Self:
        """Take in the bins ``values [series, new]`` that follow."""
        with _alone():
            new = [values[rows] for rows in self._rows]
            _side_by_side(_Group.update, self._groups, new)
        return self

    def predict(self, steps: int) -> PanelForecast:
        with _alone():
            pieces = _side_by_side(partial(_Group.predict, steps=steps), self._groups)
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
        self.fitted = panel.bins
        self.scale = scale_of(panel.values)
        self.first = max(1, int(FIRST * panel.bins))
        self.stride = max(1, -(-(panel.bins - self.first) // ORIGINS))
        self.learned: tuple[int, FloatArray, list[Learned]] | None = None
        self.said = Said.nothing(len(self.names), len(panel.values), 2 * self.window)
        self.latest = 0, self._judged().last()  # after so many bins
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
            reach = max(reach, 2 * self.said.reach)
            self.said = Said.nothing(len(self.names), len(panel.values), reach)
            self._follow()
        at, judged = self.latest
        if at < panel.bins:
            judged = self._judged().last()
        here = np.array([panel.bins])
        paths = self._paths(here, max(steps, self.window))
        tops = self._tops(paths)
        both = self._both(tops, judged.bias)
        told = self._in_force(paths, both, judged, self._last(here, paths))
        mean = told.path[:, 0, :steps]
        top = running_top(mean, self.horizon)
        quantiles = np.empty((len(mean), len(QUANTILES), steps))
        peaks = np.empty_like(quantiles)
        lift = told.lift[:, :1]
        for age in np.unique(ages):
            rows = np.flatnonzero(ages == age)
            bands = self._bands(rows, int(age), np.hstack([mean[rows], (lift * top)[rows]]))
            quantiles[rows], peaks[rows] = bands[:, :, :steps], bands[:, :, steps:]
        names = (*self.names, *self.names, ENSEMBLE)
        errors = np.concatenate([judged.errors, judged.mixed[None]])[:, :, 0]
        return PanelForecast(
            start_s=panel.start_s + panel.bins * panel.bin_s,
            bin_s=panel.bin_s,
            mean=mean,
            top=lift * top,
            levels=QUANTILES,
            quantiles=quantiles,
            peaks=peaks,
            methods=tuple(names[at] for at in told.chosen[:, 0]),
            candidates=(*self.names, ENSEMBLE),
            errors=_better_of_both(errors, len(self.names)) / self.scale[:, 0],
            shares=self._by_method(both, judged.errors)[:, :, 0],
            past=self._past(),
        )

    def _past(self) -> tuple[Past, ...]:
        """What was in force of each series, windows that do not overlap."""
        at = np.arange(len(self.said.origins))[:: self._apart]
        at = at[self.said.origins[at] + self.window <= self.panel.bins]
        origins = self.said.origins[at] + self.lead
        came = at_origins(self.panel.values, origins, self.horizon).max(axis=2)  # a gap is one
        told = self.said.lifts[:, at] * self._tops(self.said.paths[:, at])
        starts = np.asarray(self.panel.start_s + origins * self.panel.bin_s, np.float64)
        scale = self.scale[:, 0].tolist()
        return tuple(Past(starts, *row) for row in zip(came, told, scale, strict=True))

    @property
    def _apart(self) -> int:
        """Origins from a window to the next that does not overlap it."""
        return max(1, round(self.horizon / self.stride))

    def _follow(self) -> None:
        """Say what would have been said from the origins that are new."""
        said = self.said
        origins = np.arange(
            self.first + self.stride * len(said.origins), self.panel.bins, self.stride
        )
        if not origins.size:
            return
        paths = self._paths(origins, said.reach)
        tops = np.concatenate([said.tops, self._tops(paths)], axis=2)
        new = slice(len(said.origins), tops.shape[2])
        last = self._last(origins, paths)
        self.said = replace(
            said,
            origins=np.concatenate([said.origins, origins]),
            tops=tops,
            mixed_tops=np.concatenate([said.mixed_tops, self._tops(last)], axis=1),
        )
        judged = self._judged()
        before = judged.lagged(self._lag)
        both = self._both(tops, before.bias)[:, :, new]
        _, mixed_top = self._mixed(paths, both, before.errors[:, :, new], last)
        self.said.mixed_tops[:, new] = mixed_top
        if origins[0] + self.window <= self.panel.bins:  # what was told just now is judged too
            judged = self._judged()
            before = judged.lagged(self._lag)
        self.latest = self.panel.bins, judged.last()
        told = self._in_force(paths, both, before.of(new), last)
        self.said = replace(
            self.said,
            paths=np.concatenate([said.paths, told.path], axis=1),
            lifts=np.concatenate([said.lifts, told.lift], axis=1),
        )

    def _paths(self, origins: IntArray, steps: int) -> FloatArray:
        """Of every method from every origin: [methods, series, o, steps]."""
        paths = np.empty((len(self.names), len(self.panel.values), len(origins), steps))
        at = 0
        while at < len(origins):
            learnt, following = self._learn_point(int(origins[at]))
            until = int(np.searchsorted(origins, following))
            values, learned = self._learn(learnt)
            last = int(origins[until - 1])
            known = np.concatenate([values, self.panel.values[:, learnt:last]], axis=1)
            panel = replace(self.panel, values=known)
            for m, one in enumerate(learned):
                paths[m, :, at:until] = one.paths(panel, origins[at:until], steps)
            at = until
        return paths

    def _last(self, origins: IntArray, paths: FloatArray) -> FloatArray:
        """What stands where a method has nothing to say: the last value, 0 before there is any."""
        last = RULES[LAST_VALUE].learn(self.panel).paths(self.panel, origins, paths.shape[3])
        return np.nan_to_num(last)

    def _learn_point(self, origin: int) -> tuple[int, int]:
        """The last point up to ``origin`` at which parameters are learnt, and the one after it."""
        day = self.panel.season(DAY_S)
        point = self.first if origin < self.fitted else self.fitted
        while True:
            step = max(1, int(GROWTH * point))
            if point < self.fitted:
                following = min(point + step, self.fitted)
            else:
                following = point + (min(step, day) if day else step)
            if following > origin:
                return point, following
            point = following

    def _learn(self, bins: int) -> tuple[FloatArray, list[Learned]]:
        """Cleaned values up to ``bins``, and what every method learns of them."""
        if self.learned is None or self.learned[0] != bins:
            values = cleaned(self.panel.values[:, :bins], self.panel.bin_s).values
            panel = replace(self.panel, values=values)
            self.learned = bins, values, [RULES[name].learn(panel) for name in self.names]
        return self.learned[1], self.learned[2]

    def _tops(self, paths: FloatArray) -> FloatArray:
        """Peaks of the window of paths [..., steps]."""
        return np.asarray(paths[..., self.lead : self.window].max(axis=-1))

    @property
    def _lag(self) -> int:
        """Origins until a window that began is over."""
        return -(-self.window // self.stride)

    def _judged(self) -> Judged:
        """How far off peaks were up to each origin, windows that are over counted."""
        origins, values, said = self.said.origins, self.panel.values, self.said
        whole = origins[origins + self.window <= self.panel.bins]
        actual = np.full((len(values), len(origins)), np.nan)
        if whole.size:
            came = at_origins(values, whole + self.lead, self.horizon)
            top = np.where(np.isnan(came), -np.inf, came).max(axis=2)
            # a window that ends in a gap is never counted, so that gaps tell nothing
            actual[:, : whole.size] = np.where(np.isnan(came[:, :, -1]), np.nan, top)
        apart = self.stride / self.horizon
        ratio = np.clip(conformal.scores(actual, said.tops, self.scale), -CLIP, CLIP)
        bias = running_mean(ratio, apart, none=0.0)
        before = np.zeros_like(bias)
        before[..., self._lag :] = bias[..., : -self._lag]
        both = self._both(said.tops, before)
        return Judged(
            bias,
            running_mean(np.abs(both - actual), apart, none=np.inf),
            running_mean(np.abs(said.mixed_tops - actual), apart, none=np.inf),
        )

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
        self, paths: FloatArray, both: FloatArray, judged: Judged, last: FloatArray
    ) -> Told:
        """What the method in force says; where it has nothing to say, the last value."""
        mixed, mixed_top = self._mixed(paths, both, judged.errors, last)
        ensemble = len(both)
        if self.method == ENSEMBLE:
            chosen = np.full(mixed_top.shape, ensemble)
        elif self.method == AUTO:
            single = np.where(np.isnan(both), np.inf, judged.errors)
            chosen = choose(single, judged.mixed)
        else:
            chosen = np.zeros(mixed_top.shape, np.int64)
        everyone = np.concatenate([paths, paths, mixed[None]])
        path = np.take_along_axis(everyone, chosen[None, :, :, None], axis=0)[0]
        top = np.take_along_axis(np.concatenate([both, mixed_top[None]]), chosen[None], axis=0)[0]
        path = np.where(np.isnan(path), last, path)
        on_path = self._tops(path)
        lift = np.where((on_path > 0) & ~np.isnan(top), top / np.where(on_path > 0, on_path, 1), 1)
        return Told(path, lift, chosen)

    def _bands(self, rows: IntArray, age: int, forecast: FloatArray) -> FloatArray:
        """``forecast [rows, bins and tops]``, ``age`` bins after the last observed one, at each
        level: [rows, levels, bins and tops]."""
        steps = forecast.shape[1] // 2
        at = np.arange(len(self.said.origins))[:: self._apart][-BAND:]
        origins, paths = self.said.origins[at], self.said.paths[rows][:, at]
        values, scale = self.panel.values[rows], self.scale[rows]
        reach = age + steps
        after = np.full((len(rows), reach), np.nan)
        came = at_origins(np.concatenate([values, after], axis=1), origins, reach)
        seen = ~np.isnan(came)
        tops = np.where(seen, running_top(np.where(seen, came, -np.inf), self.horizon), np.nan)
        said = paths[:, :, :reach]
        lifted = self.said.lifts[rows][:, at, None] * running_top(said, self.horizon)
        past = np.concatenate([
            conformal.scores(came, said, scale[:, :, None])[:, :, age:],
            conformal.scores(tops, lifted, scale[:, :, None])[:, :, age:],
        ], axis=2)  # fmt: skip
        return conformal.quantiles(forecast, past, values, scale, QUANTILES)


def _side_by_side(do: Callable[..., T], *of: Sequence[Any]) -> list[T]:
    """``do`` of each, two at a time: arrays are worked on outside Python's lock."""
    if len(of[0]) < 2:
        return [do(*one) for one in zip(*of, strict=True)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(do, *of))


def _alone() -> threadpool_limits:
    """One BLAS thread: on busy cores several wait for each other."""
    return threadpool_limits(limits=1, user_api="blas")


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
