"""Split a horizon into months, and count each period of a representative week in them."""

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from planner.domain.traffic.window import DAY_S, UTC_CLOCK
from simulation.arrays import FloatArray, IntArray

HorizonName = Literal["week", "month", "quarter", "year"]
MONTHS: dict[str, int] = {"month": 1, "quarter": 3, "year": 12}
WEEK_S = 7 * DAY_S
MONTH_S = 365.25 / 12 * DAY_S  # mean month, for traffic without dates


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month, or its part within the horizon, from ``start_s`` to ``end_s`` (epoch s)."""

    label: str  # 2027-01; "month 1" for traffic without dates
    start_s: float
    end_s: float

    @property
    def hours(self) -> float:
        """Return the length of the month in hours."""
        return (self.end_s - self.start_s) / 3600

    @property
    def middle_s(self) -> float:
        """Return the middle of the month in epoch seconds."""
        return (self.start_s + self.end_s) / 2


def months_of(start_s: float, horizon: HorizonName, clock: str) -> tuple[Month, ...]:
    """Return the months of ``horizon`` from ``start_s`` on, split at each first of a month.

    The first and the last may be partial. Traffic without dates (``clock``) has no calendar, so its
    months have mean length.
    """
    if clock != UTC_CLOCK:
        if horizon == "week":
            return (Month("week 1", start_s, start_s + WEEK_S),)
        edges_s = [start_s + i * MONTH_S for i in range(MONTHS[horizon] + 1)]
        return tuple(
            Month(f"month {number}", low, high)
            for number, (low, high) in enumerate(itertools.pairwise(edges_s), 1)
        )
    begin = datetime.fromtimestamp(start_s, UTC)
    end_s = start_s + WEEK_S
    if horizon != "week":
        end_s = _months_later(begin, MONTHS[horizon]).timestamp()
    edges_s = [start_s]
    first_of_month = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month = _months_later(first_of_month, 1)
    while month.timestamp() < end_s - 1:  # without an empty month at the end
        edges_s.append(month.timestamp())
        month = _months_later(month, 1)
    return tuple(
        Month(f"{datetime.fromtimestamp(low, UTC):%Y-%m}", low, high)
        for low, high in itertools.pairwise([*edges_s, end_s])
    )


def _months_later(begin: datetime, months: int) -> datetime:
    """Return the same day and time ``months`` later, or the last day of a shorter month."""
    year, month = divmod(begin.year * 12 + begin.month - 1 + months, 12)
    for day in range(begin.day, 27, -1):
        try:
            return begin.replace(year=year, month=month + 1, day=day)
        except ValueError:
            continue
    return begin.replace(year=year, month=month + 1)


def occurrences_of_periods(month: Month, week_start_s: float, period_s: float) -> FloatArray:
    """Return how often a month contains each period of a week, ``[period]``.

    The week starts at ``week_start_s``, its periods have ``period_s`` seconds. A period that lies
    partly in the month counts as that fraction.
    """
    per_week = round(WEEK_S / period_s)
    # In periods since the start of the week.
    start = (month.start_s - week_start_s) / period_s
    end = (month.end_s - week_start_s) / period_s
    # Numbers of all periods that the month has, in whole or in part, despite rounding errors.
    periods: IntArray = np.arange(int(np.floor(start + 1e-9)), int(np.ceil(end - 1e-9)))
    share_in_month = np.clip(np.minimum(periods + 1, end) - np.maximum(periods, start), 0.0, 1.0)
    # Periods a week apart are the same period of the week.
    occurrences = np.bincount(periods % per_week, share_in_month, minlength=per_week)
    return np.asarray(occurrences, np.float64)
