"""The first scenario of a trace: short, long and heavy ones get what they need to run."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from planner.errors import NotFound
from planner.inputs import catalogue
from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.schema import Scenario
from planner.models import Scenario as StoredScenario
from planner.models import Trace, User
from planner.services.draft_assumptions import draft_assumptions
from planner.services.draft_profiles import DEFAULT_MODEL, built_in_profiles, choose_serving
from planner.services.drafts import scenario_draft
from planner.services.scenarios import scenario_warnings
from planner.services.traces import trace_ingest_path
from simulation.performance.profile import iteration_s
from tests.planner.web.pages import signed_in

pytestmark = pytest.mark.django_db
SECOND = 10**9
DAY = 86_400


def draft(**fields: Any) -> Scenario:
    defaults: dict[str, Any] = {"name": "conv", "state": Trace.State.READY, "kind": "requests"}
    return parse(scenario_draft(Trace(**(defaults | fields))))


def requests(seconds: float, count: int = 20_000, mean: float = 1000.0) -> Scenario:
    report = {
        "start_ns": 0, "end_ns": int(seconds * SECOND), "bin_s": None,
        "requests": count, "input_tokens": int(count * mean),
    }  # fmt: skip
    return draft(requests=count, report=report)


def series(bins: int, bin_s: int, count: int | None = 1000) -> Scenario:
    report = {"name": "all", "bins": bins, "bin_s": bin_s, "requests": count}
    return draft(kind="demand", report={"bin_s": bin_s, "series": [report]})


def test_an_hour_leaves_the_forecast_its_history() -> None:
    drafted = requests(58 * 60)
    assert (drafted.horizon.duration_s, drafted.horizon.period_s) == (1200, 300)
    assert drafted.traffic.bin_s == 60 and drafted.forecast.method == "auto"


def test_minutes_are_planned_ahead_of() -> None:
    drafted = requests(300)
    assert drafted.horizon.start == "end" and drafted.horizon.duration_s == 3600
    assert drafted.forecast.method == "last-value"


def test_days_take_the_window_of_the_study() -> None:
    for drafted in (requests(3 * DAY), series(14 * 144, 600), series(47, DAY)):
        assert drafted.horizon.start is None and drafted.horizon.duration_s is None
        assert drafted.traffic.bin_s is None
        assert [source.scale for source in drafted.traffic.sources] == [1]


def test_a_short_series_leaves_the_window_of_the_longer_one() -> None:
    rows = [
        {"name": name, "bins": bins, "bin_s": 600, "requests": 1000, "input_tokens": 8000}
        for name, bins in (("week", 7 * 144), ("hour", 6))
    ]  # fmt: skip
    drafted = draft(kind="demand", report={"bin_s": 600, "series": rows})
    assert drafted.horizon.start is None and drafted.horizon.duration_s is None


def test_few_wide_bins_are_planned_ahead_of_in_whole_bins() -> None:
    drafted = series(20, 3600)
    assert drafted.horizon.start == "end" and drafted.traffic.bin_s == 3600
    assert (drafted.horizon.duration_s, drafted.horizon.period_s) == (4 * 3600, 3600)


def test_long_prompts_have_a_limit_they_can_meet() -> None:
    assert requests(DAY).tiers[0].ttft_ms == 1000
    long = requests(DAY, mean=12_000)
    profile = built_in_profiles()[long.profiles[0].model, long.profiles[0].gpu]
    alone_s = float(iteration_s(profile, 0, 0, 3 * 12_000, 3 * 12_000**2 * 3 / 2))
    limit_s = (long.tiers[0].ttft_ms or 0) / 1000
    assert max(1.0, 1.5 * alone_s) < limit_s < 3 * alone_s + 1


def test_all_of_the_traffic_is_planned_and_only_the_replay_is_cut() -> None:
    """A tenth of the traffic was planned, which a bare 0.1 in a row of the form said."""
    drafted = series(14 * 144, 600, count=2_166_072_582)
    assert [source.scale for source in drafted.traffic.sources] == [1]
    assert drafted.traffic.max_replayed == 2_000_000
    assert series(10, 600, count=None).traffic.max_replayed == 100_000_000


def test_a_region_gives_more_gpus_than_the_traffic_takes() -> None:
    def gpus(drafted: Scenario) -> float:
        (capacity,) = (
            capacity for region in drafted.regions for capacity in region.capacity.values()
        )
        return capacity

    assert gpus(requests(DAY)) == 512
    # 1,791 requests/s: at about 11 a second of a pair of GPUs, and thrice that at the peak.
    assert 2 * 1_791 / 11 * 3 < gpus(series(14 * 144, 600, count=2_166_072_582)) < 5_000


def test_a_draft_is_served_by_what_the_trace_names_or_a_recent_model_and_says_so() -> None:
    """Every draft was of an old model on old GPUs, whatever the file said."""
    preferred, other = (
        Trace(name="t", report={"models": names}) for names in (["x", "Qwen3-8B"], ["x"])
    )
    assert (
        choose_serving(preferred).profile.model,
        choose_serving(preferred).trace_names_model,
    ) == (
        "qwen3-8b",
        True,
    )
    default = choose_serving(other)
    assert (default.profile.gpu, default.trace_names_model) == ("H100-SXM", False)
    chosen = choose_serving(preferred, "llama-3.1-8b", "A100-80GB")
    assert (
        chosen.row == {"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 2}
        and not chosen.trace_names_model
    )
    for model, gpu in (("nothing", ""), ("llama-3.1-8b", "T4")):
        with pytest.raises(NotFound, match=model if model == "nothing" else "H100"):
            choose_serving(preferred, model, gpu)


def test_a_draft_runs_on_the_gpus_of_the_newest_scenario(planner: User) -> None:
    first = requests(300).profiles[0].gpu
    fleet = "{today: [{gpu: A100-80GB}]}, profiles: [{gpu: L4}]"
    StoredScenario.objects.create(name="a", owner=planner, document=f"{{name: a, fleet: {fleet}}}")
    assert requests(300).profiles[0].gpu == "A100-80GB" != first


def test_each_model_of_a_file_is_served_by_its_own() -> None:
    """All of it was put on whichever model was known, and the draft said that the file named it."""
    report = {
        "start_ns": 0, "end_ns": 3 * DAY * SECOND, "requests": 20_000, "input_tokens": 20_000_000,
        "models": ["our-own", "llama-3.1-70b"], "tiers": ["gold"],
    }  # fmt: skip
    trace = Trace(name="t", state=Trace.State.READY, kind="requests", report=report)
    serving = choose_serving(trace)
    text = scenario_draft(trace, serving=serving)
    drafted = parse(text)
    assert {(source.series, source.model) for source in drafted.traffic.sources} == {
        ("our-own", "qwen3-32b"), ("llama-3.1-70b", "llama-3.1-70b"),
    }  # fmt: skip
    assert {profile.model for profile in drafted.profiles} == {"qwen3-32b", "llama-3.1-70b"}
    assumed = {
        row.what: f"{row.value}; {row.why}" for row in draft_assumptions(trace, text, serving)
    }
    assert "no built-in model is called our-own" in assumed["Model and GPUs of our-own"]
    assert "your file names the model" in assumed["Model and GPUs of llama-3.1-70b"]
    assert "your file names gold, without limits" in assumed["Tiers and their limits"]

    chosen = choose_serving(trace, "llama-3.1-8b")
    text_drafted = scenario_draft(trace, serving=chosen)
    assert [source.series for source in parse(text_drafted).traffic.sources] == [None]
    (row, *_) = draft_assumptions(trace, text_drafted, chosen)
    assert "your file names our-own, llama-3.1-70b, and all of it is served by this" in row.why


def test_a_draft_keeps_the_regions_and_tiers_of_a_file() -> None:
    pairs = [(region, tier) for region in ("us-east", "eu-west-1") for tier in ("batch", "chat")]
    rows = [
        {"name": f"{region} / {tier}", "region": region, "tier": tier, "bins": 2016, "bin_s": 300,
         "requests": 1000, "input_tokens": 10**6, "output_tokens": 10**5}
        for region, tier in pairs
    ]  # fmt: skip
    report = {"bin_s": 300, "regions": ["us-east", "eu-west-1"], "tiers": ["batch", "chat"]}
    drafted = draft(kind="demand", report=report | {"series": rows})
    assert {region.name for region in drafted.regions} == {"us-east", "eu-west-1"}
    assert {tier.name: tier.deferrable for tier in drafted.tiers} == {"chat": False, "batch": True}
    assert not any(source.regions or source.tiers for source in drafted.traffic.sources)

    rows[0]["region"] = ""  # requests without a region keep the draft to one
    drafted = draft(kind="demand", report=report | {"series": rows})
    assert len(drafted.regions) == 1 and len(drafted.tiers) == 2


def test_the_replicas_of_today_are_the_baseline_of_a_draft() -> None:
    report = {"start_ns": 0, "end_ns": 7 * DAY * SECOND, "requests": 1000, "input_tokens": 10**6}
    trace = Trace(
        name="conv", state=Trace.State.READY, kind="requests", requests=1000, report=report
    )
    drafted = parse(scenario_draft(trace, replicas_today=7))
    (pool,) = drafted.fleet.today
    (profile,) = drafted.profiles
    assert (pool.model, pool.gpu, pool.region) == (profile.model, profile.gpu, "us-east")
    assert pool.replicas == 7
    assert parse(scenario_draft(trace)).fleet.today == []


def test_every_gpu_of_a_draft_with_offers_has_a_price() -> None:
    report = {
        "start_ns": 0, "end_ns": 3 * DAY * SECOND, "requests": 20_000, "input_tokens": 20_000_000,
        "models": ["deepseek-r1", DEFAULT_MODEL],
    }  # fmt: skip
    (region,) = draft(report=report).regions
    like = catalogue.regions()[region.like or ""].usd_per_gpu_hour
    assert len(region.capacity) == 2
    assert region.capacity.keys() == like.keys() & region.capacity.keys() | (
        region.usd_per_gpu_hour.keys()
    )


def test_requests_without_a_model_are_not_lost_by_telling_models_apart() -> None:
    report = {"models": ["qwen3-8b", "llama-3.1-70b"], "without_model": 7}
    blank = Trace(name="t", kind="requests", report=report)
    assert not choose_serving(blank).by_label and choose_serving(blank).trace_names_model


def blocks_of(prompts: list[list[int]]) -> str:
    """A file of requests, one every five seconds, with the hashes of their blocks."""
    rows = [
        {"timestamp": 5000 * i, "input_length": 512 * len(ids), "output_length": 20,
         "hash_ids": ids}
        for i, ids in enumerate(prompts)
    ]  # fmt: skip
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize("repeat", [True, False])
def test_prefix_caches_are_offered_if_blocks_repeat(tmp_path: Path, repeat: bool) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(blocks_of([[0 if repeat else 2 * i, 2 * i + 1] for i in range(200)]))
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    assert trace.report["repeated_blocks"] == (pytest.approx(199 / 400) if repeat else 0.0)
    drafted = parse(scenario_draft(trace))
    assert [each.prefix_caching for each in drafted.serving] == ([True] if repeat else [])


@pytest.mark.parametrize("blocks", [10, 180])
def test_a_model_with_a_large_enough_context_is_chosen_or_offered(
    planner: User, tmp_path: Path, blocks: int
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(blocks_of([[i] for i in range(2000)] + [list(range(3000, 3000 + blocks))]))
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name), owner=planner)
    long = blocks * 512 > catalogue.shape(DEFAULT_MODEL).max_context
    chosen = choose_serving(trace)
    assert (chosen.profile.model != DEFAULT_MODEL) == bool(chosen.longest_tokens) == long
    shape = catalogue.shape(chosen.profile.model)
    assert shape.max_context >= blocks * 512 and shape.encoder is None
    assert not any(row.models for row in draft_assumptions(trace, scenario_draft(trace), chosen))
    stated = choose_serving(trace, DEFAULT_MODEL)
    text = scenario_draft(trace, serving=stated)
    offered = [name for row in draft_assumptions(trace, text, stated) for name in row.models]
    assert bool(offered) == long
    assert all(catalogue.shape(name).max_context >= blocks * 512 for name in offered)
    new = f"{reverse('web:scenario-new')}?trace={trace.name}&model={DEFAULT_MODEL}"
    page = signed_in(planner).get(new).content.decode()
    assert all(f"model={name}" in page for name in offered)


def test_a_draft_says_if_it_runs_and_saves_nothing(planner: User, tmp_path: Path) -> None:
    path = tmp_path / "conv.jsonl"
    path.write_text(blocks_of([[i] for i in range(2000)]))
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name), owner=planner)
    client = signed_in(planner)
    for door in ("ahead", "past"):
        new = f"{reverse('web:scenario-new')}?trace={trace.name}&door={door}"
        shown = client.get(new)
        assert shown.status_code == 200
        assert shown.context["problems"] == scenario_warnings(shown.context["text"]) == []
    assert not StoredScenario.objects.exists()


@pytest.mark.parametrize("grows", [True, False])
def test_prefix_caches_are_offered_if_prompts_grow_in_sessions(tmp_path: Path, grows: bool) -> None:
    path = tmp_path / "chats.csv"
    rows = [
        f"{10 * i + 100 * turn},chat-{i},{1000 * (turn + 1) if grows else 1000 - turn},100"
        for i in range(100)
        for turn in range(2)
    ]
    path.write_text("timestamp_s,session_id,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    assert trace.report["repeated_blocks"] == (pytest.approx(1 / 3) if grows else 0.0)
    assert [s.prefix_caching for s in parse(scenario_draft(trace)).serving] == [True] * grows


def test_requests_without_an_answer_are_served_by_a_model_of_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.csv"
    rows = [f"{10 * i},own-embedder,{100 + i % 7},0" for i in range(200)]
    path.write_text("timestamp_s,model,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    trace = trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    (served,) = parse(scenario_draft(trace)).models
    assert "embedding" in served.name
