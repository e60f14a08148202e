"""The page of a provisioning run: graph, devices, plots that open on demand, on a phone too."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from bench.access import violations
from planner.models import Run, User
from tests.browser.test_pages import PHONE, SIDEWAYS, drawn
from tests.planner.web.provision_study import few_points, provisioned_once

pytestmark = pytest.mark.browser


@pytest.fixture
def run(planner: User, tmp_path: Path, answered: Callable[[], None]) -> Iterator[Run]:
    with few_points():
        yield provisioned_once(planner, tmp_path)
        answered()  # as long as plots have few points


def test_the_graph_the_devices_and_what_they_depend_on(
    site: Any, live_server: Any, run: Run, console: list[str]
) -> None:
    site.goto(f"{live_server.url}{reverse('web:run', args=[run.pk])}")
    expect(site.locator("#headline")).to_have_text(run.result["headline"])
    fold = site.locator("details:has(#pool) > summary")
    fold.click()
    expect(site.locator("#graph .marked")).to_have_count(1)
    drawn(site)
    expect(site.locator("#devices-1 .bars .point").first).to_be_attached()
    site.get_by_role("combobox", name="Level", exact=True).select_option("module")
    expect(site.get_by_role("heading", name="Modules and their replicas")).to_be_visible()
    expect(site.locator("#devices .heat")).to_be_visible()
    phase = site.get_by_role("combobox", name="Phase", exact=True)
    phase.select_option("decode")
    expect(site.get_by_role("heading", name="Decode of llama-3.1-8b")).to_be_visible()
    for name in ("length", "rate", "size"):
        site.locator(f'details.part:has([hx-get*="part={name}"]) > summary').click()
        expect(site.locator(f"#sweep-{name}-1")).to_be_visible()
    site.locator('details.part:has([hx-get*="part=sensitivity"]) > summary').click()
    expect(site.locator("#response-1")).to_be_visible()
    site.get_by_role("combobox", name="Response").select_option("sm_use_by_share")
    expect(site.locator("#response-1")).to_be_visible()
    drawn(site)
    assert violations(site) == []
    phase.select_option("prefill")
    expect(site.get_by_role("heading", name="Prefill of llama-3.1-8b")).to_be_visible()
    site.set_viewport_size(PHONE)
    site.reload()
    fold.click()
    expect(site.locator("#devices-1[data-drawn]")).to_have_count(1)
    drawn(site)
    assert site.evaluate(SIDEWAYS) <= 0
    assert console == []
