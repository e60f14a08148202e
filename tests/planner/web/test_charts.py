"""Charts show what the tables say, with no more points than the picture needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.templatetags.headroom import digits, duration, figure, percent, when
from planner.web.charts.figure import MAX_POINTS, PALETTE
from planner.web.charts.over_time import (
    POLICY_LINES,
    forecast_figure,
    replica_figure,
    steps,
    thin,
)

START = datetime(2024, 5, 18, tzinfo=UTC)


def line(values: list[float]) -> pl.DataFrame:
    at = [START + timedelta(minutes=i) for i in range(len(values))]
    return pl.DataFrame({"time": at, "ready": values})


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_step_line_can_be_drawn_from_its_changes(values: list[int]) -> None:
    table = line([float(v) for v in values])
    kept = steps(table, "time", "ready")
    filled = table.select("time").join_asof(kept, on="time", strategy="backward")
    assert filled["ready"].to_list() == table["ready"].to_list()
    assert kept["time"][-1] == table["time"][-1]


def test_a_line_with_too_many_points_keeps_its_mean() -> None:
    values = np.random.default_rng(1).uniform(0, 10, 12_000)
    table = line(list(values))
    kept = thin(table, "time", "ready")
    assert kept.height <= MAX_POINTS + 1
    assert kept["ready"].mean() == pytest.approx(values.mean(), rel=1e-2)


def test_a_tier_that_is_not_known_makes_the_sum_unknown() -> None:
    row = {"model": "m", "region": "r", "mean": 1.0, "p10": 0.5, "p90": 2.0}
    table = pl.DataFrame(
        [
            {"time": START, "tier": "a", "actual": 4.0, **row},
            {"time": START, "tier": "b", "actual": 2.0, **row},
            {"time": START + timedelta(hours=1), "tier": "a", "actual": None, **row},
            {"time": START + timedelta(hours=1), "tier": "b", "actual": 2.0, **row},
        ]
    )
    lines = {d["name"]: d for d in forecast_figure(table, pool=("m", "r"), clock="utc")["data"]}
    assert lines["Actual"]["y"] == [6.0, None]
    assert lines["Forecast"]["y"] == [2.0, 2.0]


def test_times_of_a_relative_clock_are_hours_since_the_beginning() -> None:
    at = [datetime.fromtimestamp(s, UTC) for s in (0, 5400)]
    table = pl.DataFrame(
        {"policy": "lt-i", "time": at, "model": "m", "region": "r", "ready": [1.0, 2.0]}
    )
    drawn = replica_figure(
        table, None, labels={"lt-i": "Plan"}, shown=["lt-i"], pool=None, clock="relative"
    )
    assert drawn["data"][0]["x"] == [0.0, 1.5]
    assert "hours" in drawn["layout"]["xaxis"]["title"]["text"]


def test_policies_are_told_apart_by_colour_or_dash() -> None:
    styles = [(colour, dash) for colour, dash, _ in POLICY_LINES.values()]
    assert len(set(styles)) == len(styles)
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12_345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.204, "1.2"),
     (0.0421, "0.042"), (0.00042, "0.00042"), (-50.0, "-50"), (100.0, "100"), (20.0, "20")],
)  # fmt: skip
def test_figures_have_the_digits_that_matter(value: float, text: str) -> None:
    assert digits(value) == text


def test_units_stand_where_people_expect_them() -> None:
    assert figure(1234.0, "kWh") == "1,234 kWh"
    assert figure(-12.5, "$") == "-$12.5"
    assert figure(None, "$") == figure(float("nan")) == percent(None) == "–"
    assert percent(0.1234) == "12.3 %"
    assert [duration(s) for s in (0.25, 12.34, 250, 7500, 100_000)] == [
        "250 ms", "12.3 s", "4 min 10 s", "2 h 5 min", "1 d 3 h",
    ]  # fmt: skip
    assert when("2024-05-18T14:00:00Z") == "18 May 2024, 14:00 UTC"
    assert when("1970-01-01T01:30:00Z", "relative") == "1 h 30 min in"
    assert when("+90s") == "1 min 30 s after its origin"
