"""Forecast any number of series on the same bins with one method or a choice among all.

An origin is the bin at which a forecast begins. Each method forecasts from every past origin, with
parameters fitted on the bins before it. The errors of these forecasts decide between methods
("auto") or weight them ("ensemble"). They also give the quantiles of a forecast, per bin and for
the peak of a window: its largest bin.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecasting import conformal
from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import Panel, forward_fill, mean_scale, windows_at
from forecasting.forecast import QUANTILES, PanelForecast
from forecasting.harmonics import DAY_S, WEEK_S
from forecasting.lead_weights import LeadWeights, block_edges
from forecasting.method_choice import DiscountedMeans, choose_method, ensemble_weights
from forecasting.method_fits import MethodFits
from forecasting.past_forecasts import PastForecasts, PastPeaks, RecentErrors, SelectedForecast
from forecasting.rules.registry import ARIMA, AUTO, ENSEMBLE, HOUR_S, LAST_DAY, MEMBERS
from forecasting.threads import map_in_two_threads, single_blas_thread

MAX_ORIGINS = 336  # most past origins whose errors compare methods
BAND_WINDOWS = 168  # latest windows that quantiles use: a week of hours
FIRST_ORIGIN_SHARE = 0.25  # share of the history before the first origin
SETTLED_DAYS = 2  # days of history that an origin needs for its errors to count far ahead
LARGEST_BIAS = 1.0  # log ratio: a larger error says nothing of the next peak
PEAK_MULTIPLE = 2.0  # times the observed peak: limit of forecasts on less than a week of history
PART_SIZE = 2000  # series times bins of the window at a time, to bound memory


class PanelForecaster:
    """Forecast every series of a panel with ``method``, with quantiles.

    Methods are compared by the error of their peak in a window of ``horizon_bins``, which begins
    ``lead_bins`` after the origin. With less than a week of history, no forecast exceeds
    ``peak_multiple`` times the largest bin observed.
    """

    def __init__(
        self,
        method: str,
        horizon_bins: int = 4,
        lead_bins: int = 0,
        peak_multiple: float = PEAK_MULTIPLE,
    ) -> None:
        self.method, self.horizon_bins, self.lead_bins = method, horizon_bins, lead_bins
        self.peak_multiple = peak_multiple
        self._level_errors: FloatArray | None = None
        self._parts: list[_PanelPart] = []
        self._rows: list[slice] = []

    def fit(self, panel: Panel) -> Self:
        """Fit all methods and forecast from the past origins of ``panel``."""
        if not panel.bins:  # an empty history is one bin that was not observed
            unknown = np.full((len(panel.values), 1), np.nan)
            panel = replace(panel, start_s=panel.start_s - panel.bin_s, values=unknown)
        self._level_errors = panel.level_errors
        size = max(1, PART_SIZE // (self.lead_bins + self.horizon_bins))
        self._rows = [slice(start, start + size) for start in range(0, len(panel.values), size)]
        with single_blas_thread():
            panels = [replace(panel, values=panel.values[rows]) for rows in self._rows]
            self._parts = map_in_two_threads(partial(_PanelPart, self), panels)
        return self

    def update(self, values: FloatArray) -> Self:
        """Add the bins ``values [series, bins]`` that follow, and forecast from new origins."""
        with single_blas_thread():
            new = [values[rows] for rows in self._rows]
            map_in_two_threads(_PanelPart.update, self._parts, new)
        return self

    def predict(self, steps: int) -> PanelForecast:
        """Forecast the next ``steps`` bins of every series."""
        with single_blas_thread():
            pieces = map_in_two_threads(partial(_PanelPart.predict, steps=steps), self._parts)
        forecast = _join_forecasts(pieces)
        # Standard errors of demand that is known from a sample, [series]
        errors = self._level_errors
        if errors is None or not errors.any():
            return forecast
        return replace(
            forecast,
            quantiles=conformal.widen_for_sampling(
                forecast.mean, forecast.quantiles, forecast.levels, errors
            ),
            peak_quantiles=conformal.widen_for_sampling(
                forecast.peak, forecast.peak_quantiles, forecast.levels, errors
            ),
        )


def _join_forecasts(parts: Sequence[PanelForecast]) -> PanelForecast:
    """Return one forecast with the series of all ``parts``, in their order."""
    fields: dict[str, Any] = {}
    for name in ("mean", "peak", "quantiles", "peak_quantiles", "limit", "scores", "growth"):
        fields[name] = np.concatenate([getattr(part, name) for part in parts])
    for name in ("errors", "shares", "end_shares"):  # [methods, series]
        fields[name] = np.concatenate([getattr(part, name) for part in parts], axis=1)
    for name in ("methods", "past", "orders"):  # tuples of one entry per series
        fields[name] = tuple(entry for part in parts for entry in getattr(part, name))
    for name in ("growth_share", "swing"):
        fields[name] = max(getattr(part, name) for part in parts)
    return replace(parts[0], **fields)


class LastDay(NamedTuple):
    """The day before each origin, repeated: the best forecast of a short history."""

    # [series, origin, step] hourly means of the day; of the last hour if the history is not short
    paths: FloatArray
    peaks: FloatArray  # [series, origin] largest bin of the last hour
    is_short: BoolArray  # [origin] whether the history is too short to judge methods a day ahead


class _HourlyMeans:
    """Means of the observed bins of a panel, from sums over all bins before each one."""

    def __init__(self, panel: Panel) -> None:
        seen = panel.observed_bins
        self.values = panel.values
        self.hour = max(1, round(HOUR_S / panel.bin_s))  # bins
        self.day = panel.season_bins(DAY_S)  # bins; 0 if a day is not a whole number of them
        # Sum and number of the observed bins before each bin, ``[series, bins + 1]``.
        from_zero = (0, 0), (1, 0)
        self.sums = np.pad(np.cumsum(np.where(seen, panel.values, 0.0), axis=1), from_zero)
        self.counts = np.pad(np.cumsum(seen, axis=1), from_zero)

    def mean(self, begin: IntArray, end: IntArray) -> FloatArray:
        """Return the mean of the bins from ``begin`` to ``end``; NaN if none was observed."""
        count: IntArray = self.counts[:, end] - self.counts[:, begin]
        total = self.sums[:, end] - self.sums[:, begin]
        return np.where(count, total / np.maximum(count, 1), np.nan)

    def last_hour(self, origins: IntArray) -> FloatArray:
        """Return the mean of the hour before each origin, else the last amount, else 0."""
        mean = self.mean(np.maximum(origins - self.hour, 0), origins)
        last_observed = forward_fill(self.values)[:, origins - 1]
        return np.nan_to_num(np.where(np.isnan(mean), last_observed, mean))

    def largest_of_last_hour(self, origins: IntArray) -> FloatArray:
        """Return the largest bin of the hour before each origin; NaN if none was observed."""
        hours = [self.values[:, max(0, end - self.hour) : end] for end in origins.tolist()]
        return np.stack([np.fmax.reduce(bins, axis=1) for bins in hours], axis=1)

    def day_before(self, origins: IntArray, last_hour: FloatArray, steps: int) -> FloatArray:
        """Return the hour around each step, one day earlier, ``[series, origin, step]``.

        No bin from the origin on is used. Times before the history lie on a line from the mean of
        the ``last_hour [series, origin]`` to that of the first hour. A step without an observed bin
        has that of the last hour.
        """
        lead = np.arange(steps) % self.day
        # The bin of the day before the origin at the time of each step, [origin, step]; negative:
        # before the history. The hour ends at ``end``, and is centred on that bin if possible.
        same_time = origins[:, None] - self.day + lead
        end = np.clip(same_time - self.hour // 2 + self.hour, 1, origins[:, None])
        observed = self.mean(np.maximum(end - self.hour, 0).ravel(), end.ravel())
        observed = observed.reshape(len(last_hour), *same_time.shape)

        first_hour = self.mean(np.zeros_like(origins), np.minimum(origins, self.hour))
        share = (lead + 0.5) / np.maximum(self.day - origins, 1)[:, None]
        begin = last_hour[:, :, None]
        interpolated = begin + share * (first_hour[:, :, None] - begin)
        amounts = np.where(same_time >= 0, observed, interpolated)
        return np.where(np.isnan(amounts), begin, amounts)


def last_day(panel: Panel, origins: IntArray, steps: int) -> LastDay:
    """Return the last day before each of ``origins`` (bins), repeated for ``steps`` bins.

    Amounts are hourly means, so that a single bin does not decide the plan. If the history is
    shorter than a day, the hours of the day that were not observed are interpolated from the last
    hour to the first. If no bin of the last hour was observed, it has the amount of the last
    observed bin; 0 if nothing was observed.
    """
    means = _HourlyMeans(panel)
    last_hour = means.last_hour(origins)
    largest = means.largest_of_last_hour(origins)
    peaks = np.where(np.isnan(largest), last_hour, largest)
    paths = np.repeat(last_hour[:, :, None], steps, axis=2)
    is_short = origins < conformal.RHYTHM_DAYS * means.day
    if is_short.any():
        paths[:, is_short] = means.day_before(origins[is_short], last_hour[:, is_short], steps)
    return LastDay(paths, peaks, is_short)


class _Bands(NamedTuple):
    """Quantiles of a forecast, and the scores (log ratios) of past forecasts that give them."""

    quantiles: FloatArray  # [series, level, step] of bins
    peak_quantiles: FloatArray  # the same of the peak of the window that ends with the step
    scores: FloatArray  # [series, origin, step]


class _PanelPart:
    """Some series of a panel, with all past forecasts and errors.

    A path is the expected amount of each bin of a forecast. A peak is the largest bin of a window.
    Errors of peaks decide between methods. Each method has two ``candidate_peaks``: first are the
    peaks of all paths, then the same peaks corrected by the recent bias of the method. A
    ``peak_factor`` is the forecast peak divided by the peak of the path. The ``age`` of a series is
    the number of bins since its last observed one. A score is the log ratio of an actual to a
    forecast amount.
    """

    def __init__(self, forecaster: PanelForecaster, panel: Panel) -> None:
        """Forecast from the past origins of ``panel``."""
        self.method = forecaster.method
        self.names = MEMBERS if self.method in (AUTO, ENSEMBLE) else (self.method,)
        self.horizon, self.lead = forecaster.horizon_bins, forecaster.lead_bins
        self.window = self.lead + self.horizon  # bins from an origin to the end of its window
        self.peak_multiple = forecaster.peak_multiple
        self.panel = panel
        self.scale = mean_scale(panel.values)
        # Past origins are every ``stride`` bins from bin ``first`` on, so at most MAX_ORIGINS of
        # them.
        self.first = max(1, int(FIRST_ORIGIN_SHARE * panel.bins))
        self.stride = max(1, -(-(panel.bins - self.first) // MAX_ORIGINS))
        self.fits = MethodFits(self.names, panel, self.first)
        self._forecast_all_origins(2 * self.window)  # gaps at the end need more than a window

    def _forecast_all_origins(self, reach: int) -> None:
        """Forget all forecasts, and forecast ``reach`` bins or more from all past origins."""
        methods, series = len(self.names), len(self.panel.values)
        windows_apart = self.stride / self.horizon
        edges = block_edges(self.window, self.panel.season_bins(DAY_S), reach)
        self.record = PastForecasts.empty(methods, series, edges[-1])
        self.bias = DiscountedMeans.empty((methods, series), windows_apart, default=0.0)
        self.errors = DiscountedMeans.empty((2 * methods, series), windows_apart, default=np.inf)
        self.ensemble_errors = DiscountedMeans.empty((series,), windows_apart, default=np.inf)
        self.end_paths: tuple[int, FloatArray] | None = None  # bins, and the paths after them
        self.leads = LeadWeights(methods, series, edges, self.stride, self.horizon)
        self._forecast_new_origins()

    def update(self, values: FloatArray) -> None:
        """Add the bins ``values [series, bins]`` that follow, and forecast from new origins."""
        self.panel = replace(self.panel, values=np.concatenate([self.panel.values, values], axis=1))
        self._forecast_new_origins()

    def predict(self, steps: int) -> PanelForecast:
        """Return the forecast of the selected methods, with quantiles from past scores.

        No amount exceeds the limit of its series.
        """
        # Bins since the last observed one of each series; 0 if none is observed
        observed = self.panel.observed_bins
        ages = np.where(observed.any(axis=1), np.argmax(observed[:, ::-1], axis=1), 0)
        reach = max(self.window, steps) + int(ages.max(initial=0))
        if reach > self.record.reach:
            self._forecast_all_origins(reach)
        # Select methods at the end of the panel, which follows the recorded origins.
        end_origin = len(self.record.origins)
        recent = self._recent_errors(np.array([end_origin + self._origins_per_lead]))  # all so far
        selected = self._select_at_end(recent, steps, ages)
        mean = selected.path[:, 0, :steps]
        peak = selected.peak_factor[:, :1] * running_max(mean, self.horizon)
        limit = self._limit(ages)
        bands = self._bands(mean, peak, ages)
        age = int(ages.min(initial=0))
        return PanelForecast(
            start_s=self.panel.start_s + self.panel.bins * self.panel.bin_s,
            bin_s=self.panel.bin_s,
            mean=np.minimum(mean, limit),
            peak=np.minimum(peak, limit),
            levels=QUANTILES,
            quantiles=np.minimum(bands.quantiles, limit[:, None]),
            peak_quantiles=np.minimum(bands.peak_quantiles, limit[:, None]),
            methods=self._names_of(selected.chosen[:, 0]),
            candidates=(*self.names, ENSEMBLE),
            errors=self._relative_errors(recent),
            shares=selected.shares[:, :, 0],
            end_shares=selected.end_shares[:, :, 0],
            orders=self.fits.orders(ARIMA),
            past=self._past_peaks(),
            limit=limit,
            scores=bands.scores,
            growth_share=conformal.prior_share(self._history_days(age)),
            growth=self._day_growth(slice(None), age),
            swing=self._unknown_swing(age),
        )

    def _select_at_end(self, recent: RecentErrors, steps: int, ages: IntArray) -> SelectedForecast:
        """Return the forecast from the end of the panel, of ``steps`` bins or a whole window."""
        end_of_panel, end_origin = np.array([self.panel.bins]), np.array([len(self.record.origins)])
        paths = self._paths_from_end(end_of_panel, max(steps, self.window))
        last_day_before = last_day(self.panel, end_of_panel, paths.shape[3])
        return self._select(paths, recent, last_day_before, end_origin, ages)

    def _names_of(self, chosen: IntArray) -> tuple[str, ...]:
        """Return the names of the methods with the indices ``chosen [series]``."""
        names = (*self.names, *self.names, ENSEMBLE, LAST_DAY)  # see ``SelectedForecast``
        return tuple(names[m] for m in chosen)

    def _relative_errors(self, recent: RecentErrors) -> FloatArray:
        """Return the errors of methods and ensemble as shares of demand, ``[method, series]``."""
        uncorrected, corrected = np.split(recent.errors, 2)
        errors = [np.minimum(uncorrected, corrected), recent.ensemble[None]]
        return np.asarray(np.concatenate(errors)[:, :, 0] / self.scale[:, 0])

    def _bands(self, mean: FloatArray, peak: FloatArray, ages: IntArray) -> _Bands:
        """Return the quantiles of a forecast with the given ``mean`` and ``peak [series, steps]``.

        ``peak`` is the peak of the window that ends with each step. ``ages [series]`` are the bins
        since the last observed one. A forecast begins ``age`` bins after its data, so it is
        compared with past forecasts from lead time ``age`` on.
        """
        steps = mean.shape[1]
        quantiles, peak_quantiles = np.empty((2, len(mean), len(QUANTILES), steps))
        scores = np.empty((len(mean), len(self._windows), steps))
        for age in np.unique(ages):
            rows = np.flatnonzero(ages == age)
            # Columns: the steps of the mean, then those of the peaks.
            past = self._past_scores(rows, int(age), steps)
            scores[rows] = past[:, :, :steps]
            bands = self._quantiles(rows, int(age), np.hstack([mean[rows], peak[rows]]), past)
            quantiles[rows], peak_quantiles[rows] = bands[:, :, :steps], bands[:, :, steps:]
        return _Bands(quantiles, peak_quantiles, scores)

    def _limit(self, ages: IntArray) -> FloatArray:
        """Return the largest amount that a forecast may have, ``[series, 1]``.

        It is infinite from a week of history on. ``ages`` are the bins since the last observed one.
        """
        largest = np.fmax.reduce(self.panel.values, axis=1, initial=0.0)
        known_s = (self.panel.bins - ages) * self.panel.bin_s
        return np.where(known_s < WEEK_S, self.peak_multiple * largest, np.inf)[:, None]

    def _past_peaks(self) -> tuple[PastPeaks, ...]:
        """Return forecast and actual peaks of each series in windows that do not overlap.

        A window begins ``lead`` bins after the origin of its forecast, and ends ``window`` bins
        after it. The forecast peak is that of the path times its ``peak_factor``.
        """
        windows = self._windows
        # Windows that end after the data have no actual peak.
        windows = windows[self.record.origins[windows] + self.window <= self.panel.bins]
        first_bins = self.record.origins[windows] + self.lead
        # max() keeps NaN: a window with a gap was not observed.
        actual = windows_at(self.panel.values, first_bins, self.horizon).max(axis=2)
        forecast = self.record.peak_factors[:, windows] * self._window_peaks(
            self.record.paths[:, windows]
        )
        starts = np.asarray(self.panel.start_s + first_bins * self.panel.bin_s, np.float64)
        scale = self.scale[:, 0].tolist()
        return tuple(PastPeaks(starts, *row) for row in zip(actual, forecast, scale, strict=True))

    @property
    def _origins_per_lead(self) -> int:
        """Return the number of origins after which the window of a forecast has ended."""
        return -(-self.window // self.stride)

    def _forecast_new_origins(self) -> None:
        """Forecast from the origins since the last call, and record the forecasts.

        Errors of windows that have ended by now are recorded too.
        """
        recorded = len(self.record.origins)
        first_new_bin = self.first + self.stride * recorded
        origins = np.arange(first_new_bin, self.panel.bins, self.stride)
        if not origins.size:  # only the errors of earlier forecasts are new
            self._add_method_errors()
            self._add_ensemble_errors()
            self.leads.add_known_errors(self.panel.values)
            return
        # Record the forecasts of each method, then those of the ensemble, which needs the errors of
        # the methods, then the errors of both.
        new_indices = recorded + np.arange(len(origins))  # indices of the new origins
        paths = self._paths_from_origins(origins)
        self.record = self.record.add(origins=origins, peaks=self._window_peaks(paths))
        self._add_method_errors()
        last_day_before = last_day(self.panel, origins, paths.shape[3])
        _, ensemble_peaks = self._ensemble(paths, self._recent_errors(new_indices), last_day_before)
        self.record = self.record.add(ensemble_peaks=ensemble_peaks)
        self._add_ensemble_errors()
        self.leads.add_origins(self.panel.values, origins, paths)

        # The method to use at each origin, by the errors that were known there.
        no_ages = np.zeros(paths.shape[1], np.int64)
        selected = self._select(
            paths, self._recent_errors(new_indices), last_day_before, new_indices, no_ages
        )
        self.record = self.record.add(paths=selected.path, peak_factors=selected.peak_factor)
        # Drop the mean errors that no later origin needs.
        self.leads.keep_needed()
        self.bias = self.bias.keep_last(self._origins_per_lead)
        self.errors = self.errors.keep_last(self._origins_per_lead)
        self.ensemble_errors = self.ensemble_errors.keep_last(self._origins_per_lead)

    def _paths_from_origins(self, origins: IntArray) -> FloatArray:
        """Return the paths of each method from new origins; those from the end are kept."""
        origins_and_end = np.append(origins, self.panel.bins)
        paths = self.fits.paths(self.panel, origins_and_end, self.record.reach)
        self.end_paths = self.panel.bins, paths[:, :, -1:].copy()
        return paths[:, :, :-1]

    @property
    def _ended_windows(self) -> int:
        """Return the number of past origins whose window has ended by now."""
        return int((self.record.origins + self.window <= self.panel.bins).sum())

    def _add_method_errors(self) -> None:
        """Add the bias and the peak errors of each method in the windows that have ended."""
        new = np.arange(self.bias.end, self._ended_windows)
        if not new.size:
            return
        actual, peaks = self._actual_peaks(new), self.record.peaks[:, :, new]
        ratio = conformal.log_ratio_scores(actual, peaks, self.scale)
        self.bias = self.bias.append(np.clip(ratio, -LARGEST_BIAS, LARGEST_BIAS))
        known_bias = self.bias.at(new - self._origins_per_lead)
        self.errors = self.errors.append(np.abs(self._candidate_peaks(peaks, known_bias) - actual))

    def _add_ensemble_errors(self) -> None:
        """Add the peak errors of the ensemble in the windows that have ended."""
        new = np.arange(self.ensemble_errors.end, self._ended_windows)
        error = np.abs(self.record.ensemble_peaks[:, new] - self._actual_peaks(new))
        self.ensemble_errors = self.ensemble_errors.append(error)

    def _recent_errors(self, origins: IntArray) -> RecentErrors:
        """Return the mean errors of peaks as they were known at each of ``origins`` (indices)."""
        known = origins - self._origins_per_lead  # the latest origin whose window has ended
        return RecentErrors(
            self.bias.at(known), self.errors.at(known), self.ensemble_errors.at(known)
        )

    def _paths_from_end(self, end_of_panel: IntArray, steps: int) -> FloatArray:
        """Return each method's paths from the end of the panel, at least ``steps`` bins long.

        They are computed once per end. ``end_of_panel [1]`` is its bin. The result is ``[method,
        series, 1, step]``.
        """
        bins = int(end_of_panel[0])
        if self.end_paths is not None:
            known_bins, known_paths = self.end_paths
            if known_bins >= bins and known_paths.shape[3] >= steps:
                return known_paths
        paths = self.fits.paths(self.panel, end_of_panel, steps)
        self.end_paths = bins, paths
        return paths

    def _window_peaks(self, paths: FloatArray) -> FloatArray:
        """Return the peak in the window of each path, ``[...]``; ``paths`` are ``[..., steps]``."""
        return np.asarray(paths[..., self.lead : self.window].max(axis=-1))

    def _actual_peaks(self, origins: IntArray) -> FloatArray:
        """Return the actual peaks of the windows of ``origins`` (indices), ``[series, origin]``."""
        actual = windows_at(
            self.panel.values, self.record.origins[origins] + self.lead, self.horizon
        )
        peak = np.where(np.isnan(actual), -np.inf, actual).max(axis=2)
        # A window that ends in a gap has no weight.
        return np.where(np.isnan(actual[:, :, -1]), np.nan, peak)

    def _candidate_peaks(self, peaks: FloatArray, bias: FloatArray) -> FloatArray:
        """Return the forecast ``peaks``, then the same corrected by ``bias``, ``[2 methods, ...]``.

        Both arguments are ``[methods, ...]``. ``bias`` is the log of (actual + offset) / (forecast
        + offset) in the past. The offset keeps small peaks from having large ratios.
        """
        offset = conformal.OFFSET * self.scale
        corrected = np.maximum(0.0, (peaks + offset) * np.exp(bias) - offset)
        return np.concatenate([peaks, corrected])

    def _ensemble(
        self, paths: FloatArray, recent: RecentErrors, last_day_before: LastDay
    ) -> tuple[FloatArray, FloatArray]:
        """Return the ensemble's paths ``[series, origin, step]`` and peaks ``[series, origin]``.

        ``paths [method, series, origin, step]`` are those of the methods. Weights follow from the
        ``recent`` errors of their candidate peaks, two of each method. As long as no error is
        known, the last day is repeated.
        """
        candidate_peaks = self._candidate_peaks(self._window_peaks(paths), recent.bias)
        weights = _peak_weights(candidate_peaks, recent.errors)
        has_weight = weights.sum(axis=0) > 0
        peak = (weights * np.nan_to_num(candidate_peaks)).sum(axis=0)
        # Sum over methods (m) for each series, origin and step (k).
        path = np.einsum("mso,msok->sok", _weight_by_method(weights), np.nan_to_num(paths))
        path = np.where(has_weight[:, :, None], path, last_day_before.paths)
        return path, np.where(has_weight, peak, last_day_before.peaks)

    def _select(
        self,
        paths: FloatArray,
        recent: RecentErrors,
        last_day_before: LastDay,
        origins: IntArray,
        ages: IntArray,
    ) -> SelectedForecast:
        """Return the forecast of the selected method, or the last day where it has none.

        ``paths [method, series, origin, step]`` are forecasts from ``origins`` (indices), and
        ``recent`` the errors known there. ``ages [series]`` are the bins since the last
        observed one.
        """
        # Of the methods, then the methods with corrected peaks: [2 methods, series, origin]
        candidate_peaks = self._candidate_peaks(self._window_peaks(paths), recent.bias)
        ensemble_path, ensemble_peak = self._ensemble(paths, recent, last_day_before)
        # Options are the candidates, the ensemble and the last day, joined along the first axis.
        # ``chosen [series, origin]`` is the index of one of them.
        chosen = self._choose(candidate_peaks, recent)
        all_paths = [paths, paths, ensemble_path[None], last_day_before.paths[None]]
        all_peaks = [candidate_peaks, ensemble_peak[None], last_day_before.peaks[None]]
        path = _take(all_paths, chosen[None, :, :, None], last_day_before.paths)
        peak = _take(all_peaks, chosen[None], last_day_before.peaks)
        path_peak = self._window_peaks(path)
        peak_factor = np.divide(peak, path_peak, out=np.ones_like(peak), where=path_peak > 0)
        shares = _weight_by_method(_peak_weights(candidate_peaks, recent.errors))
        selected = SelectedForecast(path, peak_factor, chosen, shares, end_shares=shares)
        if self.method in (AUTO, ENSEMBLE):
            return self._mix_later_steps(selected, paths, last_day_before, origins, ages)
        return selected

    def _mix_later_steps(
        self,
        selected: SelectedForecast,
        paths: FloatArray,
        last_day_before: LastDay,
        origins: IntArray,
        ages: IntArray,
    ) -> SelectedForecast:
        """Replace the path beyond the window by the mean of ``paths``, weighted by lead time.

        After a history that is too short to know errors a day ahead, it is the last day instead.
        Arguments are those of ``_select``. The path of ``selected`` is changed in place.
        """
        path, end_shares = selected.path, selected.shares.copy()
        has_weight = selected.shares.sum(axis=0)[..., None] > 0  # [series, origin, 1]
        for age in np.unique(ages):
            rows = np.flatnonzero(ages == age)
            mean, end_shares[:, rows] = self.leads.mix(
                rows, paths[:, rows], origins, selected.shares[:, rows], int(age)
            )
            path[rows] = np.where(has_weight[rows] & ~np.isnan(mean), mean, path[rows])
        short, later = last_day_before.is_short, slice(self.window, None)
        path[:, short, later] = last_day_before.paths[:, short, later]
        return replace(selected, end_shares=end_shares)

    def _choose(self, candidate_peaks: FloatArray, recent: RecentErrors) -> IntArray:
        """Return the index of the chosen method and peak, ``[series, origin]``.

        It is an index in ``candidate_peaks``. The one after the last is that of the ensemble. The
        next is that of the last day, which is repeated as long as no error is known.
        """
        if self.method not in (AUTO, ENSEMBLE):
            return np.zeros(candidate_peaks.shape[1:], np.int64)
        ensemble, last_day = len(candidate_peaks), len(candidate_peaks) + 1
        errors = np.where(np.isnan(candidate_peaks), np.inf, recent.errors)
        chosen = np.full(candidate_peaks.shape[1:], ensemble)
        if self.method == AUTO:
            chosen = choose_method(errors, recent.ensemble)
        has_errors = np.isfinite(errors).any(axis=0)
        return np.where(has_errors, chosen, last_day)

    @property
    def _windows(self) -> IntArray:
        """Return the indices of past origins that are about a window apart."""
        origins_per_window = max(1, round(self.horizon / self.stride))
        return np.arange(len(self.record.origins))[::origins_per_window]

    def _history_days(self, age: int) -> float:
        """Return the days of history up to ``age`` bins before the end."""
        return (self.panel.bins - age) * self.panel.bin_s / DAY_S

    def _unknown_swing(self, age: int) -> float:
        """Return the log amplitude of a daily rhythm that the forecast does not follow yet."""
        # "auto" and "ensemble" repeat the last day as soon as it is known.
        known_days = 1.0 if self.method in (AUTO, ENSEMBLE) else conformal.RHYTHM_DAYS
        return conformal.DAY_SWING if self._history_days(age) < known_days else 0.0

    def _day_growth(self, rows: IntArray | slice, age: int) -> FloatArray:
        """Return the standard deviation of log growth from day to day of the series ``rows``.

        The last ``age`` bins are left out.
        """
        known = self.panel.values[rows, : self.panel.bins - age]
        return conformal.day_growth(known, self.panel.season_bins(DAY_S))

    def _quantiles(
        self, rows: IntArray, age: int, forecast: FloatArray, past: FloatArray
    ) -> FloatArray:
        """Return the quantiles of ``forecast [rows, columns]``, ``[rows, levels, columns]``.

        ``rows`` are series, whose last observed bin is ``age`` bins back. The first half of the
        columns are bins, the second half the peaks of the windows that end there. ``past [rows,
        origins, columns]`` are scores of past forecasts.
        """
        steps = forecast.shape[1] // 2
        lead = np.tile(np.arange(age, age + steps), 2)  # [column] bins after the last known one
        near, far = lead < self.window, lead >= self.window
        past_forecasts = self._past_forecasts(rows, age, steps)
        # In the window: scores of the latest forecasts of similar amounts.
        comparable = conformal.comparable_scores(
            past[:, -BAND_WINDOWS:, near],
            past_forecasts[:, -BAND_WINDOWS:, near],
            forecast[:, near],
            self.scale[rows],
        )
        result = np.empty((len(rows), len(QUANTILES), 2 * steps))
        result[:, :, near] = conformal.quantiles(
            forecast[:, near], comparable, self.panel.values[rows], self.scale[rows], QUANTILES
        )
        result[:, :, far] = self._far_quantiles(
            rows, age, forecast[:, far], past[:, :, far], lead[far]
        )
        return result

    def _far_quantiles(
        self, rows: IntArray, age: int, forecast: FloatArray, past: FloatArray, lead: IntArray
    ) -> FloatArray:
        """Return the quantiles of columns beyond the window, ``lead [columns]`` bins ahead.

        They follow from scores of settled origins, and from the prior while history is short.
        Levels do not adapt, because the forecasts overlap and their errors are related.
        """
        # An origin is settled if it has SETTLED_DAYS, or half of the known bins, before it.
        known_bins = self.panel.bins - age
        origins, day = self.record.origins[self._windows], self.panel.season_bins(DAY_S)
        is_settled = origins >= min(SETTLED_DAYS * day, known_bins // 2)
        prior = conformal.growth_prior(
            history_days=self._history_days(age),
            past_count=int((origins < known_bins).sum()),
            growth=self._day_growth(rows, age),
            lead_days=np.asarray((lead + 0.5) * self.panel.bin_s / DAY_S, np.float64),
            rhythm_swing=self._unknown_swing(age),
        )
        values, scale = self.panel.values[rows], self.scale[rows]
        return conformal.quantiles(
            forecast, past[:, is_settled], values, scale, QUANTILES, adapt=False, prior=prior
        )

    def _past_scores(self, rows: IntArray, age: int, steps: int) -> FloatArray:
        """Return the scores of past forecasts of the series ``rows``, ``[rows, origins, columns]``.

        The columns are ``steps`` bins, then the peaks of the windows that end with them. The bins
        begin ``age`` bins after each origin. Scores are NaN if demand is not known yet.
        """
        reach = age + steps  # bins from an origin to the end of its forecast
        origins = self.record.origins[self._windows]
        # Actual amounts after each origin, ``[rows, origins, reach]``; NaN after the panel.
        unknown = np.full((len(rows), reach), np.nan)
        values = np.concatenate([self.panel.values[rows], unknown], axis=1)
        actual = windows_at(values, origins, reach)
        seen = ~np.isnan(actual)
        peaks = running_max(np.where(seen, actual, -np.inf), self.horizon)
        peaks = np.where(seen, peaks, np.nan)

        in_window = np.arange(age, reach) < self.window
        offset = np.where(in_window, conformal.OFFSET, conformal.FAR_OFFSET)
        return conformal.log_ratio_scores(
            actual=np.concatenate([actual[:, :, age:], peaks[:, :, age:]], axis=2),
            forecast=self._past_forecasts(rows, age, steps),
            scale=self.scale[rows][:, :, None],
            offset=np.tile(offset, 2),
        )

    def _past_forecasts(self, rows: IntArray, age: int, steps: int) -> FloatArray:
        """Return past forecasts of bins, then of the peak in the window that ends with each bin.

        They are ``[rows, origins, 2 steps]``, where ``rows`` are series. Step k is ``age + k`` bins
        after the origin. A window has ``horizon`` bins.
        """
        forecasts = self.record.paths[rows][:, self._windows, : age + steps]
        peak_factors = self.record.peak_factors[rows][:, self._windows, None]
        peaks = peak_factors * running_max(forecasts, self.horizon)
        return np.concatenate([forecasts[:, :, age:], peaks[:, :, age:]], axis=2)


def running_max(paths: FloatArray, window: int) -> FloatArray:
    """Return at each step the largest of the ``window`` steps up to it, ``[..., steps]``."""
    padding = np.full((*paths.shape[:-1], window - 1), -np.inf)
    padded = np.concatenate([padding, paths], axis=-1)
    return np.asarray(sliding_window_view(padded, window, axis=-1).max(axis=-1))


def _take(options: list[FloatArray], index: IntArray, default: FloatArray) -> FloatArray:
    """Return the option with the ``index`` at each place; ``default`` where that is NaN."""
    taken = np.take_along_axis(np.concatenate(options), index, axis=0)[0]
    return np.where(np.isnan(taken), default, taken)


def _peak_weights(candidate_peaks: FloatArray, errors: FloatArray) -> FloatArray:
    """Return the ensemble weights by ``errors``; 0 for ``candidate_peaks`` that are NaN."""
    return ensemble_weights(np.where(np.isnan(candidate_peaks), np.inf, errors))


def _weight_by_method(weights: FloatArray) -> FloatArray:
    """Return the weight of each method, summed over its uncorrected and its corrected peak.

    ``weights [2 methods, ...]`` has those of all uncorrected peaks first.
    """
    methods = len(weights) // 2
    return np.asarray(weights[:methods] + weights[methods:])
