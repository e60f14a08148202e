"""From a real trace to a plan on the screen, with a real worker."""

import csv
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from planner.domain.formats import figure
from tests.browser.test_pages import drawn
from tests.shared_folder import TRACES, shared

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

MINUTE = 60_000  # ms
MEASURES = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg", "arrived", "completed")


def test_upload_plan_and_download(
    site: Any, live_server: Any, celery_worker_process: Any, console: list[str]
) -> None:
    upload(site, live_server, shared(TRACES / "azure2024_requests_10s.csv.gz"))
    run = study(site)

    result = site.request.get(f"{live_server.url}/api/v1/runs/{run}/results/").json()
    policies = result["policies"]
    tile = site.locator(".tile", has_text="Cost").first
    for name, key in result["alternatives"].items():
        site.goto(f"{live_server.url}/runs/{run}/?alternative={name}")
        expect(tile).to_contain_text(figure(policies[key]["cost_usd"], "$"))

    rows = downloaded_policies(site)
    assert {row["policy"] for row in rows} == set(policies)
    for measure in MEASURES:
        total = sum(float(row[measure]) for row in rows)
        assert total == pytest.approx(sum(figures[measure] for figures in policies.values()))
    assert not console


def test_a_launch_is_budgeted_without_any_trace(
    site: Any, live_server: Any, celery_worker_process: Any, console: list[str]
) -> None:
    """Planning ahead needed a trace, and a word typed into a date."""
    site.get_by_role("link", name="New scenario").first.click()
    site.get_by_role("link", name="Describe a launch").click()
    launch = site.locator("#launch")
    launch.get_by_label("Shape of a weekday").select_option("office")
    launch.get_by_label("Requests a day").fill("100000")
    launch.get_by_label("Begins").fill("2027-01-04")
    launch.get_by_label("Horizon").select_option("quarter")
    launch.get_by_role("button", name="Create launch scenario").click()
    site.get_by_text("for the launch of qwen3-32b").wait_for()
    site.set_viewport_size({"width": 390, "height": 900})
    site.get_by_role("button", name="Cost by month").click()
    site.locator("#months-1[data-drawn]").wait_for(timeout=8 * MINUTE)
    drawn(site)
    months = site.locator("#months table tbody tr > :first-child")
    expect(months).to_have_text(["2027-01", "2027-02", "2027-03", "2027-04"])
    expect(site.locator("#headline")).to_contain_text("for the quarter")
    assert site.evaluate("document.documentElement.scrollWidth") <= 390
    assert not console


def upload(site: Any, live_server: Any, path: Path) -> None:
    """Send the file and wait until its demand is drawn and accounted for."""
    site.get_by_role("link", name="Upload a trace").first.click()
    site.get_by_label("Drop a file here").set_input_files(path)
    site.get_by_role("button", name="Upload", exact=True).click()
    site.locator("#requests-chart[data-drawn]").wait_for()
    for count in ("16,803,695", "27,303,999"):
        expect(site.locator("main")).to_contain_text(count)


def study(site: Any) -> str:
    """Make a small scenario from the trace, run it, wait for its results; returns the run's id."""
    site.get_by_role("link", name="Make a scenario from this trace").click()
    site.get_by_role("link", name="Backtest", exact=True).click()  # ahead, where one does not ask
    site.get_by_label("Name", exact=True).fill("Half a percent of the week")
    site.get_by_label("Lasts").fill("2")
    site.locator("#sources-title").click()
    rows = site.locator("[data-rows=sources] tbody [data-row]")
    for scale in rows.get_by_label("Traffic multiplier").all():
        scale.fill("0.005")
    site.get_by_role("button", name="Plan and compare").click()
    chart = site.locator("#over-time-1[data-drawn]")
    chart.wait_for(timeout=8 * MINUTE)
    # demand, the plan, the baseline
    expect(chart.locator(".scatterlayer .js-line").nth(2)).to_be_attached()
    return site.url.rstrip("/").rsplit("/", 1)[1]


def downloaded_policies(site: Any) -> list[dict[str, str]]:
    site.get_by_role("button", name="Download", exact=True).click()
    with site.expect_download() as download:
        site.get_by_role("link", name="Policies (CSV)").click()
    with Path(download.value.path()).open(newline="") as file:
        return list(csv.DictReader(file))
