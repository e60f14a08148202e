"""Time zones: of a person, else of the workspace, in what people read; data stays in UTC."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from planner.domain.formats import ZONE, when
from planner.domain.report import Axis, Chart, Form, Series
from planner.errors import NotAllowed, PlannerError
from planner.models import Trace, User
from planner.outputs.render.plotly import figure_of
from planner.services.people import time_zone_set
from planner.web.charts.traffic import week_figure
from tests.planner.web.pages import signed_in, text_of

SUMMER = datetime(2024, 5, 21, 22, 30, tzinfo=UTC)
ADDRESS = "/account/time-zone/"


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "21 May 2024, 22:30 UTC"),
        ("Europe/Berlin", "22 May 2024, 00:30 CEST"),
        ("America/Sao_Paulo", "21 May 2024, 19:30 UTC-03"),
        ("Asia/Kathmandu", "22 May 2024, 04:15 UTC+0545"),
    ],
)
def test_moments_are_in_the_zone_of_the_reader_and_name_it(zone: str, text: str) -> None:
    token = ZONE.set(ZoneInfo(zone))
    try:
        assert when(SUMMER) == text and text.startswith(Form.MOMENT.written(SUMMER))
        figure = figure_of(Chart("", Axis(), Axis(), (Series("", (SUMMER,), (1.0,)),)))
        local = SUMMER.astimezone(ZoneInfo(zone))
        assert figure["data"][0]["x"] == [f"{local:%Y-%m-%dT%H:%M:%S}"]
        assert figure["layout"]["xaxis"]["title"]["text"] == zone
    finally:
        ZONE.reset(token)


@pytest.mark.parametrize(
    ("zone", "day", "hour", "label"),
    [
        ("UTC", "Mon", 23, "UTC"),
        ("Europe/Berlin", "Tue", 1, "CEST"),
        ("America/Sao_Paulo", "Mon", 20, "UTC-03"),
        ("Asia/Kathmandu", "Mon", 23, "UTC"),  # 5:45 cannot be shown by the hour
    ],
)
def test_a_week_by_the_hour_is_that_of_the_reader(
    zone: str, day: str, hour: int, label: str
) -> None:
    token = ZONE.set(ZoneInfo(zone))
    try:
        week = [[float(d == 0 and h == 23) for h in range(24)] for d in range(7)]
        figure = week_figure(week, unit="", clock="utc", start_s=SUMMER.timestamp())
    finally:
        ZONE.reset(token)
    (heat,) = figure["data"]
    assert heat["z"][heat["y"].index(day)][hour] == 1.0
    assert sum(map(sum, heat["z"])) == 1.0
    assert f"({label})" in figure["layout"]["xaxis"]["title"]["text"]


def test_a_person_overrides_the_workspace(planner: User, admin: User, trace: Trace) -> None:
    Trace.objects.filter(pk=trace.pk).update(start_at=SUMMER)
    page, chief = signed_in(planner), signed_in(admin)
    assert "22:30 UTC" in text_of(page.get("/traces/"))
    chief.post(ADDRESS, {"zone": "Asia/Tokyo", "whose": "workspace"})
    assert "07:30 JST" in text_of(page.get("/traces/"))
    page.post(ADDRESS, {"zone": "Europe/Berlin", "whose": "own"})
    assert "00:30 CEST" in text_of(page.get("/traces/"))
    assert "07:30 JST" in text_of(chief.get("/traces/"))
    page.post(ADDRESS, {"zone": "", "whose": "own"})
    assert "07:30 JST" in text_of(page.get("/traces/"))
    assert ZONE.get() is UTC


def test_unknown_zones_and_others_workspaces_are_refused(planner: User, admin: User) -> None:
    with pytest.raises(PlannerError, match="Mars"):
        time_zone_set(by=planner, name="Mars/Olympus")
    with pytest.raises(PlannerError):
        time_zone_set(by=admin, name="", workspace=True)
    with pytest.raises(NotAllowed):
        time_zone_set(by=planner, name="UTC", workspace=True)
