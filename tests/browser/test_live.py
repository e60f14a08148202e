"""From a Prometheus to what a cluster scrapes, by the pages: eight days of an engine are read,
planned by a schedule, approved by a person the first time and by rule the second."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from bench.access import violations
from planner.inputs.live.replica_speed import served_speeds
from planner.models import ActivePlan, Firing, Schedule, Source, User
from planner.services.scenarios import scenario_create
from planner.services.schedule_firings import schedules_tick
from planner.services.source_reading import source_read
from planner.services.sources import current_trace, source_change, source_series
from planner.services.tokens import token_create
from planner.services.worker import run_execute
from tests.browser.conftest import as_somebody
from tests.planner.services.test_speeds import SCENARIO
from tests.prometheus import prometheus, remembered

pytestmark = pytest.mark.browser

STEP_S, HOURS = 60, 192


def test_a_past_is_read_planned_decided_and_scraped(
    site: Any, live_server: Any, settings: Any, tmp_path: Path, console: list[str]
) -> None:
    end = int(time.time()) // 300 * 300
    steps = np.arange(end - HOURS * 3600, end + 1, STEP_S)
    came = np.round(9 * (1.2 + np.sin(steps / 86_400 * 2 * np.pi)))
    came[0] = 0
    lost = (steps > end - 7200) & (steps <= end - 6600)  # more missing scrapes than are spread
    counters = {}
    for name, each in (
        ("request_success_total", 1), ("request_prompt_tokens_sum", 400),
        ("request_generation_tokens_sum", 30),
    ):  # fmt: skip
        values = np.cumsum(came) * each
        after = steps > end - 36_000  # a restart, ten hours ago
        values[after] -= values[~after][-1]
        samples = zip(steps[~lost].tolist(), values[~lost].tolist(), strict=True)
        counters[f'vllm:{name}{{model_name="m",job="vllm",instance="a:1"}}'] = list(samples)
    tokens = np.cumsum(came) * 30
    for name, values in (
        ("inter_token_latency_seconds_sum", tokens * 0.025),
        ("inter_token_latency_seconds_count", tokens),
        ("num_requests_running", np.full(len(steps), 12.0)),
    ):
        # Off the edges of bins: each sees one scrape, as under Prometheus 3 wherever they lie.
        samples = zip((steps - 7).tolist(), values.tolist(), strict=True)
        counters[f'vllm:{name}{{model_name="m",job="vllm",instance="a:1"}}'] = list(samples)
    remembered(tmp_path, counters)
    with prometheus(tmp_path) as url:
        settings.HEADROOM_SOURCES = [url]
        site.goto(f"{live_server.url}/sources/new/")
        site.get_by_label("Name", exact=True).fill("engines")
        site.get_by_label("Address").fill(url)
        site.get_by_label("Bins").select_option(str(STEP_S))
        site.get_by_text("Labels, credentials and history").click()
        site.get_by_label("Days of history").fill(str(HOURS / 24))
        site.get_by_role("button", name="Preview").click()
        expect(site.locator("#preview")).to_contain_text("vllm:request_success_total")
        site.get_by_role("button", name="Create source").click()
        expect(site.get_by_role("heading", name="engines")).to_be_visible()
        source = Source.objects.get(name="engines")
        source_change(
            source=source, user=None, changes={"settings": {**source.settings, "delay_s": 0}}
        )
        source_read(source_id=source.pk, raise_errors=True)
    site.reload()
    for chart in ("rates", "queues", "tbt"):
        expect(site.locator(f"#{chart}-chart[data-drawn]")).to_be_visible()
    assert violations(site) == []
    source.refresh_from_db()
    assert source.readings.count() == 2  # more than 11,000 points: in two pieces
    bins = source_series(source).read().bins
    gap = int(lost.sum()) + 1  # the bin in which it came back is not known either
    ends = bins.drop_nulls("requests")["bin_start"].to_numpy() + STEP_S
    assert len(ends) > 11_000 and not (lost & np.isin(steps, ends)).any()
    assert bins["requests"].sum() == came[np.isin(steps, ends)].sum()  # to the last request
    assert bins["input_tokens"].sum() == 400 * bins["requests"].sum()
    assert current_trace(source).report["series"][0]["gaps"] == gap

    # What drift of speed goes by.
    (seen,) = served_speeds(bins, STEP_S)
    assert seen.model == "m" and 1900 < seen.at_s.size <= 1921  # six bins each, a hole
    assert seen.tbt_s == pytest.approx(0.025) and seen.running == pytest.approx(12.0)
    assert seen.input_tokens == pytest.approx(400) and seen.output_tokens == pytest.approx(30)

    planner = User.objects.get(username="pia")
    scenario_create(owner=planner, document=SCENARIO)
    other = as_somebody(site, live_server, "ada")
    other.goto(f"{live_server.url}/schedules/new/")
    other.get_by_text("More", exact=True).click()
    values = {"name": "Every minute", "cron": "* * * * *", "replicas": "100", "cost": "100"}
    for name, entry in values.items():
        other.locator(f"[name={name}]").fill(entry)
    other.get_by_label("Scenario").select_option(label="Live")
    other.get_by_label("Run").select_option("plan")
    other.get_by_role("button", name="Save schedule").click()
    expect(other.get_by_role("heading", name="Every minute")).to_be_visible()
    history = other.url
    # As if it had been made, and changed, some minutes ago.
    began = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=2)
    firings: list[Firing] = []
    for due in (began, began + timedelta(minutes=1)):
        Schedule.objects.update(next_due=due)
        moment = datetime.now(UTC) if firings else began
        (firing,) = schedules_tick(now=moment, enqueue=False).fired
        run_execute(run_id=firing.run_id, raise_errors=True)
        schedules_tick(now=moment, enqueue=False)
        firing.refresh_from_db()
        firings.append(firing)
        if due == began:
            other.goto(history)
            other.get_by_role("link", name=f"proposal {firing.proposal_id}").click()
            expect(other.locator("#pools")).to_contain_text("m, east")
            other.get_by_label("Comment").fill("Good.")
            other.get_by_role("button", name="Approve", exact=True).click()
            expect(other.locator("#standing")).to_contain_text("It is the active plan")
            # The second compares, and says whose timetable it took.
            other.goto(history)
            other.get_by_role("link", name="Change").click()
            other.get_by_label("Run").select_option("compare")
            other.get_by_role("button", name="Save schedule").click()
            expect(other.locator("main")).to_contain_text("To be reviewed")
    assert firings[0].state == Firing.State.REVIEW
    other.goto(history)
    expect(other.locator("main")).to_contain_text("Approved by rule")
    assert firings[1].state == Firing.State.APPROVED, firings[1].words
    assert firings[0].run.kind == "plan" and "compared" not in firings[0].words
    held = firings[1].run.result
    assert firings[1].run.kind == "compare" and set(held["policies"]) >= {"flat-peak", "lt-i"}
    label = held["recommended"]["label"]
    assert f"policies compared it is {label}, which is recommended." in firings[1].words
    assert ActivePlan.objects.get(until=None).policy == held["recommended"]["policy"]
    assert ActivePlan.objects.get(until=None).number == firings[1].run_id
    assert "engines-" in firings[1].run.document  # frozen as it was known then
    scraper = {"Authorization": f"Bearer {token_create(user=firings[0].run.owner).key}"}
    page = site.request.get(f"{live_server.url}/metrics", headers=scraper).text()
    assert 'model="m"' in page, page
    # What is in force is named as people know it.
    other.goto(f"{live_server.url}/plans-in-force/")
    expect(other.locator("main")).to_contain_text(label)
    assert violations(other) == [] and not console
    other.context.close()
