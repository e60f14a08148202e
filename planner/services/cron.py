"""Compute the times of a cron line: minute, hour, day of month, month, day of week.

Times are on the clock of a time zone. If both the day of month and the day of week are restricted,
a day that matches either counts, as in cron. A time in the hour that clocks skip in spring comes
later by the skipped time. A time in the hour that they repeat in autumn means the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery.schedules import ParseException, crontab_parser

from planner.errors import PlannerError

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
BOUNDS = ((60, 0), (24, 0), (31, 1), (12, 1), (8, 0))  # number of values, first value
DAYS = 366 * 8 + 1  # two 29 Februaries are at most eight years apart (1896 to 1904)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron line."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    either_day: bool  # True: day of month or day of week suffices; False: both must match
    zone: ZoneInfo

    @classmethod
    def parse(cls, line: str, zone: str) -> Cron:
        """Parse a cron line for the time zone ``zone``.

        Raises PlannerError in one sentence if the line is malformed or matches no date.
        """
        fields = line.split()
        if len(fields) != len(FIELDS):
            raise PlannerError(
                f"cron: {line[:80]!r} has {len(fields)} fields and needs {len(FIELDS)} "
                f"({', '.join(FIELDS)}), such as '0 6 * * 1' for Mondays at 6."
            )
        values = [
            _parse_field(field, name, *bounds)
            for field, name, bounds in zip(fields, FIELDS, BOUNDS, strict=True)
        ]
        minutes, hours, days, months, weekdays = values
        cron = cls(
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=frozenset(days),
            months=frozenset(months),
            weekdays=frozenset(day % 7 for day in weekdays),
            # Cron's rule: with a field that begins with *, even */2, both have to match.
            either_day=not (fields[2].startswith("*") or fields[4].startswith("*")),
            zone=zone_of(zone),
        )
        if not cron.either_day and not any(_has_date(month, cron.days) for month in cron.months):
            raise PlannerError(f"cron: {line!r} names a day that no month of it has.")
        return cron

    def after(self, moment: datetime) -> datetime:
        """Return the first time after ``moment``, in UTC."""
        return next(self.moments(moment))

    def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the last ``limit`` times in ``(after, until]``, in UTC."""
        moments: list[datetime] = []
        for moment in self.moments(after):
            if moment > until:
                break
            moments = [*moments[-limit + 1 :], moment] if limit > 1 else [moment]
        return moments

    def moments(self, after: datetime) -> Iterator[datetime]:
        """Yield every time after ``after``, in UTC, up to about eight years ahead."""
        last = after.astimezone(UTC)
        begin = after.astimezone(self.zone).date() - DAY
        for ahead in range(DAYS):
            day = begin + ahead * DAY
            if not self._matches(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone)
                    # A time out of the skipped hour may equal a later one, so drop repeats.
                    moment = wall.astimezone(UTC)
                    if moment > last:
                        last = moment
                        yield moment

    def _matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        month_matches, weekday_matches = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (
            month_matches or weekday_matches
            if self.either_day
            else month_matches and weekday_matches
        )


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone ``name``; raise PlannerError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PlannerError(
            f"timezone: {name[:64]!r} is not known. Give an IANA name, such as Europe/Berlin."
        ) from None


def _parse_field(field: str, name: str, count: int, first: int) -> set[int]:
    """Return the values of one field; raise PlannerError if it is invalid or out of bounds."""
    try:
        values: set[int] = crontab_parser(count, first).parse(field)
    except (ParseException, ValueError, IndexError):
        values = set()
    if not values or any(not first <= value < first + count for value in values):
        raise PlannerError(
            f"cron: {field[:40]!r} is no {name}. Write *, a number from {first} to "
            f"{first + count - 1}, a list (1,3), a range (1-5) or steps (*/15)."
        )
    return values


def _has_date(month: int, days: frozenset[int]) -> bool:
    longest = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return any(day <= longest for day in days)
