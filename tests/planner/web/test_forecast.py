"""How a forecast did, on the page of any run that has one."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from django.test import Client

from planner.domain.report import Table
from planner.domain.reports.forecast import report
from planner.models import Run, User
from planner.web.pages.forecast import missed_peaks, week_errors
from tests.planner.web.pages import json_in, text_of
from tests.planner.web.study import KEYS, MONDAY, completed_run, moments_of


@pytest.fixture
def study(planner: User) -> Run:
    run = completed_run(planner)
    moments_of(run)
    return run


@pytest.mark.parametrize(("days", "rows"), [(1, 24), (7, 7)])
def test_a_window_ahead_is_shown_whole_with_its_peak(days: int, rows: int) -> None:
    bins = 96 * days  # of 15 minutes
    ahead = pl.DataFrame(
        {
            "time": [MONDAY + timedelta(minutes=15 * i) for i in range(bins)],
            "actual": pl.Series([None] * bins, dtype=pl.Float64),
            "mean": [float(i) for i in range(bins)],
            "p10": [0.0] * bins,
            "p90": [2.0 * bins] * bins,
        }
    )
    window = SimpleNamespace(start=MONDAY, end=MONDAY + timedelta(days=days), clock="utc")
    result = cast(
        Any,
        SimpleNamespace(
            series=[],
            methods=None,
            window=window,
            notes=(),
            scenario="Ahead",
            headline="",
            compared=None,
            forecast=None,
        ),
    )
    found = report(result, lambda name: ahead if name == "forecast" else pl.DataFrame())
    (peak,) = found.facts
    assert peak.value == bins - 1
    (table,) = [
        block
        for section in found.sections
        if section.title == "Forecast over time"
        for block in section.blocks
        if isinstance(block, Table)
    ]
    assert len(table.rows) == rows
    means = [row[1] for row in table.rows]
    assert sum(means) / rows == pytest.approx((bins - 1) / 2)  # no bin is left out


def test_errors_are_by_hour_of_the_week_and_missed_peaks_by_period() -> None:
    """Monday's first two hours: off by a tenth and by a half; one of two peaks above the plan."""
    rows = [(0, 100.0, 90.0, 105.0), (30, 100.0, 110.0, 105.0), (60, 100.0, 50.0, 80.0)]
    table = pl.DataFrame([
        {"time": MONDAY + timedelta(minutes=m), **KEYS, "actual": a, "mean": f, "planned": p}
        for m, a, f, p in rows
    ])  # fmt: skip
    figure = week_errors(table, "utc")
    (heat,) = figure["data"]
    assert heat["y"] == ["Mon"] and heat["z"][0][:3] == [10.0, 50.0, None]
    missed = missed_peaks(table, 3600.0)
    assert (missed.missed, missed.periods, missed.share) == (1, 2, 0.5)
    assert missed.rows[0]["over"] == pytest.approx(0.25)


def test_the_slider_shows_what_was_known_at_a_moment(client: Client, study: Run) -> None:
    page = client.get(f"/runs/{study.pk}/")
    assert "Peaks missed" in text_of(page)
    assert page.context.get("week_errors") is None  # one day has no pattern of a week
    assert 'type="range"' in page.content.decode()
    answer = client.get(f"/runs/{study.pk}/?part=moment&moment=2", headers={"HX-Request": "true"})
    assert "13 May 2024, 02:00" in text_of(answer)
    figure = json_in(answer, "moment-data")
    by_name = {trace["name"]: trace for trace in figure["data"]}
    assert by_name["Forecast then"]["y"] == [12.0, 12.0]
    assert by_name["Demand known then"]["y"] == [4.0, 6.0, 8.0, 10.0, 12.0]
    assert by_name["Actual demand"]["y"] == [14.0, 16.0]
    far = client.get(f"/runs/{study.pk}/?part=moment&moment=99", headers={"HX-Request": "true"})
    assert "13 May 2024, 02:00" in text_of(far)
