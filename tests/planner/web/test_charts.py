"""Charts show what the tables say, with no more points than the picture needs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import plotly
import plotly.graph_objects as go
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.formats import digits, duration, figure, percent, when
from planner.outputs.render.figure import MAX_POINTS, PALETTE
from planner.outputs.render.figure import figure as chart
from planner.outputs.render.figure import points as plain_points
from planner.web.charts.over_time import POLICY_LINES, forecast_figure, replica_figure, steps, thin

START = datetime(2024, 5, 18, tzinfo=UTC)


def line(values: list[float]) -> pl.DataFrame:
    times = [START + timedelta(minutes=i) for i in range(len(values))]
    return pl.DataFrame({"time": times, "ready": values})


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_step_line_can_be_drawn_from_its_changes(values: list[int]) -> None:
    table = line([float(v) for v in values])
    kept = steps(table, "time", "ready")
    filled = table.select("time").join_asof(kept, on="time", strategy="backward")
    assert filled["ready"].to_list() == table["ready"].to_list()
    assert kept["time"][-1] == table["time"][-1]
    hourly = steps(table, "time", "ready", every="1h")  # a point to choose in each hour
    refilled = table.select("time").join_asof(hourly, on="time", strategy="backward")
    assert refilled["ready"].to_list() == table["ready"].to_list()
    hours = table["time"].dt.truncate("1h").unique()
    assert hourly["time"].dt.truncate("1h").unique().sort().to_list() == hours.sort().to_list()


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
    ahead = forecast_figure(table.filter(pl.col("time") > START), pool=("m", "r"), clock="utc")
    assert "Actual" not in {d["name"] for d in ahead["data"]}


def test_times_of_a_relative_clock_are_hours_since_the_beginning() -> None:
    times = [datetime.fromtimestamp(s, UTC) for s in (0, 5400)]
    table = pl.DataFrame(
        {"policy": "lt-i", "time": times, "model": "m", "region": "r", "ready": [1.0, 2.0]}
    )
    drawn = replica_figure(
        table, None, labels={"lt-i": "Plan"}, shown=["lt-i"], pool=None, clock="relative"
    )
    assert drawn["data"][0]["x"] == [0.0, 1.5]
    assert "hours" in drawn["layout"]["xaxis"]["title"]["text"]


def test_demand_and_what_replicas_carry_are_in_one_unit_on_one_axis() -> None:
    """Demand stood over replicas on an axis of its own, which read as a plan that cannot serve."""
    times = [START + timedelta(hours=i) for i in range(4)]
    where = {"model": "m", "region": "r"}
    replicas = pl.DataFrame({"policy": "lt-i", "time": times, **where, "ready": [2.0, 2, 3, 3]})
    demand = pl.DataFrame({"time": times, **where, "tier": "t", "input_tps": [5.0, 15, 25, 15]})
    capacity = pl.DataFrame(
        {"policy": "lt-i", "time": [times[0], times[2]], **where, "capacity_tps": [20.0, 30.0]}
    )
    other = capacity.with_columns(pl.lit("q").alias("region"), pl.lit(1.0).alias("capacity_tps"))
    drawn = replica_figure(
        replicas, demand, labels={"lt-i": "Plan"}, shown=["lt-i"], pool=None, clock="utc",
        capacity=pl.concat([capacity, other]),
    )  # fmt: skip
    asked, carried, ready = drawn["data"]
    assert asked.get("yaxis", "y") == carried.get("yaxis", "y") == "y" != ready["yaxis"]
    assert carried["y"] == [21.0, 21.0, 31.0] and ready["y"] == [2, 2, 3, 3]
    assert carried["line"]["shape"] == "hv" and carried["legendgroup"] == ready["legendgroup"]
    assert "input tokens/s" in drawn["layout"]["yaxis"]["title"]["text"]
    assert drawn["layout"]["hoversubplots"] == "axis"  # pointing tells of both


def test_policies_are_told_apart_by_colour_or_dash() -> None:
    styles = [(colour, dash) for colour, dash, _ in POLICY_LINES.values()]
    assert len(set(styles)) == len(styles)
    assert len(set(PALETTE)) == len(PALETTE)


def test_the_script_that_draws_is_of_the_package_that_makes_figures() -> None:
    package = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    vendored = Path("static/vendor/plotly/plotly-cartesian.min.js")

    def version(path: Path) -> str:
        version = re.search(r"plotly\.js \D*v(\S+)", path.read_text("utf-8")[:300])
        assert version is not None
        return version[1]

    assert version(vendored) == version(package)


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
    assert percent(0.1234) == "12.3%"
    assert [duration(s) for s in (0.25, 12.34, 250, 7500, 100_000)] == [
        "250 ms", "12.3 s", "4 min 10 s", "2 h 5 min", "1 d 3 h",
    ]  # fmt: skip
    assert when("2024-05-18T14:00:00Z") == "18 May 2024, 14:00 UTC"
    assert when("1970-01-01T01:30:00Z", "relative") == "1 h 30 min in"
    assert when("+90s") == "1 min 30 s after its origin"


def test_lines_and_points_are_plain_data_as_plotly_takes_it() -> None:
    """Gaps are null, which a browser reads, and styles stand where Plotly looks for them."""
    drawn = plain_points(
        [1.0, 2.0], [3.0, float("nan")], "loads", "#000", hover=None, marker_line_width=2
    )
    assert drawn["marker"] == {
        "color": "#000", "symbol": "circle", "size": 9, "line": {"width": 2}
    }  # fmt: skip
    assert "hovertemplate" not in drawn
    (shown,) = chart([drawn], height=100)["data"]
    assert shown["y"] == [3.0, None]
    assert chart([drawn, go.Bar(x=[1], y=[2])], height=100)["data"][0]["marker"] == drawn["marker"]
