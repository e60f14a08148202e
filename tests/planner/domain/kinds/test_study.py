"""A study from end to end: one seed, one answer; parts that agree; progress that can stop it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from planner.domain.kinds import compare, forecast, plan, simulate
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import silent
from planner.domain.run_parts import Parts
from planner.domain.serialise import as_json
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import FORECAST
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.policies.registry import traits_of
from tests.planner.domain import builders as make

POLICIES = ["flat-peak", "flat-min", "reactive", "lt-i", "lt-i-last-value", "lt-i-perfect"]
LENGTHS = {"input_tokens": {"mean": 600}, "output_tokens": {"mean": 40}}
TIMED = ("seconds", "wall_seconds", "peak_rss_mb")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    wave = 900 + 700 * np.sin(np.arange(60) / 8)
    return make.demand_file(tmp_path_factory.mktemp("wave"), {"a": wave.round().tolist()})


def small(**changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "policies": POLICIES,
        "traffic": {"sources": [make.source(**LENGTHS)]},
        "horizon": {"period_s": 300, "duration_s": 1200},
    }
    return make.scenario(**(fields | changes))


@pytest.fixture(scope="module")
def seen() -> list[tuple[float, str]]:
    """The progress of the comparison."""
    return []


@pytest.fixture(scope="module")
def compared(stored: StoredTrace, seen: list[tuple[float, str]]) -> Outcome:
    def watch(fraction: float, stage: str) -> None:
        seen.append((fraction, stage))

    return compare.run(Inputs(small(), {"t": stored}), compare.Options(), watch)


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: untimed(item)
            for key, item in value.items()
            if key not in TIMED and not key.endswith("_seconds")
        }
    return [untimed(item) for item in value] if isinstance(value, list) else value


def test_one_seed_gives_the_same_bytes_twice_and_shows_its_first_answer_before_simulations(
    compared: Outcome, stored: StoredTrace
) -> None:
    shown: list[Any] = []
    calls: list[str] = []

    class Watched(Parts):
        def map(self, *args: Any, **options: Any) -> list[Any]:
            calls.append("simulate")
            return super().map(*args, **options)

        def show(self, preview: Any) -> None:
            calls.append("show")
            shown.append(as_json(preview))

    outcome = compare.run(
        Inputs(small(), {"t": stored}), compare.Options(), silent, parts=Watched()
    )
    again = outcome.document
    assert calls[0] == "show" and calls.count("show") > 2
    assert all(preview["answer"] == shown[0]["answer"] for preview in shown)
    answer, totals = shown[0]["answer"], again["plan"]["totals"]
    assert answer["cost_usd"] > 0 and answer["gpu_hours"] > 0 and totals["usd"] > 0
    assert all(pool["fewest"] <= pool["most"] for pool in answer["pools"])
    known = [sum(len(day["passes"]) for day in preview["test_days"]) for preview in shown]
    assert known[0] == 0 and known[-1] > 0
    assert not shown[0]["assurance"] and shown[-1]["assurance"] == again["assurance"]
    assert all(preview["assurance"].items() <= again["assurance"].items() for preview in shown)
    names = {day["name"] for day in again["test_days"]}
    assert {day["name"] for preview in shown for day in preview["test_days"]} <= names
    assert json.dumps(untimed(again)) == json.dumps(untimed(compared.document))
    assert outcome.tables.keys() == compared.tables.keys()
    for name, table in compared.tables.items():
        assert_frame_equal(table, outcome.tables[name], check_exact=True)


def test_the_document_is_json_without_nan_and_says_all_it_must(compared: Outcome) -> None:
    document = json.loads(json.dumps(compared.document, allow_nan=False))
    assert {
        "kind", "scenario", "window", "forecast", "capacity", "plan", "policies", "baselines",
        "baseline", "ranking", "warnings", "headline", "provenance", "notes", "seconds",
    } <= document.keys()  # fmt: skip
    assert document["baselines"][: len(POLICIES)] == POLICIES
    assert list(document["policies"]) == document["baselines"]
    assert sorted(document["ranking"]) == sorted(document["policies"])
    kinds = {fact["kind"] for fact in document["provenance"]}
    assert kinds <= {"measured", "published", "modelled", "assumed"}
    traffic = next(fact for fact in document["provenance"] if fact["what"] == "Traffic")
    assert traffic["kind"] == "modelled"  # drawn, though their counts were measured


def test_a_loss_is_simulated_for_alternatives_and_static_fleets_only(compared: Outcome) -> None:
    document = compared.document
    kept = {*document["alternatives"].values(), "flat-before"}
    known = {key for key, row in document["policies"].items() if row["n_plus_1"] is not None}
    assert known == kept and known < document["policies"].keys()
    assert document["recommended"]["policy"] in known


def test_requests_are_accounted_for_in_every_policy(compared: Outcome) -> None:
    arrived = {figures["arrived"] for figures in compared.document["policies"].values()}
    assert arrived == {compared.document["requests"]}
    for figures in compared.document["policies"].values():
        assert figures["arrived"] == (
            figures["completed"] + figures["rejected"] + figures["unfinished"]
        )
        tiers = figures["tiers"].values()
        assert sum(tier["arrived"] for tier in tiers) == figures["arrived"]
        assert figures["meets_slo"] == all(figures["slo_met"].values())
        pools = figures["pools"]
        assert figures["cost_usd"] == pytest.approx(sum(pool["cost_usd"] for pool in pools))


def test_tables_hold_what_the_document_says(compared: Outcome) -> None:
    document, tables = compared.document, compared.tables
    assert set(tables) == {
        "demand", "forecast", "plan", "replicas", "capacity", "policies", "tiers", "groups",
        "timetable", "timetables",
    }  # fmt: skip
    take = document["recommended"]
    timetable = tables["timetables"].filter(pl.col("policy") == take["policy"])
    counts = [count for row in take["timetable"]["rows"] for count in row["replicas"]]
    assert timetable["replicas"].to_list() == counts
    for name in document["policies"]:  # each can be exported unless it scales by its own rule
        traits = traits_of(name)
        has_schedule = traits.flat or traits.may_exceed_plan or traits.plan is not None
        assert has_schedule == (name in set(tables["timetables"]["policy"])), name
    for row in tables["policies"].iter_rows(named=True):
        figures = document["policies"][row["policy"]]
        for name in ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg", "arrived", "meets_slo"):
            assert row[name] == figures[name]
        assert row["host_energy_kwh"] == figures["host_energy_kwh"]
        assert row["gpu_energy_kwh"] + row["host_energy_kwh"] == pytest.approx(row["energy_kwh"])
    decisions = document["plan"]["decisions"]
    rows = tables["plan"].to_dicts()
    assert [d["target"] for d in decisions] == [row["target"] for row in rows]
    assert [d["current"] + d["delta"] for d in decisions] == [d["target"] for d in decisions]
    assert all(row["capacity_tps"] >= row["demand_tps"] * (1 - 1e-9) for row in rows)
    times = [f"{row['period_start']:%Y-%m-%dT%H:%M:%SZ}" for row in rows]
    assert times == [d["period"] for d in decisions]
    forecast = tables["forecast"]
    assert forecast.height == 20 and forecast["time"].dtype == pl.Datetime("us", "UTC")
    window = tables["demand"].filter(tables["demand"]["time"].is_in(forecast["time"].implode()))
    np.testing.assert_allclose(window["input_tokens"].to_numpy() / 60, forecast["actual"])
    replicas = tables["replicas"]
    ready = replicas.filter(replicas["policy"] == "flat-peak")
    hours = (ready["ready"] + ready["starting"] + ready["draining"]).sum() / 60
    figures = document["policies"]["flat-peak"]
    inside = figures["instance_hours"] - figures["after_gpu_hours"]  # of one GPU each
    assert hours == pytest.approx(inside)


def test_forecast_plan_and_simulate_are_the_parts_of_the_whole(stored: StoredTrace) -> None:
    scenario, traces = small(), {"t": stored}
    forecasts = forecast.run(Inputs(scenario, traces), forecast.Options(), silent)
    planned = plan.run(Inputs(scenario, traces), plan.Options(), silent)
    # A load factor of the scenario is not tuned.
    fixed = small(policies=[{"name": "lt-i", "load_factor": 1.1}])
    simulated = simulate.run(Inputs(fixed, traces), simulate.Options(policy="lt-i"), silent)
    plain = compare.run(Inputs(fixed, traces), compare.Options(), silent)
    expected = untimed(plain.document)
    assert untimed(forecasts.document["series"]) == expected["forecast"]["series"]
    figures = untimed(planned.document["plan"])
    assert figures.pop("worth")["rows"]  # only where a plan is asked for: it solves again
    assert planned.document["status"] == "optimal"
    assert_frame_equal(forecasts.tables["forecast"], plain.tables["forecast"])
    figures = expected["policies"]["lt-i"]
    del figures["survives"], figures["n_plus_1"]  # a comparison knows those of its alternatives
    del figures["flat_usd"]  # found where policies that serve unequally stand side by side
    assert {name: untimed(simulated.document)[name] for name in figures} == figures


@pytest.mark.usefixtures("compared")
def test_progress_never_goes_back_and_stays_within_its_bounds(
    seen: list[tuple[float, str]],
) -> None:
    fractions = [fraction for fraction, _ in seen]
    assert fractions[0] >= 0 and 0.95 < fractions[-1] <= 1 + 1e-9
    assert (np.diff(fractions) >= -1e-9).all()
    words = " / ".join(stage for _, stage in seen)
    for expected in ("Reading", "Sizing m on G", "Forecasting m in east", "Planning period 1 of 4",
                     "Searching the smallest", "Replaying: Forecast plan"):  # fmt: skip
        assert expected in words


class Stopped(Exception):
    pass


@pytest.mark.parametrize("until", [0.01, 0.42, 0.9])
def test_a_study_stops_when_its_progress_says_so(stored: StoredTrace, until: float) -> None:
    def stop(fraction: float, stage: str) -> None:
        if fraction >= until:
            raise Stopped

    with pytest.raises(Stopped):
        compare.run(Inputs(small(), {"t": stored}), compare.Options(), stop)


def test_gaps_in_the_window_are_said_first(tmp_path: Path) -> None:
    values: list[float | None] = [600.0] * 60
    values[45:48] = [None] * 3
    outcome = compare.run(
        Inputs(small(policies=["flat-peak"]), {"t": make.demand_file(tmp_path, {"a": values})}),
        compare.Options(),
        silent,
    )
    assert outcome.document["notes"][0] == (
        "3 of the 20 bins of the window were not observed in full. They are "
        "excluded from the replay and from all figures."
    )
    assert outcome.document["requests"] == 600 * 17
    assert outcome.tables["demand"]["requests"].null_count() == 3


def test_only_deferrable_traffic_can_be_studied(stored: StoredTrace) -> None:
    tiers = [
        {"name": "chat", "ttft_ms": 1000},
        {"name": "batch", "e2e_ms": 3_600_000, "deferrable": True},
    ]
    source = make.source(tiers={"batch": 1}, **LENGTHS)
    scenario = small(tiers=tiers, traffic={"sources": [source]}, policies=["flat-peak", "lt-i"])
    outcome = compare.run(Inputs(scenario, {"t": stored}), compare.Options(), silent)
    assert outcome.tables["forecast"].height == 0
    assert outcome.document["policies"]["lt-i"]["arrived"] > 0
    with pytest.raises(ScenarioError, match="nothing to forecast"):
        forecast.run(Inputs(scenario, {"t": stored}), forecast.Options(), silent)


def test_the_day_after_azures_week_is_planned_on_its_forecast(azure_week: StoredTrace) -> None:
    lengths = {"input_tokens": {"mean": 1631}, "output_tokens": {"mean": 107}}
    scenario = make.scenario(
        traffic={"sources": [make.source(series="conv", scale=0.05, **lengths)]},
        horizon={"start": "end", "duration_s": 43200},
        forecast={"method": "arima"},
        policies=["flat-peak", "flat-min", "lt-i"],
    )
    outcome = compare.run(Inputs(scenario, {"t": azure_week}), compare.Options(), silent)
    window, forecast = outcome.document["window"], outcome.tables["forecast"]
    assert window["replay"] == FORECAST
    assert forecast["actual"].null_count() == forecast.height == 48
    assert outcome.document["forecast"]["series"][0]["wape"] is None
    # Replayed requests bring the tokens that were forecast, up to chance and rounding of lengths.
    expected = forecast["mean"].sum() * 900
    replayed = outcome.document["policies"]["flat-peak"]
    tokens = replayed["input_tokens"] + 1631 * (replayed["arrived"] - replayed["completed"])
    assert tokens == pytest.approx(expected, rel=0.08)
    with pytest.raises(ScenarioError, match="lt-i-perfect"):
        compare.run(
            Inputs(scenario, {"t": azure_week}),
            compare.Options(policies=["lt-i-perfect"]),
            silent,
        )
