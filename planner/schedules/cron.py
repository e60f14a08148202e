"""Moments of a cron line: five fields (minute, hour, day of month, month, day of week) on the clock
of a time zone.

Where both the day of month and the day of week are said, a day that is either counts, as cron has
it. What falls into the hour that clocks skip in spring comes as much later; of the hour that they
repeat in autumn the first is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery.schedules import ParseException, crontab_parser

from planner.errors import PlannerError

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
BOUNDS = ((60, 0), (24, 0), (31, 1), (12, 1), (8, 0))  # how many values, from which on
DAYS = 366 * 8 + 1  # no 29 February is further from another than eight years (1896 to 1904)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either: bool  # of day of month and day of week
    zone: ZoneInfo

    @classmethod
    def of(cls, line: str, zone: str) -> Cron:
        """Raises PlannerError in one sentence where it says nothing that a clock can show."""
        fields = line.split()
        if len(fields) != len(FIELDS):
            raise PlannerError(
                f"cron: {line[:80]!r} has {len(fields)} fields and needs {len(FIELDS)} "
                f"({', '.join(FIELDS)}), such as '0 6 * * 1' for Mondays at 6."
            )
        values = [
            _values(field, name, *bounds)
            for field, name, bounds in zip(fields, FIELDS, BOUNDS, strict=True)
        ]
        minutes, hours, days, months, weekdays = values
        cron = cls(
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=frozenset(days),
            months=frozenset(months),
            weekdays=frozenset(day % 7 for day in weekdays),
            either=not (fields[2].startswith("*") or fields[4].startswith("*")),
            zone=zone_of(zone),
        )
        if not cron.either and not any(_there_is(month, cron.days) for month in cron.months):
            raise PlannerError(f"cron: {line!r} names a day that no month of it has.")
        return cron

    def after(self, moment: datetime) -> datetime:
        """The first moment after ``moment``, in UTC."""
        return next(self.moments(moment))

    def between(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """Moments in ``(after, until]``, the last ``most`` of them."""
        moments: list[datetime] = []
        for moment in self.moments(after):
            if moment > until:
                break
            moments = [*moments[-most + 1 :], moment] if most > 1 else [moment]
        return moments

    def moments(self, after: datetime) -> Iterator[datetime]:
        """Every moment after ``after``, in UTC, for as long as calendars are sure."""
        last = after.astimezone(UTC)
        begin = after.astimezone(self.zone).date() - DAY
        for ahead in range(DAYS):
            day = begin + ahead * DAY
            if not self._on(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone)
                    moment = wall.astimezone(UTC)
                    if moment > last:
                        last = moment
                        yield moment

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week


def zone_of(name: str) -> ZoneInfo:
    """Raises PlannerError where there is no such time zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PlannerError(
            f"timezone: {name[:64]!r} is not known; give an IANA name, such as Europe/Berlin."
        ) from None


def _values(field: str, name: str, count: int, least: int) -> set[int]:
    try:
        values: set[int] = crontab_parser(count, least).parse(field)
    except (ParseException, ValueError, IndexError):
        values = set()
    if not values or any(not least <= value < least + count for value in values):
        raise PlannerError(
            f"cron: {field[:40]!r} is no {name}; write *, a number from {least} to "
            f"{least + count - 1}, a list (1,3), a range (1-5) or steps (*/15)."
        )
    return values


def _there_is(month: int, days: frozenset[int]) -> bool:
    longest = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return any(day <= longest for day in days)
