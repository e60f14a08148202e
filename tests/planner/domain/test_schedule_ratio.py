"""The ratio of prefill to decode replicas in a schedule."""

from datetime import UTC, datetime

from planner.domain.reports.schedule import Schedule, SchedulePool
from planner.domain.results.answer import ScheduleRow

POOLS = tuple(
    SchedulePool(model, region, "H100", role)
    for model in ("chat", "code")
    for region in ("east", "west")
    for role in ("prefill", "decode")
)
MIXED = SchedulePool("search", "east", "H100", "mixed")


def test_a_ratio_is_that_of_the_peak_of_all_pools_or_of_one_model() -> None:
    hours = (datetime(2024, 5, 13, hour, tzinfo=UTC) for hour in range(2))
    counts = ((1, 2, 3, 4, 20, 1, 20, 1, 0), (5, 6, 7, 8, 1, 1, 1, 1, 90))
    rows = tuple(ScheduleRow(hour, row, hour) for hour, row in zip(hours, counts, strict=True))
    schedule = Schedule((*POOLS, MIXED), rows)
    assert schedule.ratio() == "14:16"
    assert schedule.ratio("chat") == "12:14"
    assert schedule.ratio("code") == "40:2"
    assert schedule.ratio("search") == schedule.ratio("unknown") == ""
