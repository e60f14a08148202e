"""Estimate demand on holidays and at the ends of months, as a ratio to usual days.

The ratio compares a past holiday with the same times of day in the week before. A holiday on a
weekend is compared with weekend days, another with working days. The ratio is smoothed over three
hours. At times of low demand, it is shrunk toward the ratio of the whole day. A history is divided
by the ratio before methods are fitted. The forecast of a holiday is multiplied by it. The ratio is
1 until a holiday was observed. Days are UTC.

The last days of each month are treated in the same way, once the ends of MONTHS months differed
from usual days by more than other days do. The number of these last days is found in the history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray

DAY_S = 86_400.0
AHEAD_DAYS = 366  # longest forecast
DAYS_BEFORE = 7  # days before a holiday that it is compared with
SMOOTHING_S = 3 * 3600.0
SHRINKAGE = 0.1  # weight of the ratio of the whole day, as a share of the mean amount
SMALLEST_RATIO, LARGEST_RATIO = 0.02, 50.0
MIN_MONTHS = 2  # ends of months that must have differed
MAX_LAST_DAYS = 3
CLEAR_RATIO = 1.15  # smallest ratio of a month's end to usual days that counts, or its inverse
USUAL_QUANTILE = 0.95  # quantile of the deviations of other days, which every end must exceed
THURSDAY = 3  # weekday of the first of January 1970, Monday being 0


@dataclass(frozen=True, slots=True)
class Holidays:
    """The holidays as days since the epoch, UTC, in order.

    ``calendar`` states whether times are those of a calendar, which months need.
    """

    days: tuple[int, ...] = ()
    calendar: bool = False

    def mask(self, start_s: float, bin_s: float, bins: int) -> BoolArray:
        """Return the mask ``[bins]`` of the bins that begin on a holiday.

        The bins have ``bin_s`` seconds, from ``start_s`` (epoch s) on.
        """
        return np.isin(_days_since_epoch(start_s, bin_s, bins), self.days)

    def end_bins(self, start_s: float, bin_s: float) -> IntArray:
        """Return the number of bins from ``start_s`` to the end of each holiday, rounded up."""
        ends = (DAY_S * (np.array(self.days, np.float64) + 1) - start_s) / bin_s
        return np.asarray(np.ceil(ends - 1e-6), np.int64)


NO_HOLIDAYS = Holidays()


@dataclass(frozen=True, slots=True, eq=False)
class HolidayRatio:
    """Demand on holidays divided by demand on usual days, ``ratio [series, bins of a day]``."""

    holidays: Holidays
    ratio: FloatArray

    @classmethod
    def fit(
        cls, holidays: Holidays, values: FloatArray, start_s: float, bin_s: float
    ) -> HolidayRatio | None:
        """Estimate the ratio from ``values [series, bins]``.

        Returns None if a day is not a whole number of bins, or no holiday was observed.
        """
        phases = round(DAY_S / bin_s)
        if phases < 1 or abs(phases * bin_s - DAY_S) > 1e-6 * DAY_S or not holidays.days:
            return None
        days, phase = _day_and_phase(start_s, bin_s, values.shape[1])
        # Sums over all holidays, and over the usual days that each is compared with, both
        # [series, bin of the day].
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
        return cls(holidays, _smooth_ratio(actual, usual, size=max(1, round(SMOOTHING_S / bin_s))))

    def factor(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        """Return the ratio of each bin on a holiday, and 1 on other days, ``[series, bins]``."""
        _, phase = _day_and_phase(start_s, bin_s, bins)
        return np.where(self.holidays.mask(start_s, bin_s, bins), self.ratio[:, phase], 1.0)


def _smooth_ratio(actual: FloatArray, usual: FloatArray, size: int) -> FloatArray:
    """Return ``actual`` over ``usual`` sums, smoothed over ``size`` bins, ``[series, phase]``."""
    usual_total = usual.sum(axis=1, keepdims=True)
    has_usual = usual_total > 0
    mean = np.where(has_usual, usual.mean(axis=1, keepdims=True), 1.0)
    day_ratio = actual.sum(axis=1, keepdims=True) / np.where(has_usual, usual_total, 1.0)
    day_ratio = np.where(has_usual, day_ratio, 1.0)
    smooth_actual = scipy.ndimage.uniform_filter1d(actual, size, axis=1, mode="nearest")
    smooth_usual = scipy.ndimage.uniform_filter1d(usual, size, axis=1, mode="nearest")
    ratio = (smooth_actual + SHRINKAGE * mean * day_ratio) / (smooth_usual + SHRINKAGE * mean)
    return np.asarray(np.clip(ratio, SMALLEST_RATIO, LARGEST_RATIO))


def ratios_of(
    holidays: Holidays, values: FloatArray, start_s: float, bin_s: float
) -> tuple[HolidayRatio, ...]:
    """Return the ratios of holidays and of month ends in ``values [series, bins]``.

    A ratio that is not known is left out.
    """
    usual = values
    holiday_ratio = HolidayRatio.fit(holidays, values, start_s, bin_s)
    if holiday_ratio is not None:
        usual = values / holiday_ratio.factor(start_s, bin_s, values.shape[1])
    end_ratio = _month_end_ratio(usual, start_s, bin_s) if holidays.calendar else None
    return tuple(ratio for ratio in (holiday_ratio, end_ratio) if ratio is not None)


def _month_end_ratio(values: FloatArray, start_s: float, bin_s: float) -> HolidayRatio | None:
    """Return the ratio of the last days of every month, in the history and ahead.

    They are treated like holidays. Return None if they do not differ in ``values [series, bins]``.
    """
    month_ends = unusual_month_ends(values, start_s, bin_s)
    if month_ends is None:
        return None
    days = _days_since_epoch(start_s, bin_s, values.shape[1])
    days = np.arange(days[0], days[-1] + AHEAD_DAYS)
    end_days = Holidays(tuple(days[_days_to_month_end(days) < month_ends.days].tolist()))
    ratio = HolidayRatio.fit(end_days, values, start_s, bin_s)
    return ratio and replace(ratio, ratio=ratio.ratio / month_ends.growth)


@dataclass(frozen=True, slots=True)
class MonthEnds:
    """How the last ``days`` of each month differ: they have ``ratio`` times the usual demand.

    ``growth`` is the median ratio of other days to the week before them.
    """

    days: int
    ratio: float
    growth: float


def unusual_month_ends(values: FloatArray, start_s: float, bin_s: float) -> MonthEnds | None:
    """Return how the demand of the last days of months differs; None if it does not.

    It is that of all series together, of ``values [series, bins]``. The result is for the largest
    number of last days that all differ (see ``_differing_ends``).
    """
    # Total of all series by day; NaN for days that are incomplete.
    observed = ~np.isnan(values).all(axis=0)
    amounts = np.where(observed, np.nansum(values, axis=0), np.nan)
    days = _days_since_epoch(start_s, bin_s, values.shape[1])
    day, first_bin, bins_of_day = np.unique(days, return_index=True, return_counts=True)
    is_whole = bins_of_day == np.median(bins_of_day)
    totals = np.where(is_whole, np.add.reduceat(amounts, first_bin), np.nan)
    for last_days in range(MAX_LAST_DAYS, 0, -1):
        month_ends = _differing_ends(day, totals, last_days)
        if month_ends is not None:
            return month_ends
    return None


def _differing_ends(day: IntArray, totals: FloatArray, last_days: int) -> MonthEnds | None:
    """Return how the ``last_days`` of the months differ from other days; None if they do not.

    ``day`` are days since the epoch, ``totals`` their demand. A day's log ratio compares it with
    days of its kind (working days or weekends) in the week before. Its deviation is from the median
    ratio of ordinary days. Month ends differ if the deviation exceeds CLEAR_RATIO and that of most
    ordinary days, always with the same sign. That must hold for the mean over the last days of each
    month, and for the mean over the months at each position, such as the last day.
    """
    days_left = _days_to_month_end(day)
    is_end = days_left < last_days
    ratio = _log_ratios(day, totals, is_end)
    has_ratio = np.isfinite(ratio)
    is_ordinary, is_known_end = has_ratio & ~is_end, has_ratio & is_end
    if not is_ordinary.any():
        return None
    usual_ratio = np.median(ratio[is_ordinary])
    deviation = ratio - usual_ratio
    month = day + days_left  # identified by its last day
    by_month = _means(deviation[is_known_end], month[is_known_end])
    by_position = _means(deviation[is_known_end], days_left[is_known_end])
    if by_month.size < MIN_MONTHS or by_position.size < last_days:
        return None
    usual_deviation = np.quantile(np.abs(deviation[is_ordinary]), USUAL_QUANTILE)
    threshold = max(float(np.log(CLEAR_RATIO)), float(usual_deviation))
    sign = np.sign(by_month.sum())
    if (sign * np.concatenate([by_month, by_position]) <= threshold).any():
        return None
    return MonthEnds(last_days, float(np.exp(by_month.mean())), float(np.exp(usual_ratio)))


def _log_ratios(day: IntArray, totals: FloatArray, is_end: BoolArray) -> FloatArray:
    """Return the log ratio of the total of each day to the mean of its kind in the week before.

    The two kinds are working days and weekends. ``day`` are days since the epoch, ``totals`` their
    demand. Month-end days (``is_end``) are excluded from the mean. NaN if the week before has no
    day of that kind.
    """
    weekend = _is_weekend(day)
    days_before = day[:, None] - day
    # [day, compared day]
    is_compared = (days_before > 0) & (days_before <= DAYS_BEFORE)
    is_compared &= (weekend[:, None] == weekend) & ~is_end & np.isfinite(totals)
    usual = is_compared @ np.nan_to_num(totals) / np.maximum(is_compared.sum(axis=1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(totals / usual)
    return np.where((usual > 0) & (totals > 0), ratios, np.nan)


def _means(values: FloatArray, groups: IntArray) -> FloatArray:
    """Return the mean of each group of ``values``; ``groups`` has the group of each value."""
    _, index = np.unique(groups, return_inverse=True)
    return np.asarray(np.bincount(index, values) / np.bincount(index))


def _days_to_month_end(days: IntArray) -> IntArray:
    """Return how many days of the month follow each of ``days`` (days since the epoch)."""
    dates = days.astype("datetime64[D]")
    next_month = (dates.astype("datetime64[M]") + 1).astype("datetime64[D]")
    return np.asarray((next_month - dates).astype(np.int64) - 1)


def _days_since_epoch(start_s: float, bin_s: float, bins: int) -> IntArray:
    """Return the day of each bin, counted from the epoch."""
    time_s = start_s + bin_s * np.arange(bins)
    return np.asarray(np.floor(time_s / DAY_S + 1e-9), np.int64)


def _day_and_phase(start_s: float, bin_s: float, bins: int) -> tuple[IntArray, IntArray]:
    """Return (day since the epoch, phase) of each bin: its index within the day, ``[bins]``."""
    phases = max(1, round(DAY_S / bin_s))
    days = _days_since_epoch(start_s, bin_s, bins)
    since_midnight_s = start_s + bin_s * np.arange(bins) - days * DAY_S
    phase = np.clip(np.floor(since_midnight_s / bin_s + 1e-6), 0, phases - 1)
    return days, phase.astype(np.int64)


def _mean_by_phase(values: FloatArray, mask: BoolArray, phase: IntArray, phases: int) -> FloatArray:
    """Return the mean of the masked bins at each time of day, ``[series, phases]``; NaN if none.

    ``phase`` is the index of each bin within its day, of ``phases``.
    """
    total, count = np.zeros((2, len(values), phases))
    selected, phase = values[:, mask], phase[mask]
    seen = ~np.isnan(selected)
    series = np.arange(len(values))[:, None]
    np.add.at(total, (series, phase), np.where(seen, selected, 0.0))
    np.add.at(count, (series, phase), seen)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _usual_days(days: IntArray, holiday: int, holidays: Holidays) -> IntArray:
    """Return the days with which to compare a holiday: observed ones of the week before.

    If there are any, only days of the holiday's kind count: working days, or weekends.
    """
    before = np.arange(holiday - DAYS_BEFORE, holiday)
    before = before[~np.isin(before, holidays.days) & np.isin(before, days)]
    same_kind = before[_is_weekend(before) == _is_weekend(np.array([holiday]))]
    return same_kind if same_kind.size else before


def _is_weekend(days: IntArray) -> BoolArray:
    return np.asarray((days + THURSDAY) % 7 >= 5)
