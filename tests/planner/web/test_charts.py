"""Charts show what the tables say, with no more points than the picture needs."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import plotly
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.formats import digits, duration, figure, percent, rough_duration, when
from planner.outputs.render.figure import MAX_POINTS
from planner.outputs.render.figure import figure as chart
from planner.outputs.render.figure import points as plain_points
from planner.web.charts.over_time import steps, thin

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
    [(0, "0"), (12_345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.204, "1.20"),
     (1.2, "1.2"), (9.996, "10.0"), (0.0421, "0.0421"), (0.1706, "0.171"), (0.00042, "0.00042"),
     (-50.0, "−50"), (100.0, "100"), (20.0, "20")],
)  # fmt: skip
def test_figures_have_the_digits_that_matter(value: float, text: str) -> None:
    assert digits(value) == text


def test_units_stand_where_people_expect_them() -> None:
    assert figure(1234.0, "kWh") == "1,234 kWh"
    assert figure(-12.5, "$") == "−$12.50"
    assert [figure(usd, "$") for usd in (27.512, 9.1, 9, 0.5, 0.0123, 1234.5)] == [
        "$27.51", "$9.10", "$9", "$0.50", "$0.0123", "$1,234",
    ]  # fmt: skip
    assert figure(None, "$") == figure(float("nan")) == percent(None) == "–"
    assert percent(0.1234) == "12.3%"
    assert [duration(s) for s in (0.25, 12.34, 250, 7500, 100_000)] == [
        "250 ms", "12.3 s", "4 min 10 s", "2 h 5 min", "1 d 3 h",
    ]  # fmt: skip
    assert [rough_duration(s) for s in (3.4, 39.5, 62, 364, 1156, 8000)] == [
        "3 s", "40 s", "1 min", "6 min", "20 min", "2 h",
    ]  # fmt: skip
    assert when("2024-05-18T14:00:00Z") == "18 May 2024, 14:00 UTC"
    assert when("1970-01-01T01:30:00Z", "relative") == "Day 1, 01:30"
    assert when("1970-02-16T23:50:00Z", "relative") == "Day 47, 23:50"
    assert when("+90s") == "Day 1, 00:01:30"


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
