"""Moments of cron lines: by hand, by brute force over minutes, and where clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.services.cron import Cron

MONDAY = datetime(2024, 5, 13, tzinfo=UTC)


def first(line: str, count: int, zone: str = "UTC", after: datetime = MONDAY) -> list[str]:
    moments = Cron.parse(line, zone).moments(after)
    return [f"{next(moments):%d %H:%M}" for _ in range(count)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 6 * * 1", ["13 06:00", "20 06:00", "27 06:00"]),
        ("0 6 * * mon", ["13 06:00", "20 06:00", "27 06:00"]),
        ("0 0 * * 0", ["19 00:00", "26 00:00"]),
        ("0 0 * * 7", ["19 00:00", "26 00:00"]),  # Sunday either way
        ("*/20 3-4 * * *", ["13 03:00", "13 03:20", "13 03:40", "13 04:00"]),
        ("30 1 15 * *", ["15 01:30", "15 01:30"]),
        ("0 0 15 * 5", ["15 00:00", "17 00:00", "24 00:00"]),  # either day
    ],
)
def test_by_hand(line, expected):
    assert first(line, len(expected)) == expected


@pytest.mark.parametrize(
    ("line", "matches"),
    [
        ("*/7 2,5 1-10 */2 *",
         lambda t: t.minute % 7 == 0 and t.hour in (2, 5) and t.day <= 10 and t.month % 2 == 1),
        ("0 12 * 2 1-5",
         lambda t: t.minute == 0 and t.hour == 12 and t.month == 2 and t.isoweekday() <= 5),
        ("15,45 */6 29 2 *",
         lambda t: t.minute in (15, 45) and t.hour % 6 == 0 and (t.month, t.day) == (2, 29)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_every_minute_that_matches_and_no_other(line, matches, zone):
    cron, here = Cron.parse(line, zone), ZoneInfo(zone)
    begin, days = datetime(2024, 1, 31, 12, tzinfo=UTC), 40
    minutes = (begin + timedelta(minutes=n) for n in range(1, days * 1440 + 1))
    expected = [moment for moment in minutes if matches(moment.astimezone(here))]
    until = begin + timedelta(days=days)
    assert cron.between(begin, until, 10**6) == expected
    assert cron.between(begin, until, 2) == expected[-2:]


@given(
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 2,3 * * *", "15 */2 * * *"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(0, 366 * 24 * 60),
)
def test_times_rise_and_no_moment_changes_them(line, zone, minute):
    """Also where clocks change: the next time is the same from any moment before it."""
    cron, begin = Cron.parse(line, zone), datetime(2024, 1, 1, tzinfo=UTC)
    moments = cron.moments(begin + timedelta(minutes=minute))
    first, second = next(moments), next(moments)
    assert begin + timedelta(minutes=minute) < first < second
    assert cron.after(first - timedelta(seconds=1)) == first
    assert cron.after(first) == second


def test_where_clocks_change():
    """Berlin, 2024: on 31 March 2:30 does not come, on 27 October it comes twice."""
    spring, autumn = datetime(2024, 3, 30, tzinfo=UTC), datetime(2024, 10, 26, tzinfo=UTC)
    line, zone = "30 2 * * *", "Europe/Berlin"
    assert first(line, 3, zone, spring) == ["30 01:30", "31 01:00", "01 00:30"]
    assert first(line, 3, zone, autumn) == ["26 00:30", "27 00:30", "28 01:30"]


@pytest.mark.parametrize(
    ("line", "zone", "words"),
    [
        ("0 6 * *", "UTC", "has 4 fields and needs 5"),
        ("60 6 * * *", "UTC", "minute"),
        ("0 6 0 * *", "UTC", "day of month"),
        ("0 6 * * nine", "UTC", "day of week"),
        ("0 6 31 2,4 *", "UTC", "day of month"),
        (f"{'9' * 5000} 6 * * *", "UTC", "is invalid"),
        ("0 6 * * 1", "Mars/Olympus", "IANA"),
        ("0 6 * * 1", "../../etc", "IANA"),
    ],
)
def test_what_no_clock_shows_is_refused(line, zone, words):
    with pytest.raises(PlannerError, match=words):
        Cron.parse(line, zone)
