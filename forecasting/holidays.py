"""Days that are a kind of their own, and what a series has on them.

On holidays that came, demand stands beside what the same times of day had on the days of their kind
(working days or weekends) in the week before. The ratio of both, over three hours and held towards
that of all the day where that is little, is what holidays have of a usual day. A history is divided
by it, so that nothing learns a holiday for a usual day, and what is forecast of a holiday is
multiplied by it. Before any holiday came nothing is known, and the ratio is 1. Days are UTC's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray

DAY_S = 86_400.0
BEFORE = 7  # days that a holiday is compared with
AROUND_S = 3 * 3600.0  # that a ratio is of
HELD = 0.1  # of the mean of what is compared: weighs as much as if the day's own ratio had come
LEAST, MOST = 0.02, 50.0  # ratio: beyond it only overflow lies
THURSDAY = 3  # the first of January 1970, Monday being 0


@dataclass(frozen=True, slots=True)
class Holidays:
    """Days by their number since the epoch, UTC, rising."""

    days: tuple[int, ...] = ()

    def on(self, start_s: float, bin_s: float, bins: int) -> BoolArray:
        """Which bins begin on one, ``[bins]``."""
        return np.isin(_days(start_s, bin_s, bins)[0], self.days)

    def ends(self, start_s: float, bin_s: float) -> IntArray:
        """Bins after which each is over."""
        ends = (DAY_S * (np.array(self.days, np.float64) + 1) - start_s) / bin_s
        return np.asarray(np.ceil(ends - 1e-6), np.int64)


NO_HOLIDAYS = Holidays()


@dataclass(frozen=True, slots=True, eq=False)
class OfUsual:
    """What holidays have of a usual day, by series and time of day: ``ratio [series, phases]``."""

    holidays: Holidays
    ratio: FloatArray

    @classmethod
    def learn(
        cls, holidays: Holidays, values: FloatArray, start_s: float, bin_s: float
    ) -> OfUsual | None:
        """Of ``values [series, bins]``; None where bins are no part of a day, or none was seen."""
        phases = round(DAY_S / bin_s)
        if phases < 1 or abs(phases * bin_s - DAY_S) > 1e-6 * DAY_S or not holidays.days:
            return None
        days, phase = _days(start_s, bin_s, values.shape[1])
        came, usual = np.zeros((2, len(values), phases))
        for holiday in np.unique(days[np.isin(days, holidays.days)]):
            today = days == holiday
            now, then = _by_phase(values, today, phase, phases), _usual(
                values, days, phase, phases, int(holiday), holidays
            )  # fmt: skip
            both = ~np.isnan(now) & ~np.isnan(then)
            came += np.where(both, now, 0.0)
            usual += np.where(both, then, 0.0)
        if not usual.any():
            return None
        size = max(1, round(AROUND_S / bin_s))
        mean = np.where(usual.sum(1) > 0, usual.mean(axis=1), 1.0)[:, None]
        level = np.where(usual.sum(1) > 0, came.sum(1) / _above(usual.sum(1)), 1.0)[:, None]
        near = [scipy.ndimage.uniform_filter1d(amounts, size, axis=1, mode="nearest")
                for amounts in (came, usual)]  # fmt: skip
        ratio = (near[0] + HELD * mean * level) / (near[1] + HELD * mean)
        return cls(holidays, np.clip(ratio, LEAST, MOST))

    def factor(self, start_s: float, bin_s: float, bins: int) -> FloatArray:
        """Of every bin, 1 on other days: [series, bins]."""
        _, phase = _days(start_s, bin_s, bins)
        return np.where(self.holidays.on(start_s, bin_s, bins), self.ratio[:, phase], 1.0)


def _days(start_s: float, bin_s: float, bins: int) -> tuple[IntArray, IntArray]:
    """Day since the epoch and bin of the day of each bin."""
    phases = max(1, round(DAY_S / bin_s))
    time_s = start_s + bin_s * np.arange(bins)
    days = np.floor(time_s / DAY_S + 1e-9)
    phase = np.clip(np.floor((time_s - days * DAY_S) / bin_s + 1e-6), 0, phases - 1)
    return days.astype(np.int64), phase.astype(np.int64)


def _by_phase(values: FloatArray, some: BoolArray, phase: IntArray, phases: int) -> FloatArray:
    """Mean of ``some`` of the bins at each time of day, NaN where none was observed."""
    total, count = np.zeros((2, len(values), phases))
    taken = values[:, some]
    seen = ~np.isnan(taken)
    rows = np.arange(len(values))[:, None]
    np.add.at(total, (rows, phase[some][None, :]), np.where(seen, taken, 0.0))
    np.add.at(count, (rows, phase[some][None, :]), seen)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _usual(
    values: FloatArray,
    days: IntArray,
    phase: IntArray,
    phases: int,
    holiday: int,
    holidays: Holidays,
) -> FloatArray:
    """What the week before had, days of its kind, or of any where there was none."""
    before = np.arange(holiday - BEFORE, holiday)
    before = before[~np.isin(before, holidays.days) & np.isin(before, days)]
    alike = before[_weekend(before) == _weekend(np.array([holiday]))]
    return _by_phase(values, np.isin(days, alike if alike.size else before), phase, phases)


def _weekend(days: IntArray) -> BoolArray:
    return np.asarray((days + THURSDAY) % 7 >= 5)


def _above(amounts: FloatArray) -> FloatArray:
    return np.where(amounts > 0, amounts, 1.0)
