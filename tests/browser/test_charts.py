"""Plotly's rules come as a file, since the site's policy lets no script put styles into a page."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.outputs.render.figure import TRACE_TIME

pytestmark = pytest.mark.browser

VENDORED = Path("static/vendor/plotly")
RULES = "[...document.styleSheets].flatMap(sheet => [...sheet.cssRules].map(rule => rule.cssText))"


def test_the_file_has_the_rules_that_plotly_would_put_into_a_page(page: Any) -> None:
    page.set_content("<html><head></head><body></body></html>")
    page.add_script_tag(content=(VENDORED / "plotly-cartesian.min.js").read_text(encoding="utf-8"))
    made = page.evaluate(RULES)
    page.set_content("<html><head></head><body></body></html>")
    page.add_style_tag(content=(VENDORED / "plotly.css").read_text(encoding="utf-8"))
    assert len(made) > 50 and page.evaluate(RULES) == made


def table_cells(page: Any, figure: dict[str, Any]) -> list[list[str]]:
    """Return the cells of the table of a chart."""
    page.set_content(
        '<div class="chart-box"><div data-figure="data"></div>'
        f'<script id="data" type="application/json">{json.dumps(figure)}</script>'
        "<details><summary>Table</summary><div data-table-of></div></details></div>"
    )
    page.add_script_tag(content=Path("static/js/charts.js").read_text(encoding="utf-8"))
    page.locator("summary").click()
    page.locator("table").wait_for()
    cells: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('tr')].map(row => [...row.cells].map(c => c.textContent))"
    )
    return cells


def draw(page: Any, figure: dict[str, Any]) -> None:
    """Show a chart as a page of the site does."""
    page.set_content(
        '<div class="chart-box"><div data-figure="data" class="chart-frame"></div>'
        f'<script id="data" type="application/json">{json.dumps(figure)}</script></div>'
    )
    page.add_style_tag(content=Path("static/css/headroom.css").read_text(encoding="utf-8"))
    page.add_script_tag(content=(VENDORED / "plotly-cartesian.min.js").read_text(encoding="utf-8"))
    page.add_script_tag(content=Path("static/js/charts.js").read_text(encoding="utf-8"))
    page.evaluate("document.dispatchEvent(new Event('DOMContentLoaded'))")
    page.locator("[data-drawn]").wait_for()


def test_no_point_is_missing_in_the_table_of_a_chart(page: Any) -> None:
    """Two points with one x stand in two rows, and a line with equal steps has all its points."""
    hour = "1970-02-17T0{}:00:00".format
    figure = {
        "data": [
            {"name": "steps", "x": [hour(0), hour(0), hour(1)], "y": [1, 2, 3]},
            {"name": "rates", "x0": hour(0), "dx": 3_600_000, "y": [5, 6]},
            {"name": "limit", "x": [hour(0), hour(9)], "y": [7, 7]},
        ],
        "layout": {"xaxis": {"title": {"text": TRACE_TIME}}},
    }
    cells = table_cells(page, figure)
    assert cells == [
        [TRACE_TIME, "steps", "rates", "limit"],
        ["Day 48, 00:00", "1", "5", "7"],
        ["Day 48, 00:00", "2", "no data", "7"],
        ["Day 48, 01:00", "3", "6", "7"],
    ]


def test_names_stay_as_they_are_in_the_table_of_a_chart(page: Any) -> None:
    names = ["Today's fleet", "Forecast plan (LT-G)", "GPU 2", "GPU 10"]
    cells = table_cells(
        page, {"data": [{"name": "cost", "x": names, "y": [1, 2, 3, 4]}], "layout": {}}
    )
    assert [row[0] for row in cells[1:]] == names


def test_points_of_several_lines_add_no_rows_to_the_table_of_a_chart(page: Any) -> None:
    lines = [{"name": name, "x": [1, 2], "y": [3, 4], "mode": "lines"} for name in ("a", "b")]
    points = {"name": "at", "x": [1, 2, 1, 2], "y": [3, 4, 3, 4], "mode": "markers"}
    cells = table_cells(page, {"data": [*lines, points], "layout": {}})
    assert [row[0] for row in cells[1:]] == ["1", "2"]


def test_steps_over_hours_stay_in_the_order_of_numbers(page: Any) -> None:
    """Steps get values at the moments of other lines; as text, hour 10 would come before hour 2."""
    hours = [float(hour) for hour in range(24)]
    step = {"x": [0.0, 9.0, 23.0], "y": [1, 2, 3], "type": "scatter", "line": {"shape": "hv"}}
    figure = {
        "data": [step, {"x": hours, "y": hours, "type": "scatter"}],
        "layout": {"height": 300, "margin": {"t": 10}, "hovermode": "x unified"},
    }
    draw(page, figure)
    drawn = page.evaluate("document.querySelector('[data-figure]').data[0]")
    assert drawn["x"] == hours
    assert drawn["y"] == [1] * 9 + [2] * 14 + [3]


def test_a_chart_grows_with_its_window(page: Any) -> None:
    """The legend takes fewer lines in a wide window, so the height of the chart changes too."""
    line = {"x": [1, 2], "y": [1, 2], "type": "scatter"}
    names = [f"a line with a name of some length, number {number}" for number in range(5)]
    figure = {
        "data": [line | {"name": name} for name in names],
        "layout": {"height": 300, "margin": {"l": 40, "r": 10, "t": 10, "b": 30}},
    }
    page.set_viewport_size({"width": 390, "height": 844})
    draw(page, figure)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function(
        "document.querySelector('.main-svg').clientWidth > 1000"
        " && document.querySelector('.main-svg').clientWidth"
        " == document.querySelector('[data-figure]').clientWidth"
    )
