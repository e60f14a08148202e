"""Demand on holidays, as a ratio to usual days.

The ratio compares a past holiday with the same times of day in the week before. Only days of the
same kind count, working days or weekends. The ratio is smoothed over three hours. Where demand is
low, it is shrunk toward the ratio of the whole day. A history is divided by the ratio before
methods are fitted. The forecast of a holiday is multiplied by it. The ratio is 1 until a holiday
was observed. Days are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray

DAY_S = 86_400.0
DAYS_BEFORE = 7  # days before a holiday that it is compared with
SMOOTHING_S = 3 * 3600.0
SHRINKAGE = 0.1  # of the mean amount: weight of the ratio of the whole day
SMALLEST_RATIO, LARGEST_RATIO = 0.02, 50.0
THURSDAY = 3  # weekday of the first of January 1970, Monday being 0


@dataclass(frozen=True, slots=True)
class Holidays:
    """The holidays as days since the epoch, UTC, in order."""

    days: tuple[int, ...] = ()

    def mask(self, start_s: float, bin_s: float, bins: int) -> BoolArray:
        """Return which bins begin on a holiday, ``[bins]``."""
        return np.isin(_day_and_phase(start_s, bin_s, bins)[0], self.days)

    def end_bins(self, start_s: float, bin_s: float) -> IntArray:
        """Return the number of bins from ``start_s`` to the end of each holiday, rounded up."""
        ends = (DAY_S * (np.array(self.days, np.float64) + 1) - start_s) / bin_s
        return np.asarray(np.ceil(ends - 1e-6), np.int64)


NO_HOLIDAYS = Holidays()


@dataclass(frozen=True, slots=True, eq=False)
class HolidayRatio:
    """Demand on holidays over demand on usual days.

    ``ratio`` has the shape ``[series, bins of a day]``.
    """

    holidays: Holidays
    ratio: FloatArray

    @classmethod
    def fit(
        cls, holidays: Holidays, values: FloatArray, start_s: float, bin_s: float
    ) -> HolidayRatio | None:
        """Estimate the ratio from ``values [series, bins]``.

        Returns None if bins do not divide a day or no holiday was observed.
        """
        phases = round(DAY_S / bin_s)
        if phases < 1 or abs(phases * bin_s - DAY_S) > 1e-6 * DAY_S or not holidays.days:
            return None
        days, phase = _day_and_phase(start_s, bin_s, values.shape[1])
        actual, usual = np.zeros((2, len(values), phases))
        for holiday in np.unique(days[np.isin(days, holidays.days)]):
            compared = _usual_days(days, int(holiday), holidays)
            on_holiday = _mean_by_phase(values, days == holiday, phase, phases)
            on_usual_days = _mean_by_phase(values, np.isin(days, compared), phase, phases)
            both_known = ~np.isnan(on_holiday) & ~np.isnan(on_usual_days)
            actual += np.where(both_known, on_holiday, 0.0)
            usual += np.where(both_known, on_usual_days, 0.0)
        if not usual.any():
            return None
        size = max(1, round(SMOOTHING_S / bin_s))
        has_usual_days = usual.sum(1) > 0
        mean = np.where(has_usual_days, usual.mean(axis=1), 1.0)[:, None]
        level = np.where(
            has_usual_days, actual.sum(1) / np.where(has_usual_days, usual.sum(1), 1.0), 1.0
        )[:, None]
        smooth_actual, smooth_usual = (
            scipy.ndimage.uniform_filter1d(amounts, size, axis=1, mode="nearest")
            for amounts in (actual, usual)
        )
        ratio = (smooth_actual + SHRINKAGE * mean * level) / (smooth_usual + SHRINKAGE * mean)
        return cls(holidays, np.clip(ratio, SMALLEST_RATIO, LARGEST_RATIO))

    def factor(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        """Return the ratio of each bin, which is 1 on other days, ``[series, bins]``."""
        _, phase = _day_and_phase(start_s, bin_s, bins)
        return np.where(self.holidays.mask(start_s, bin_s, bins), self.ratio[:, phase], 1.0)


def _day_and_phase(start_s: float, bin_s: float, bins: int) -> tuple[IntArray, IntArray]:
    """Return two values for each bin: the day since the epoch, and its index within the day."""
    phases = max(1, round(DAY_S / bin_s))
    time_s = start_s + bin_s * np.arange(bins)
    days = np.floor(time_s / DAY_S + 1e-9)
    phase = np.clip(np.floor((time_s - days * DAY_S) / bin_s + 1e-6), 0, phases - 1)
    return days.astype(np.int64), phase.astype(np.int64)


def _mean_by_phase(values: FloatArray, mask: BoolArray, phase: IntArray, phases: int) -> FloatArray:
    """Return the mean amount of the masked bins at each time of day, ``[series, phases]``.

    NaN where no bin was observed.
    """
    total, count = np.zeros((2, len(values), phases))
    selected = values[:, mask]
    seen = ~np.isnan(selected)
    rows = np.arange(len(values))[:, None]
    np.add.at(total, (rows, phase[mask][None, :]), np.where(seen, selected, 0.0))
    np.add.at(count, (rows, phase[mask][None, :]), seen)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _usual_days(days: IntArray, holiday: int, holidays: Holidays) -> IntArray:
    """Return the observed days to compare a holiday with, from the week before.

    They are days of the same kind, working days or weekends. If there are none, they are all days.
    """
    before = np.arange(holiday - DAYS_BEFORE, holiday)
    before = before[~np.isin(before, holidays.days) & np.isin(before, days)]
    same_kind = before[_is_weekend(before) == _is_weekend(np.array([holiday]))]
    return same_kind if same_kind.size else before


def _is_weekend(days: IntArray) -> BoolArray:
    return np.asarray((days + THURSDAY) % 7 >= 5)
