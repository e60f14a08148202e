"""How a window compares with the rest of its trace: counted by hand, then laws."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from forecasting.demand import REQUESTS, DemandSeries
from planner.domain.traffic.window import DAY_S, HOUR_S
from planner.domain.traffic.window_rank import (
    ALL,
    WEEK_S,
    busiest,
    time_spans,
    window_rank,
)
from tests.shared_folder import TRACES, shared

MAY = datetime(2024, 5, 1, tzinfo=UTC).timestamp()


def hourly(per_day: list[float], start_s: float = MAY) -> DemandSeries:
    """Every hour of a day has a 24th of the day."""
    values = np.repeat(np.array(per_day) / 24, 24)
    return DemandSeries(ALL, start_s, HOUR_S, values, REQUESTS)


def test_a_window_is_compared_with_stretches_at_its_own_time_of_day() -> None:
    demand = hourly([240, 480, 720])
    rank = window_rank(demand, MAY + 12 * HOUR_S, MAY + 36 * HOUR_S)
    assert (rank.rank, rank.of) == (2, 2)  # the last half day has no second half
    assert rank.sentence.startswith("1 May 2024, 12:00 to 2 May 2024, 12:00 is the quietest of 2 ")
    short = window_rank(demand, MAY + 6 * HOUR_S, MAY + 12 * HOUR_S)
    assert short.of == 12 and "of 12 6-hour windows" in short.sentence


def test_weeks_slide_by_days() -> None:
    demand = hourly([1, 9, 9, 9, 9, 9, 9, 9, 1, 1])
    week = busiest(demand, WEEK_S)
    assert week is not None and (week.start_s, week.amount) == (MAY + DAY_S, 63)
    assert len(time_spans(demand, WEEK_S)) == 4
    rank = window_rank(demand, MAY, MAY + WEEK_S)
    assert "1 May 2024 to 7 May 2024 is the 2nd busiest of 4 weeks" in rank.sentence


def test_the_busiest_day_may_leave_room_for_history() -> None:
    demand = hourly([900, 240, 600])
    first, later = busiest(demand), busiest(demand, not_before_s=MAY + DAY_S)
    assert first is not None and first.start_s == MAY
    assert later is not None and later.start_s == MAY + 2 * DAY_S
    assert busiest(demand, 30 * DAY_S) is None


def test_an_outage_makes_no_quiet_day() -> None:
    values = np.full(96 * 4, 1000.0) + np.arange(96 * 4) % 7
    values[200:207] = 0  # an hour and three quarters of the third day
    demand = DemandSeries(ALL, MAY, 900.0, values, REQUESTS)
    amounts = [stretch.amount for stretch in time_spans(demand, DAY_S)]
    assert amounts == pytest.approx([96 * 1003] * 4, rel=1e-3)


def test_a_window_that_is_not_all_known_has_no_rank() -> None:
    values = np.full(72, 10.0)
    values[30:38] = np.nan
    demand = DemandSeries(ALL, MAY, HOUR_S, values, REQUESTS)
    rank = window_rank(demand, MAY + DAY_S, MAY + 2 * DAY_S)
    assert rank.rank is None and rank.of == 2 and "too many gaps" in rank.sentence
    outside = window_rank(demand, MAY + 3 * DAY_S, MAY + 4 * DAY_S)
    assert outside.rank is None and "not wholly within the trace" in outside.sentence


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_a_permutation_and_ratios_agree_with_them(seed: int) -> None:
    per_day = np.random.default_rng(seed).gamma(2.0, 1e4, 9).round().tolist()
    demand = hourly(per_day)
    ranks = [window_rank(demand, MAY + d * DAY_S, MAY + (d + 1) * DAY_S) for d in range(9)]
    assert sorted(rank.rank or 0 for rank in ranks) == list(range(1, 10))
    for rank, amount in zip(ranks, per_day, strict=True):
        assert rank.busiest_ratio == pytest.approx(max(per_day) / amount)
        assert (rank.rank == 1) == (amount == max(per_day))


def test_days_of_real_traffic() -> None:
    rows = pl.read_csv(shared(TRACES / "burstgpt_hourly.csv"))
    counts = rows["conversation_requests"].to_numpy().astype(float)
    demand = DemandSeries(ALL, 0.0, HOUR_S, counts, REQUESTS)
    by_day = counts.reshape(47, 24).sum(axis=1)
    top = busiest(demand)
    assert top is not None and top.start_s == np.argmax(by_day) * DAY_S
    last = window_rank(demand, 46 * DAY_S, 47 * DAY_S, "relative")
    assert last.rank == 1 + (by_day > by_day[46]).sum() and last.of == 47


def test_without_any_demand_no_window_has_a_rank() -> None:
    rank = window_rank(hourly([0, 0, 0]), MAY + DAY_S, MAY + 2 * DAY_S)
    assert (rank.rank, rank.amount, rank.busiest_ratio) == (None, None, None)
