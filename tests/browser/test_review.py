"""What only a browser can tell of a review: a comment on a point of the chart."""

from typing import Any

import pytest
from playwright.sync_api import expect

from bench.access import violations
from planner.models import User
from planner.services.proposals import propose
from planner.services.scenarios import scenario_create
from tests.planner.plan_runs import planned_run
from tests.planner.web.study import DOCUMENT

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}
SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"


def test_a_point_of_the_chart_is_commented_on(
    site: Any, live_server: Any, planner: User, console: list[str]
) -> None:
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    run = planned_run(planner, (1, 4), scenario=scenario)
    made = propose(by=planner, title="Fewer by night", run=run)
    url = f"{live_server.url}/proposals/{made.pk}/"
    site.goto(url)
    plot = site.locator("#replica-chart[data-drawn] .nsewdrag").first
    plot.hover()
    hover = site.locator("#replica-chart .hovertext, #replica-chart .hoverlayer *")
    expect(hover.first).to_be_attached()
    plot.click()
    expect(site.locator("#about")).to_contain_text("On replicas")
    site.locator("#text").fill("Too few here.")
    site.get_by_role("button", name="Comment", exact=True).click()
    expect(site.locator("#story")).to_contain_text("on replicas,")
    for address in (url, f"{live_server.url}/scenarios/{scenario.pk}/versions/"):
        site.set_viewport_size(PHONE)
        site.goto(address)
        assert site.evaluate(SIDEWAYS) <= 0, address
        assert violations(site) == [], address
    assert not console
