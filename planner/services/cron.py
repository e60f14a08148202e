"""Compute the times of a cron line: minute, hour, day of month, month, day of week.

Times are on the clock of a time zone, by the rules of Debian's cron. If both the day of month and
the day of week are restricted, a day that matches either counts. A time in the hour that clocks
skip in spring comes right after that hour. A fixed time in the hour that they repeat in autumn
means the first one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from planner.errors import PlannerError

FIELDS = ("minute", "hour", "day of month", "month", "day of week")


@dataclass(frozen=True, slots=True)
class Cron:
    """A valid cron line, and the time zone in which it is read."""

    line: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, line: str, zone: str) -> Cron:
        """Return the parsed cron line for the time zone ``zone``.

        Raises PlannerError in one sentence if the line is malformed or matches no date.
        """
        fields = line.split()
        if len(fields) != len(FIELDS):
            raise PlannerError(
                f"cron: {line[:80]!r} has {len(fields)} fields and needs {len(FIELDS)} "
                f"({', '.join(FIELDS)}), such as '0 6 * * 1' for Mondays at 6."
            )
        try:
            CronSim(line, datetime.now(UTC))
        except (CronSimError, ValueError) as problem:  # int() raises ValueError above 4,300 digits
            fault = str(problem).removeprefix("Bad ").replace("-", " ")
            raise PlannerError(
                f"cron: {line[:80]!r}: the {fault} is invalid. Write *, a number, a list (1,3), a "
                "range (1-5) or steps (*/15)."
            ) from None
        return cls(line, zone_of(zone))

    @property
    def words(self) -> str:
        """Return the times in words, such as "06:00 on Monday"."""
        return CronSim(self.line, datetime.now(UTC)).explain().removeprefix("At ")

    def after(self, moment: datetime) -> datetime:
        """Return the first time after ``moment``, in UTC."""
        return next(self.moments(moment))

    def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the times in ``(after, until]`` in UTC, the last ``limit`` if there are more."""
        in_time = takewhile(lambda moment: moment <= until, self.moments(after))
        return list(deque(in_time, maxlen=limit))  # which keeps the last ones

    def moments(self, after: datetime) -> Iterator[datetime]:
        """Yield every time after ``after``, in UTC."""
        for local_time in CronSim(self.line, after.astimezone(self.zone)):
            moment = local_time.astimezone(UTC)
            # In the repeated hour of autumn, the first of two equal times may be past.
            if moment > after:
                yield moment


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone ``name``; raise PlannerError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PlannerError(
            f"timezone: {name[:64]!r} is not known. Give an IANA name, such as Europe/Berlin."
        ) from None
