"""Forecast with several methods from any origin, with parameters fitted on the bins before it.

An origin is the bin at which a forecast begins, and a path is its expected amounts. Parameters are
fitted again when the history has grown by half, once a day after the end of the first panel, and
after each holiday. In between, new bins only update the state of a method.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.cleaning import clean, newly_cleaned
from forecasting.demand import Panel, windows_at
from forecasting.harmonics import DAY_S
from forecasting.holidays import HolidayRatio, ratios_of
from forecasting.rules.arima import FittedArima
from forecasting.rules.registry import RULES, FittedRule

GROWTH = 0.5  # parameters are fitted again after the history has grown by this share


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """The parameters of every method, fitted on the first ``bins`` bins."""

    bins: int
    values: FloatArray  # [series, bins] cleaned
    methods: tuple[FittedRule, ...]
    ratios: tuple[HolidayRatio, ...]  # of holidays and month ends


class MethodFits:
    """The methods ``names``, fitted to a panel again and again, each time on the bins known then.

    The first fit is on ``first`` bins. ``fitted`` is the length of the panel at the beginning, and
    ``latest`` the latest fit.
    """

    def __init__(self, names: Sequence[str], panel: Panel, first: int) -> None:
        self.names, self.first, self.fitted = tuple(names), first, panel.bins
        self.holiday_ends = panel.holidays.end_bins(panel.start_s, panel.bin_s)
        self.latest: _Fit | None = None

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the forecast of each method from each origin, ``[method, series, origin, step]``.

        It is based on the bins before the origin only. ``origins`` are rising bins of ``panel``.
        """
        paths = np.empty((len(self.names), len(panel.values), len(origins), steps))
        start = 0
        while start < len(origins):
            # Forecast together the next origins that have the same fit and the same removed bins
            # (outages and such, which are no demand).
            fit_bins, next_fit_bins = self._fit_bins(panel, int(origins[start]))
            fit = self._fit(panel, fit_bins)
            before_next_fit = origins[start:][origins[start:] < next_fit_bins]
            count, removed = self._origins_with_equal_cleaning(panel, fit_bins, before_next_fit)
            origins_together = before_next_fit[:count]
            # The cleaned values of the fit, and the later values without the removed bins.
            later_values = panel.values[:, fit_bins : origins_together[-1]]
            values = np.concatenate([fit.values, later_values], axis=1)
            values[tuple(removed)] = np.nan
            cleaned = replace(panel, values=values)
            paths[:, :, start : start + count] = _paths_of_fit(
                fit, cleaned, origins_together, steps
            )
            start += count
        return paths

    def orders(self, name: str) -> tuple[str, ...]:
        """Return the ARIMA orders of the last fit of the method ``name``, by series, as text."""
        series = len(self.latest.values) if self.latest else 0
        if self.latest is None or name not in self.names:
            return ("",) * series
        fitted = self.latest.methods[self.names.index(name)]
        return fitted.labels if isinstance(fitted, FittedArima) else ("",) * series

    def _fit_bins(self, panel: Panel, origin: int) -> tuple[int, int]:
        """Return how many bins the fit for ``origin`` uses, and how many the next fit will use.

        The first panel has ``fitted`` bins. Within it, a fit has more bins than the one before by
        the share GROWTH. After it, fits are also at most a day apart. There is a new fit at the end
        of a holiday, which uses the holiday.
        """
        day = panel.season_bins(DAY_S)  # 0 if a day is not a whole number of bins
        # Go from fit to fit until the next one would use bins after the origin.
        bins = self.first if origin < self.fitted else self.fitted
        while True:
            next_bins = bins + max(1, int(GROWTH * bins))
            if bins < self.fitted:
                next_bins = min(next_bins, self.fitted)
            elif day:
                next_bins = min(next_bins, bins + day)
            later_ends = self.holiday_ends[self.holiday_ends > bins]
            if later_ends.size:
                next_bins = min(next_bins, int(later_ends[0]))
            if next_bins > origin:
                return bins, next_bins
            bins = next_bins

    def _fit(self, panel: Panel, bins: int) -> _Fit:
        """Return the fit of all methods on the first ``bins`` bins; the latest one is kept."""
        if self.latest is None or self.latest.bins != bins:
            values = clean(panel.values[:, :bins], panel.bin_s).values
            ratios = ratios_of(panel.holidays, values, panel.start_s, panel.bin_s)
            usual = values
            for ratio in ratios:
                usual = usual / ratio.factor(panel.start_s, panel.bin_s, bins)
            usual_panel = replace(panel, values=usual)
            methods = tuple(RULES[name].fit(usual_panel) for name in self.names)
            self.latest = _Fit(bins, values, methods, ratios)
        return self.latest

    def _origins_with_equal_cleaning(
        self, panel: Panel, fit_bins: int, origins: IntArray
    ) -> tuple[int, IntArray]:
        """Return how many of the first ``origins`` have equal cleaned data, and the removed bins.

        Cleaning removes outages and other bins that are no demand. What it removes depends on the
        bins before the origin. The bins are those of ``_bins_cleaned_after_fit``.
        """
        removed = self._bins_cleaned_after_fit(panel, fit_bins, int(origins[0]))
        for count in range(1, len(origins)):
            later = self._bins_cleaned_after_fit(panel, fit_bins, int(origins[count]))
            if not np.array_equal(removed, later):
                return count, removed
        return len(origins), removed

    def _bins_cleaned_after_fit(self, panel: Panel, fit_bins: int, origin: int) -> IntArray:
        """Return the bins that cleaning removes with the data up to ``origin``, as index arrays.

        The result ``[2, removed]`` has the series and the bin of each. For an origin within the
        first panel there are none, since the data was cleaned for the fit.
        """
        if origin <= self.fitted:
            return np.empty((2, 0), np.int64)
        values_so_far = panel.values[:, :origin]
        return np.stack(newly_cleaned(values_so_far, panel.bin_s, min(fit_bins, origin)))


def _paths_of_fit(fit: _Fit, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
    """Return the forecast of each method of ``fit``, ``[method, series, origin, step]``.

    Usual days are forecast, then holidays and month ends are multiplied by their ratio. ``panel``
    ends at the last origin.
    """
    values, ratio_ahead = panel.values, np.ones(())
    for ratio in fit.ratios:
        factor = ratio.factor(panel.start_s, panel.bin_s, panel.bins + steps)
        values = values / factor[:, : panel.bins]
        ratio_ahead = ratio_ahead * windows_at(factor, origins, steps)
    usual = replace(panel, values=values)
    return np.stack([rule.paths(usual, origins, steps) * ratio_ahead for rule in fit.methods])
