"""Figures of a result, each worked out by hand."""

import json
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import Tier
from simulation.metrics import meets_slo, summarise
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from simulation.results import COMPLETED
from tests.simulation.builders import fleet, pool, profile, trace

SLOW = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0, kv=1000, max_batch=4, budget=1000, tp=4)


def test_energy_cost_and_carbon_by_hand():
    # One instance of 4 GPUs from 60 s on, 30 s of them starting; one request: 2 s prefill, 8 s
    # decode; the window is 600 s.
    result = simulate(
        trace([100.0], 10, 9),
        fleet(pool(SLOW, startup_s=30.0, usd=3.0)),
        ScheduleFollower(FixedSchedule([0.0, 60.0], [[0], [1]])),
        duration_s=600.0,
    )
    s = summarise(result)
    assert s.instance_hours == pytest.approx(540 / 3600)
    assert s.gpu_hours == pytest.approx(4 * 540 / 3600)
    assert s.wasted_gpu_hours == pytest.approx(4 * 30 / 3600)
    assert s.busy_gpu_hours == pytest.approx(4 * 10 / 3600)
    assert s.idle_gpu_hours == pytest.approx(4 * 500 / 3600)
    assert s.cost_usd == pytest.approx(3 * 4 * 540 / 3600)
    joules = 4 * (530 * 100 + 2 * 600 + 8 * 400)
    assert s.energy_kwh == pytest.approx(1.25 * joules / 3.6e6)
    assert s.carbon_kg == pytest.approx(0.4 * 1.25 * joules / 3.6e6)
    assert s.pools[0].peak_instances == pytest.approx(1.0)
    assert s.donated_gpu_hours == 0.0


TIERS = [Tier("a", ttft_s=2.0, tbt_s=1.0, e2e_s=5.0, attainment=0.5), Tier("b", ttft_s=60.0)]


def test_attainment_counts_every_limit_and_everything_that_arrived():
    result = simulate(
        # A lone request has TTFT 2 and TBT 1; the third has E2E 6; the fourth is too large; the
        # fifth is of a model that nobody serves.
        trace(
            [0.0, 20.0, 40.0, 60.0, 80.0, 100.0],
            [10, 10, 10, 2000, 10, 10],
            [4, 1, 5, 1, 1, 1],
            tier=[0, 0, 0, 0, 1, 1],
            model=[0, 0, 0, 0, 1, 0],
            tiers=("a", "b"),
            models=("m", "x"),
        ),
        fleet(pool(SLOW), tiers=TIERS),
        Static([1]),
    )
    assert meets_slo(result).tolist() == [True, True, False, False, False, True]
    s = summarise(result)
    assert s.slo_attainment == {"a": 0.5, "b": 0.5}
    assert s.slo_met == {"a": True, "b": False}
    assert (s.arrived, s.completed, s.rejected, s.unfinished) == (6, 4, 2, 0)
    assert s.tiers["a"].rejected == 1
    assert s.models["x"]["r"].attainment == 0.0
    assert s.models["m"]["r"].arrived == 5
    assert (s.input_tokens, s.output_tokens) == (40, 11)
    assert s.ttft_ms.mean == s.ttft_ms.p99 == 2000.0
    assert s.tbt_ms.p50 == 1000.0


def test_summary_is_plain_json():
    result = simulate(trace([], 1, 1), fleet(pool(SLOW)), Static([1]), duration_s=60.0)
    document = json.loads(json.dumps(asdict(summarise(result)), allow_nan=False))
    assert document["slo_attainment"] == {"t": None}
    assert document["slo_met"] == {"t": True}
    assert document["ttft_ms"] == {"mean": None, "p50": None, "p95": None, "p99": None}
    assert document["pools"][0]["gpus_per_instance"] == 4


def test_the_worst_hour_is_the_least_attained_of_those_with_enough_requests():
    # A lone prompt takes 10 ms a token. Hour 0: 200 of one token. Hour 1: 100 of one token and 50
    # too long. Hour 2: 3, all too long, which are too few to speak for an hour.
    linear = profile(alpha=0.01, beta=0.0, gamma=0.0, delta=0.01, kv=1000, budget=200)
    arrival = np.concatenate([h * 3600 + 10.0 * np.arange(n) for h, n in enumerate([200, 150, 3])])
    isl = np.concatenate([np.full(300, 1), np.full(53, 100)])
    limited = fleet(pool(linear), tiers=[Tier("t", ttft_s=0.5)])
    result = simulate(trace(arrival, isl, 1), limited, Static([1]))
    summary = summarise(result)
    assert summary.worst_hour == {"t": pytest.approx(100 / 150)}
    assert summary.missed_hours == {"t": 1}
    assert summary.slo_attainment == {"t": pytest.approx(300 / 353)}
    assert summary.slo_met == {"t": False}


def test_groups_are_told_as_if_each_were_alone():
    rng = np.random.default_rng(5)
    speed = profile(alpha=0.01, beta=0.0, gamma=0.0, delta=0.01, kv=1000, budget=200)
    tiers = [Tier("a", ttft_s=0.5), Tier("b", e2e_s=2.0)]
    made = trace(
        np.sort(rng.uniform(0, 600, 300)), rng.integers(1, 90, 300), rng.integers(1, 9, 300)
    )
    made = replace(made, tier=rng.integers(0, 2, 300).astype(np.int16), tiers=("a", "b"))
    result = simulate(made, fleet(pool(speed), tiers=tiers), Static([1]))
    summary, log, ok = summarise(result), result.requests, meets_slo(result)
    assert sum(group.arrived for group in summary.tiers.values()) == 300
    for code, group in enumerate(summary.tiers.values()):
        rows = result.trace.tier == code
        assert (group.arrived, group.attainment) == (rows.sum(), ok[rows].mean())
        assert (
            group.input_tokens == result.trace.input_tokens[rows & (log.outcome == COMPLETED)].sum()
        )
        known = log.ttft_s[rows][np.isfinite(log.ttft_s[rows])] * 1000
        assert (group.ttft_ms.mean, group.ttft_ms.p95) == (known.mean(), np.percentile(known, 95))
        assert summary.slo_attainment[result.trace.tiers[code]] == group.attainment


@pytest.mark.parametrize("waits", [(False, True), (True, True)])
def test_a_brief_summary_says_the_same_of_what_searches_go_by(waits):
    rng = np.random.default_rng(6)
    speed = profile(alpha=0.01, beta=0.0, gamma=0.0, delta=0.01, kv=1000, budget=200)
    tiers = [Tier(name, ttft_s=0.5, deferrable=its) for name, its in zip("ab", waits, strict=True)]
    made = trace(np.sort(rng.uniform(0, 600, 300)), rng.integers(1, 90, 300), 4)
    made = replace(made, tier=rng.integers(0, 2, 300).astype(np.int16), tiers=("a", "b"))
    result = simulate(made, fleet(pool(speed), tiers=tiers), Static([1]))
    summary, brief = summarise(result), summarise(result, brief=True)
    left = {"tiers", "models", "ttft_ms", "tbt_ms", "e2e_ms"}
    for name in {column.name for column in fields(summary)} - left:
        assert getattr(brief, name) == getattr(summary, name), name
    for name, its in brief.tiers.items():
        its_whole = summary.tiers[name]
        assert (its.arrived, its.attainment) == (its_whole.arrived, its_whole.attainment)
        assert its.ttft_ms.p95 is None
