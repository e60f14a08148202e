"""The replicas of a schedule, in all and by phase."""

from datetime import UTC, datetime

from planner.domain.reports.schedule import Schedule, SchedulePool, schedule_table
from planner.domain.results.answer import ScheduleRow
from planner.domain.results.basis import WindowFacts

POOLS = tuple(
    SchedulePool(model, region, "H100", role)
    for model in ("chat", "code")
    for region in ("east", "west")
    for role in ("prefill", "decode")
)
MIXED = SchedulePool("search", "east", "H100", "mixed")


def test_the_split_is_of_all_pools_or_of_one_model() -> None:
    hours = (datetime(2024, 5, 13, hour, tzinfo=UTC) for hour in range(2))
    counts = ((1, 2, 3, 4, 20, 1, 20, 1, 0), (5, 6, 7, 8, 1, 1, 1, 1, 90))
    rows = tuple(ScheduleRow(hour, row, hour) for hour, row in zip(hours, counts, strict=True))
    schedule = Schedule((*POOLS, MIXED), rows)
    assert schedule.split() == "14P:8D to 44P:16D"
    assert schedule.split("chat") == "4P:6D to 12P:14D"
    assert schedule.split("code") == "2P:2D to 40P:2D"
    assert schedule.split("search") == schedule.split("unknown") == ""
    # Of a region: chat is most in the west in the second hour, code in the east in the first.
    assert schedule.peak_split("chat") == (7, 8, "west")
    assert schedule.peak_split("code") == (20, 1, "east")
    assert schedule.peak_split("search") == schedule.peak_split("unknown") == (0, 0, "")


def test_replicas_that_overlap_during_a_cold_start_are_not_in_the_span() -> None:
    first, asked, begins = (datetime(2024, 5, 13, 0, minute, tzinfo=UTC) for minute in (0, 50, 59))
    counts = {(first, first): (4, 2), (asked, begins): (4, 3), (begins, begins): (2, 3)}
    rows = tuple(ScheduleRow(at, row, period) for (at, period), row in counts.items())
    schedule = Schedule(POOLS[:2], rows)
    assert schedule.totals == (6, 7, 5)
    assert schedule.span == (5, 6)
    assert Schedule(POOLS[:2], ()).span is None


def test_the_table_has_a_row_per_period_with_its_end() -> None:
    first, asked, begins, end = (datetime(2024, 5, 13, hour, tzinfo=UTC) for hour in (0, 5, 6, 9))
    counts = {(first, first): (4, 2), (asked, begins): (4, 3), (begins, begins): (2, 3)}
    rows = tuple(ScheduleRow(at, row, period) for (at, period), row in counts.items())
    window = WindowFacts(first, end, 3600.0, 300.0, 0.0, "utc", "forecast", None)
    table = schedule_table(Schedule(POOLS[:2], rows), window)
    assert table.rows == (
        (first, begins, None, 6, 4, 2),
        (begins, end, asked, 5, 2, 3),
    )
    # Without a cold start, nothing is requested ahead. A single row has no end.
    (only,) = schedule_table(Schedule(POOLS[:2], rows[:1]), window).rows
    assert only == (first, 6, 4, 2)
