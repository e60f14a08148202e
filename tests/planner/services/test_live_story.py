"""From a Prometheus to what a cluster scrapes: two days of an engine read in pieces, planned by a
schedule, approved by a person the first time and by rule the second."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import numpy as np

from planner.models import Firing, PlanInForce, User
from planner.models.workspace import Membership, current_workspace
from planner.services.firings import schedules_tick
from planner.services.proposals import approve
from planner.services.scenarios import scenario_create
from planner.services.schedules import schedule_create
from planner.services.source_reading import source_read
from planner.services.sources import current_trace, series, source_create
from planner.services.worker import run_execute
from tests.planner.web.pages import signed_in
from tests.prometheus import prometheus, remembered

STEP_S, HOURS = 15, 48
SCENARIO = """\
version: 1
name: Live
models:
  - {name: m, weight_gb: 16, kv_bytes_per_token: 131072, max_context: 131072}
gpus:
  - {name: G, memory_gb: 80, idle_w: 60, prefill_w: 400, decode_w: 250}
profiles:
  - {model: m, gpu: G, alpha_ms: 12, beta_ms: 0.15, gamma_ms: 12, delta_ms: 0.06}
regions:
  - {name: east, capacity: {G: 32}, usd_per_gpu_hour: {G: 2}, carbon_g_per_kwh: 400, pue: 1.2}
tiers:
  - {name: chat, ttft_ms: 1000, tbt_ms: 100}
traffic:
  bin_s: 300
  sources:
    - {trace: engines, model: m, regions: {east: 1}, tiers: {chat: 1}}
fleet: {startup_s: 60}
policies: [lt-i]
forecast: {method: last-value}
horizon: {start: end, period_s: 900, duration_s: 1800}
"""


def test_a_past_is_read_planned_decided_and_scraped(planner, settings, tmp_path):
    end = int(time.time()) // 300 * 300
    steps = np.arange(end - HOURS * 3600, end + 1, STEP_S)
    came = np.round(9 * (1.2 + np.sin(steps / 86_400 * 2 * np.pi)))
    came[0] = 0
    lost = (steps > end - 7200) & (steps <= end - 6900)  # scrapes that are missing
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
    remembered(tmp_path, counters)
    with prometheus(tmp_path) as url:
        settings.HEADROOM_SOURCES = [url]
        source = source_create(
            owner=planner, name="engines", kind="prometheus", bin_s=STEP_S,
            settings={"url": url, "days": HOURS / 24, "delay_s": 0},
        )  # fmt: skip
        source_read(source_id=source.pk, surface=True)
    source.refresh_from_db()
    assert source.readings.count() == 2  # more than 11,000 points: in two pieces
    bins = series(source).read().bins
    gap = int(lost.sum()) + 1  # the bin in which it came back is not known either
    ends = bins.drop_nulls("requests")["bin_start"].to_numpy() + STEP_S
    assert len(ends) > 11_000 and not (lost & np.isin(steps, ends)).any()
    assert bins["requests"].sum() == came[np.isin(steps, ends)].sum()  # to the last request
    assert bins["input_tokens"].sum() == 400 * bins["requests"].sum()
    assert current_trace(source).report["series"][0]["gaps"] == gap

    approver = User.objects.create_user("anna", role=User.Role.APPROVER)
    Membership.objects.get_or_create(
        user=approver, workspace=current_workspace(), defaults={"role": "approver"}
    )
    scenario = scenario_create(owner=planner, document=SCENARIO)
    now = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=3)
    schedule_create(
        owner=approver, name="Every minute", scenario=scenario, cron="* * * * *", now=now,
        most_replicas=1.0, most_cost=1.0,
    )  # fmt: skip
    firings = []
    for minute in (1, 2):
        at = now + timedelta(minutes=minute)
        (firing,) = schedules_tick(now=at, enqueue=False).fired
        run_execute(run_id=firing.run_id, surface=True)
        schedules_tick(now=at + timedelta(seconds=1), enqueue=False)
        firing.refresh_from_db()
        firings.append(firing)
        if minute == 1:
            assert firing.state == Firing.State.REVIEW
            approve(proposal=firing.proposal, by=approver, now=at)
    assert firings[1].state == Firing.State.APPROVED, firings[1].words
    assert PlanInForce.objects.get(until=None).number == firings[1].run_id
    assert "engines-" in firings[1].run.document  # frozen as it was known then
    page = signed_in(planner).get("/metrics").content.decode()
    assert 'model="m"' in page, page
