"""Below the replica on a scenario: the load, the limits, the totals, what is said of them."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import provision
from planner.domain.kinds.provision import Options
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import silent
from planner.domain.provisioning.load import Peak, limit_of, peak_hours
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import Infeasible, ScenarioError
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.settings import settings_of
from tests.planner.domain import builders as make

# Few output tokens: a replay visits every station once per token.
LENGTHS = {"input_tokens": {"mean": 1024}, "output_tokens": {"mean": 16}}
BUILT_IN = {
    "models": ["llama-3.1-8b"],
    "gpus": [],
    "profiles": [{"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 1}],
    "regions": [
        {"name": "east", "capacity": {"A100-80GB": 64}, "usd_per_gpu_hour": {"A100-80GB": 2},
         "carbon_g_per_kwh": 400, "pue": 1.2}
    ],
    "traffic": {"sources": [make.source(model="llama-3.1-8b", **LENGTHS)]},
    "horizon": {"period_s": 3600, "duration_s": 7200},
}  # fmt: skip


def small(**changes: Any) -> Scenario:
    return make.scenario(**(BUILT_IN | changes))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Three hours of 5 requests/s, then two with a peak of 20/s in the middle of the last 90
    minutes. The time to place replicas grows with the cube of their number."""
    rate = np.full(300, 5.0)
    rate[225:285] = 20.0
    return make.demand_file(tmp_path_factory.mktemp("peak"), {"a": (60 * rate).tolist()})


@pytest.fixture(scope="module")
def all_levels(stored: StoredTrace) -> Outcome:
    tiers = [{"name": "chat", "ttft_ms": 2000}, {"name": "never", "ttft_ms": 1, "tbt_ms": 1}]
    return provision.run(Inputs(small(tiers=tiers), {"t": stored}), provision.Options(), silent)


def test_the_load_is_that_of_the_busiest_hour_in_the_window(stored: StoredTrace) -> None:
    scenario = small()
    traffic = build_traffic(settings_of(scenario).traffic, {"t": stored})
    hardware = build_hardware(scenario)
    window = resolve_window(settings_of(scenario).window, traffic.demand, traffic.clock)
    (peak,) = peak_hours(hardware, traffic, window).values()
    assert peak.requests_s == pytest.approx(20.0)
    assert peak.isl == pytest.approx(1024, rel=0.05)
    assert peak.osl == pytest.approx(16, rel=0.05)
    early = small(horizon={"period_s": 1800, "duration_s": 1800})
    window = resolve_window(settings_of(early).window, traffic.demand, traffic.clock)
    (peak,) = peak_hours(hardware, traffic, window).values()
    assert peak.requests_s == pytest.approx((15 * 20 + 15 * 5) / 30)


def test_limits_are_the_strictest_of_the_interactive_tiers_of_a_model() -> None:
    scenario = small(
        tiers=[
            {"name": "a", "ttft_ms": 1000},
            {"name": "b", "ttft_ms": 500, "tbt_ms": 80},
            {"name": "late", "e2e_ms": 1000, "ttft_ms": 10, "deferrable": True},
        ],
        traffic__sources=[make.source(model="llama-3.1-8b", tiers={"a": 0.5, "b": 0.5}, **LENGTHS)],
    )
    hardware = build_hardware(scenario)
    assert limit_of(hardware, 0, "prefill", {}).seconds == 0.5
    decode = limit_of(hardware, 0, "decode", {})
    assert decode.seconds == 0.08 and decode.source.endswith(" of tier b")
    of_a = replace(hardware, tiers_in_use=np.array([[True, False, True]]))
    assert limit_of(of_a, 0, "prefill", {}).seconds == 1.0
    assert "assumed" in limit_of(of_a, 0, "decode", {}).source
    bare = build_hardware(small(tiers=[{"name": "chat", "ttft_ms": 700}]))
    assert "assumed" in limit_of(bare, 0, "decode", {}).source


def test_half_of_a_limit_end_to_end_is_by_a_models_own_answers() -> None:
    hardware = build_hardware(small(tiers=[{"name": "chat", "e2e_ms": 4000}]))
    peaks = {(0, 0): Peak(1.0, 100.0, 20.0), (1, 0): Peak(1.0, 100.0, 400.0)}
    assert limit_of(hardware, 0, "decode", peaks).seconds == pytest.approx(2.0 / 20)


def test_a_tier_without_traffic_limits_nothing(all_levels: Outcome) -> None:
    limits = {pool["phase"]: pool["slo_source"] for pool in all_levels.document["pools"]}
    assert limits["prefill"] == "TTFT of tier chat" and "assumed" in limits["decode"]


def test_totals_are_the_sum_of_their_pools(all_levels: Outcome) -> None:
    document = all_levels.document
    json.dumps(document)
    assert list(document["levels"]) == ["operator", "module", "model"]
    assert [pool["phase"] for pool in document["pools"]] == ["prefill", "decode"]
    for level, total in document["levels"].items():
        parts = [pool["levels"][level] for pool in document["pools"]]
        assert total["gpus"] == sum(part["gpus"] for part in parts)
        assert total["energy_w"] == pytest.approx(sum(part["energy_w"] for part in parts))
        assert total["latency_ms"] <= total["slo_ms"]
        assert total["least_gpus"] <= total["mean_gpus"] <= total["gpus"]
        assert total["gap"] == pytest.approx(1 - total["least_gpus"] / total["mean_gpus"])
        assert {"memory_gb", "seconds"} <= total.keys()
    model, fine = document["levels"]["model"], document["levels"]["operator"]
    assert fine["gpus"] <= model["gpus"]
    assert document["savings"]["operator"]["gpus"] == pytest.approx(
        1 - fine["gpus"] / model["gpus"]
    )
    assert document["pays"] == any(saved["gpus"] > 0 for saved in document["savings"].values())


def test_tables_tell_what_stands_where(all_levels: Outcome) -> None:
    operators, devices, shards = (all_levels.tables[n] for n in ("operators", "devices", "shards"))
    for pool in all_levels.document["pools"]:
        for level, figures in pool["levels"].items():
            here = (pl.col("phase") == pool["phase"]) & (pl.col("level") == level)
            rows = operators.filter(here)
            if level == "model" or "replicas" in figures:
                assert rows["operator"].to_list() == ["whole model"]
                continue
            assert rows.filter("bottleneck")["operator"].to_list() == [figures["bottleneck"]]
            assert devices.filter(here).height == figures["gpus"]
            assert shards.filter(here)["shards"].sum() == rows["slots"].sum()
            used = devices.filter(here)["memory_gb"].sum()
            assert used == pytest.approx(figures["memory_gb"])
            assert shards.filter(here)["memory_gb"].sum() == pytest.approx(used)
            assert devices.filter(here)["memory"].max() <= 1.0


def test_one_level_and_the_exact_method(stored: StoredTrace) -> None:
    document = provision.run(
        Inputs(small(), {"t": stored}),
        Options(
            level="operator",
            method="exact",
            speeds="operators",
        ),
        silent,
    ).document
    assert list(document["levels"]) == ["operator", "model"] and list(document["savings"]) == [
        "operator"
    ]
    for pool in document["pools"]:  # the source's algorithm stands beside ours and the optimum
        level, methods = pool["levels"]["operator"], pool["methods"]
        assert len(methods) == 4 and len({row["method"] for row in methods}) == 4
        fewest = methods[-1]
        assert fewest["least_gpus"] <= fewest["gpus"]
        for row in methods:
            if row["slots"] is None:
                assert not row["operators"] and row["gpus"] is None
                continue
            assert fewest["gpus"] <= row["gpus"] and row["latency_ms"] <= pool["slo_ms"]
            assert sum(each["replicas"] * each["gpus"] for each in row["operators"]) == row["slots"]
            assert all(each["pass_j"] > 0 for each in row["operators"])
            assert 0 <= row["attainment"] <= 1 and row["mean_ms"] > 0
        assert level["request_j"] == pytest.approx(level["energy_w"] / pool["requests_s"])
    by_profile = Options(level="model")
    alone = provision.run(Inputs(small(), {"t": stored}), by_profile, silent).document
    assert alone["savings"] == {} and not alone["pays"]
    # As fast as plans and sizes have it: a typical pass takes what the scenario's profile says.
    notes = [note for note in alone["notes"] if "are multiplied by" in note]
    times = re.findall(r"multiplied by ([\d.]+)\.", " ".join(notes))
    assert [float(factor) for factor in times] == pytest.approx(
        [pool["times"] for pool in alone["pools"]], abs=0.005
    )
    assert all(pool["times"] != 1.0 for pool in alone["pools"]) and len(notes) == 2
    examples = re.findall(r"([\d.,]+) ms here and ([\d.,]+) ms in the profile", " ".join(notes))
    assert len(examples) == 2 and all(here == there for here, there in examples)
    assert all(pool["times"] == 1.0 for pool in document["pools"])
    assert sum("uses the profile" in note for note in document["notes"]) == 2


def test_algorithm_1_answers_with_its_own_plan(stored: StoredTrace) -> None:
    options = Options(level="operator", method="algorithm1")
    document = provision.run(Inputs(small(), {"t": stored}), options, silent).document
    for pool in document["pools"]:
        level, (own, *_) = pool["levels"]["operator"], pool["methods"]
        assert "replicas" not in level and level["bottleneck"]
        assert (level["gpus"], level["latency_ms"]) == (own["gpus"], own["latency_ms"])
        assert 0 <= level["replayed"]["attainment"] <= 1
        # A plan that requests do not confirm is stated.
        missed = level["replayed"]["attainment"] < pool["attainment"]
        stated = [text for text in document["warnings"] if f"operators for {pool['phase']}" in text]
        assert len(stated) == missed


def test_every_precision_on_a_gpu_type_stands_for_itself(stored: StoredTrace) -> None:
    profile: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "kind": "roofline"}
    scenario = small(
            profiles=[
                profile | {"tp": 1, "precision": "bf16"},
                profile | {"tp": 1, "precision": "fp8", "role": "prefill"},
                profile | {"tp": 2, "precision": "fp8", "role": "decode"},
            ],
            regions=[
                {"name": "east", "capacity": {"H100-SXM": 64}, "usd_per_gpu_hour": {"H100-SXM": 3},
                 "carbon_g_per_kwh": 400, "pue": 1.2}
            ],
        )  # fmt: skip
    document = provision.run(
        Inputs(scenario, {"t": stored}), Options(level="model"), silent
    ).document
    # A prompt's first iteration begins as late as plans and sizes have it, within the same limit.
    starts = {0.0} | {1e3 * speed.start_s for speed in build_hardware(scenario).profiles.values()}
    for pool in document["pools"]:
        first = pool["levels"]["model"]
        assert pool["start_ms"] in starts and (pool["start_ms"] > 0) == (pool["phase"] == "prefill")
        assert first["slo_ms"] == pytest.approx(pool["slo_ms"])
        assert first["replayed"]["p50_ms"] > pool["start_ms"] < first["latency_ms"]
    pools = document["pools"]
    assert [(pool["weights"], pool["phase"]) for pool in pools] == [
        ("bf16", "prefill"), ("bf16", "decode"), ("fp8", "prefill"), ("fp8", "decode"),
    ]  # fmt: skip
    memory = [pool["levels"]["model"]["memory_gb"] for pool in pools]
    assert memory[2] < memory[0] and memory[3] < memory[1]
    chosen = [pool for pool in pools if pool["chosen"]]
    assert len(chosen) == 2 and len({pool["weights"] for pool in chosen}) == 1
    gpus = sum(pool["levels"]["model"]["gpus"] for pool in chosen)
    assert document["levels"]["model"]["gpus"] == gpus


def test_what_does_not_pay_is_said_first(tmp_path: Any) -> None:
    stored = make.demand_file(tmp_path, {"a": [6.0] * 300})
    document = provision.run(Inputs(small(), {"t": stored}), provision.Options(), silent).document
    assert document["headline"] and not document["pays"]
    assert document["levels"]["operator"]["gpus"] == document["levels"]["model"]["gpus"]


def test_what_cannot_be_is_said_with_the_reason(stored: StoredTrace) -> None:
    with pytest.raises(Infeasible, match=r"one pass of 1,0\d\d tokens takes"):
        provision.run(
            Inputs(small(tiers=[{"name": "chat", "ttft_ms": 1, "tbt_ms": 100}]), {"t": stored}),
            provision.Options(),
            silent,
        )
    unknown = make.scenario(
        traffic={"sources": [make.source(**LENGTHS)]}, horizon=BUILT_IN["horizon"]
    )
    with pytest.raises(ScenarioError, match="what m computes"):
        provision.run(Inputs(unknown, {"t": stored}), provision.Options(), silent)


def test_the_headline_begins_with_a_model_that_is_left_out(stored: StoredTrace) -> None:
    names = "llama-3.1-8b", "llama-3.1-70b"
    scenario = small(
        models=[*names],
        profiles=[
            {"model": name, "gpu": "A100-80GB", "tp": tp}
            for name, tp in zip(names, (1, 4), strict=True)
        ],
        tiers=[{"name": "chat", "ttft_ms": 2000}, {"name": "never", "ttft_ms": 1}],
        traffic__sources=[
            make.source(model=name, tiers={tier: 1}, **LENGTHS)
            for name, tier in zip(names, ("chat", "never"), strict=True)
        ],
    )
    options = provision.Options(level="model")
    document = provision.run(Inputs(scenario, {"t": stored}), options, silent).document
    assert {pool["model"] for pool in document["pools"] if pool["chosen"]} == {names[0]}
    assert document["headline"].startswith(names[1]) and "prefill 1 ms" in document["headline"]
    assert str(document["levels"]["model"]["gpus"]) in document["headline"]


def test_a_window_without_interactive_requests_is_refused(tmp_path: Any) -> None:
    stored = make.demand_file(tmp_path, {"a": [600.0] * 180 + [0.0] * 120})
    with pytest.raises(ScenarioError, match="no request of an interactive tier"):
        provision.run(Inputs(small(), {"t": stored}), provision.Options(), silent)


def test_cached_prompt_tokens_need_no_prefill(stored: StoredTrace) -> None:
    sources = [make.source(model="llama-3.1-8b", cached_share=0.75, **LENGTHS)]
    pools = []
    for caching in (False, True):
        scenario = small(traffic={"sources": sources}, serving=[{"prefix_caching": caching}])
        options = provision.Options(level="model")
        found = provision.run(Inputs(scenario, {"t": stored}), options, silent).document["pools"]
        pools.append({pool["phase"]: pool for pool in found})
    plain, cached = pools
    whole = plain["prefill"]["isl"]
    assert plain["prefill"]["cached_tokens"] == 0
    assert cached["prefill"]["isl"] == pytest.approx(0.25 * whole, rel=0.05)
    assert cached["prefill"]["isl"] + cached["prefill"]["cached_tokens"] == pytest.approx(whole)
    assert cached["decode"]["isl"] == pytest.approx(whole)
    gpus = [[each[phase]["levels"]["model"]["gpus"] for phase in each] for each in pools]
    assert gpus[1][0] < gpus[0][0]
    assert gpus[1][1] == gpus[0][1]
