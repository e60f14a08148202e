"""A plan is proposed, talked over, amended and approved by two people, and the log tells of it."""

from typing import Any

import pytest
from playwright.sync_api import expect

from bench.access import violations
from planner.models import Run, User
from planner.services.scenarios import scenario_create, scenario_edit
from tests.browser.conftest import PASSWORD, sign_in
from tests.planner.plan_runs import planned_run
from tests.planner.web.study import DOCUMENT

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}
SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture
def runs(planner: User) -> list[Run]:
    """What is proposed, and what it is amended with: a scenario before and after a change."""
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    first = planned_run(planner, (1, 4), scenario=scenario)
    changed = scenario_edit(scenario=scenario, user=planner, changes={"horizon.period_s": 1800})
    second = planned_run(planner, (3, 5), scenario=changed)
    second.document = changed.document
    second.save()
    return [first, second]


def as_somebody(site: Any, live_server: Any, name: str) -> Any:
    """A second browser, signed in by its cookie."""
    person = User.objects.create_user(name, password=PASSWORD, role=User.Role.ADMIN)
    context = site.context.browser.new_context()
    sign_in(context, live_server, person)
    return context.new_page()


def said(page: Any, text: str, button: str) -> None:
    page.locator("#text").fill(text)
    page.get_by_role("button", name=button, exact=True).click()


def test_a_plan_is_reviewed_by_two(
    site: Any, live_server: Any, runs: list[Run], console: list[str]
) -> None:
    other = as_somebody(site, live_server, "ada")
    site.goto(f"{live_server.url}/runs/{runs[0].pk}/")
    site.get_by_role("link", name="Propose change").click()
    site.get_by_label("Title").fill("Fewer by night")
    site.get_by_label("Why").fill("@ada, one will do by night.")
    site.get_by_label("Repeat").select_option("daily")
    site.get_by_label("ada").check()
    site.get_by_role("button", name="Propose").click()
    expect(site.locator("#state")).to_have_text("Open")
    url = site.url
    # The approver finds it, looks at both differences and comments on a point of the chart.
    other.goto(f"{live_server.url}/proposals/?show=for-me")
    other.get_by_role("link", name="Fewer by night").click()
    expect(other.locator("#checks li")).to_have_count(5)
    expect(other.locator("#pools")).to_contain_text("llama-3-1-8b")
    expect(other.locator("#replica-chart[data-drawn]")).to_be_visible()
    plot = other.locator("#replica-chart .nsewdrag").first
    plot.hover()
    expect(
        other.locator("#replica-chart .hovertext, #replica-chart .hoverlayer *").first
    ).to_be_attached()
    plot.click()
    expect(other.locator("#about")).to_contain_text("On replicas")
    said(other, "@pia, too few here.", "Comment")
    expect(other.locator("#story")).to_contain_text("on replicas,")
    said(other, "Three by night.", "Ask for changes")
    expect(other.locator("#state")).to_have_text("Changes requested")
    # The planner amends it; nobody approves what is theirs.
    site.goto(url)
    assert violations(site) == []
    site.locator("#amend summary").click()
    site.get_by_role("combobox", name="Use the plan of").select_option(str(runs[1].pk))
    site.get_by_role("button", name="Amend", exact=True).click()
    expect(site.locator("#state")).to_have_text("Open")
    expect(site.get_by_role("button", name="Approve")).to_have_count(0)
    other.goto(url)
    said(other, "Good.", "Approve")
    expect(other.locator("#standing")).to_contain_text("It is the active plan")
    # It is planned again every Monday.
    other.goto(f"{live_server.url}/schedules/new/")
    other.get_by_label("Name").fill("Mondays")
    other.get_by_label("Scenario").select_option(str(runs[0].scenario_id))
    other.get_by_role("button", name="Save schedule").click()
    expect(other.locator("main")).to_contain_text("Never: every plan is reviewed")
    # Its export carries the number, and the log tells the story.
    number = url.rstrip("/").rpartition("/")[2]
    manifest = site.request.get(f"{live_server.url}/runs/{runs[1].pk}/export/?to=keda").text()
    assert f"(approved: proposal {number})" in manifest
    other.goto(f"{live_server.url}/audit/")
    for deed in ("proposal.made", "proposal.amended", "proposal.approved", "plan.in-force"):
        expect(other.locator(f"td[title='{deed}']").first).to_be_visible()
    assert violations(other) == []
    for address in (url, f"{live_server.url}/scenarios/{runs[0].scenario_id}/versions/"):
        site.set_viewport_size(PHONE)
        site.goto(address)
        assert site.evaluate(SIDEWAYS) <= 0, address
        assert violations(site) == [], address
    assert not console
    other.context.close()
