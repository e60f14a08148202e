"""A planning session in a browser: why, what if, a sweep, and runs beside each other."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from planner.domain.whatif.settings import Axis
from planner.models import Run, User
from planner.services.whatif import sweep_create
from tests.browser.test_pages import PHONE, SIDEWAYS, drawn
from tests.planner.management.calling import answer
from tests.planner.management.calling import folder as folder  # the fixture
from tests.planner.web.study import completed_run

pytestmark = pytest.mark.browser


def test_from_an_answer_to_what_if(
    site: Any, live_server: Any, folder: Path, planner: User, console: list[str]
) -> None:
    plan = Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])
    other = completed_run(planner)

    site.goto(live_server.url + reverse("web:run", args=[plan.pk]) + "#why-number")
    expect(site.get_by_text(re.compile("Limited by T(TFT|POT)"))).to_be_visible()
    site.get_by_role("link", name="What-if", exact=True).click()
    site.locator("#setting-1").select_option("price.G")
    site.locator("#value-1").fill("2")
    expect(site.locator("#what-if-answers")).to_contain_text("+100.0%")
    site.locator("#to-1").fill("4")
    expect(site.locator("#cell option")).to_have_count(5)
    drawn(site)
    site.locator("#to-1").fill("")
    expect(site.locator("#cell")).to_have_count(0)

    # A scenario of its own; no worker runs here.
    site.get_by_role("button", name="New scenario").click()
    expect(site.get_by_role("heading", name="By hand, what if")).to_be_visible()

    site.goto(live_server.url + reverse("web:runs"))
    for run in (plan, other):
        site.get_by_label(f"Compare run {run.pk}", exact=True).check()
    site.get_by_role("button", name="Compare selected").click()
    expect(site).to_have_url(re.compile(f"{other.pk}"))
    expect(site.get_by_role("heading", level=1)).to_contain_text(f"{plan.pk}")
    expect(site.get_by_text("Other traffic").first).to_be_attached()
    beside = site.url

    sweep = sweep_create(
        owner=planner, document=plan.document, axes=[Axis("seed", (1, 2))], enqueue=False
    )
    first = sweep.runs.get(cell=0)
    first.state, first.result = Run.State.COMPLETED, plan.result
    first.save()
    grid = live_server.url + reverse("web:what-if", args=[sweep.pk])
    site.goto(grid)
    expect(site.get_by_role("status")).to_contain_text("left: 1")

    for size in (PHONE, {"width": 1280, "height": 900}):
        site.set_viewport_size(size)
        what_if = live_server.url + reverse("web:run-what-if", args=[plan.pk])
        for address in (beside, grid, what_if):
            site.goto(address)
            drawn(site)
            assert site.evaluate(SIDEWAYS) <= 0, address
    assert not console
