"""A planning session in a browser: why, what if, a sweep, and runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from planner.models import Run, User
from planner.services.sweeps import Axis, sweep_create
from tests.browser.test_pages import PHONE, SIDEWAYS, drawn
from tests.planner.management.test_commands import answer
from tests.planner.management.test_commands import folder as folder  # the fixture
from tests.planner.web.study import completed_run

pytestmark = pytest.mark.browser


def test_from_an_answer_to_what_if(
    site: Any, live_server: Any, folder: Path, planner: User, console: list[str]
) -> None:
    plan = Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])
    other = completed_run(planner)

    site.goto(live_server.url + reverse("web:run", args=[plan.pk]))
    site.get_by_text("Why these numbers?").click()
    site.locator("#why-number details").first.locator("summary").click()
    expect(
        site.get_by_text("where TTFT bounds it").or_(site.get_by_text("where TBT bounds it"))
    ).to_be_visible()
    site.get_by_role("tab", name="What if").click()
    expect(site.locator("#what-if-now")).to_contain_text("As it was")
    site.get_by_label("Price of G").fill("2")
    expect(site.locator("#what-if-now")).to_contain_text("+100.0% of its cost")
    expect(site.get_by_text("2 times")).to_be_visible()  # beside the slider

    # Replayed on a scenario of its own; no worker runs here.
    site.get_by_role("button", name="Replay this").click()
    expect(site.get_by_role("heading", name="By hand, what if 1")).to_be_visible()

    site.goto(live_server.url + reverse("web:runs"))
    for run in (plan, other):
        site.get_by_label(f"Compare run {run.pk}", exact=True).check()
    site.get_by_role("button", name="Compare those that are ticked").click()
    expect(site.get_by_role("heading", level=1)).to_contain_text(f"{plan.pk}")
    expect(site.get_by_text("Other traffic").first).to_be_visible()
    beside = site.url

    sweep = sweep_create(
        owner=planner, document=plan.document, axes=[Axis("seed", (1, 2))], enqueue=False
    )
    first = sweep.runs.get(cell=0)
    first.state, first.result = Run.State.COMPLETED, plan.result
    first.save()
    grid = live_server.url + reverse("web:sweep", args=[sweep.pk])
    site.goto(grid)
    expect(site.locator("#heat a").first).to_contain_text("$")
    expect(site.locator("#how-far")).to_contain_text("1 done, 1 to come")

    for size in (PHONE, {"width": 1280, "height": 900}):
        site.set_viewport_size(size)
        what_if = live_server.url + reverse("web:run-what-if", args=[plan.pk])
        for address in (beside, grid, what_if):
            site.goto(address)
            drawn(site)
            assert site.evaluate(SIDEWAYS) <= 0, address
    assert not console
