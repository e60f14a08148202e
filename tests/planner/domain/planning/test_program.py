"""From a scenario's objective, limits and priorities to the plan, its document and its worth."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import compare, pareto, plan, simulate, size
from planner.domain.options import options_of
from planner.domain.outcome import REQUESTS, Inputs
from planner.domain.progress import silent
from planner.domain.replay import power_caps
from planner.domain.traffic.sources import StoredTrace
from planner.domain.whatif.objectives import pair_of
from planner.errors import Infeasible, OptionsRefused, ScenarioError
from tests.planner.domain.builders import EAST, WEST, demand_file, scenario, source

PLACES = ("east", "west")
TIERS = [
    {"name": "chat", "ttft_ms": 1000, "tbt_ms": 100},
    {"name": "mail", "ttft_ms": 5000, "tbt_ms": 200},
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredTrace]:
    """Six hours that rise and fall, enough for several instances at the top."""
    folder: Path = tmp_path_factory.mktemp("demand")
    seconds = np.arange(0, 6 * 3600, 60.0)
    per_minute = 4000 + 3500 * np.sin(2 * np.pi * seconds / 10_800)
    lengths = {
        "input_tokens": {"t": (per_minute * 800).tolist()},
        "output_tokens": {"t": (per_minute * 100).tolist()},
    }
    return {"t": demand_file(folder, {"t": per_minute.tolist()}, tokens=lengths)}


def asked(**changes: Any) -> Any:
    base: dict[str, Any] = {
        "regions": [EAST, WEST],
        "traffic__sources": [source(regions={"east": 0.5, "west": 0.5})],
        "horizon": {"duration_s": 7200, "period_s": 1800},
    }
    return scenario(**base | changes)


def planned(stored: dict[str, StoredTrace], **changes: Any) -> dict[str, Any]:
    document = plan.run(Inputs(asked(**changes), stored), plan.Options(), silent).document
    plan_document: dict[str, Any] = document["plan"]
    return plan_document


def test_a_site_keeps_to_its_kilowatts_and_names_its_limit(stored: dict[str, StoredTrace]) -> None:
    free = planned(stored, objective__epsilon=0.1)
    kw = free["totals"]["kwh"] / free["totals"]["gpu_hours"]  # about, of one replica
    most = max(row["target"] for row in free["decisions"] if row["region"] == "east")
    east = EAST | {"power": {"site_kw": (most - 1) * kw * 1.001}}
    limited = planned(stored, objective__epsilon=0.1, regions=[east, WEST])
    assert 0 < max(r["target"] for r in limited["decisions"] if r["region"] == "east") < most
    assert limited["objective"] > free["objective"]
    assert "power" in {limit["family"] for limit in limited["binding"]}
    (use,) = limited["power"]
    assert use["region"] == "east" and 0.8 < use["share"] <= 1.0
    assert use["peak_kw"] <= use["limit_kw"] * (1 + 1e-6)
    assert "power" not in free
    values = [row for row in limited["worth"]["rows"] if row["family"] == "power"]
    assert values and values[0]["unit"] == "kW" and values[0]["saves"] > 0


CAPPED: dict[str, Any] = {
    "models": ["llama-3.1-8b"],
    "gpus": [],
    "profiles": [{"model": "llama-3.1-8b", "gpu": "A100-80GB", "tp": 2, "power_caps": [0.7]}],
    "regions": [{"name": "east", "like": "us-east-1", "capacity": {"A100-80GB": 64}}],
    "traffic__sources": [source(model="llama-3.1-8b")],
}


def test_each_power_cap_has_a_plan_with_its_energy(stored: dict[str, StoredTrace]) -> None:
    free, capped = planned(stored, **CAPPED)["caps"]
    assert (free["mixed"], capped["mixed"]) == (1.0, 0.7)
    assert capped["peak_kw"] / capped["replicas"] < free["peak_kw"] / free["replicas"]
    assert capped["gpu_hours"] >= free["gpu_hours"]
    for row in (free, capped):
        assert row["usd"] > 0 and row["ttft_ms"] <= 1000 and row["conflict"] == ""
        (attainment,) = row["slo_attainment"].values()
        assert 0.8 < attainment <= 1 and 0 < row["simulated_kwh"] < row["kwh"]


def test_power_caps_are_not_replayed_with_too_many_requests(
    stored: dict[str, StoredTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_caps, "MOST_REQUESTS", 0)
    for row in planned(stored, **CAPPED)["caps"]:
        assert row["kwh"] > 0 and row["slo_attainment"] is row["simulated_kwh"] is None


SHIFT: dict[str, Any] = {
    "tiers": [TIERS[0], {"name": "batch", "e2e_ms": 14_400_000, "deferrable": True,
                         "priority_after_s": 14_400}],
    # dear until 04:00 UTC
    "regions": [EAST | {"electricity_usd_per_kwh": [10.0] * 4 + [0.01] * 20,
                        "committed": {"G": {"one_year": 1.5}}}],
    "traffic__sources": [source(tiers={"chat": 0.3, "batch": 0.7})],
    "horizon": {"start": "2024-05-13T02:00:00Z", "duration_s": 14_400, "period_s": 3600},
}  # fmt: skip
FOLLOWS = {"periods": "all", "defer": "cheapest", "reserve": "one_year"}


def test_deferrable_work_waits_for_the_cheap_hours(stored: dict[str, StoredTrace]) -> None:
    even = planned(stored, **SHIFT, objective={"periods": "all"})
    cheap = planned(stored, **SHIFT, objective=FOLLOWS)
    hours = cheap["shift"]["hours"]
    assert [row["usd_per_kwh"] for row in hours] == [10.0, 10.0, 0.01, 0.01]
    arrived, done = (sum(row[name] for row in hours) for name in ("arrived", "planned"))
    assert done == pytest.approx(arrived)
    assert hours[0]["planned"] + hours[1]["planned"] < hours[2]["planned"]
    assert cheap["objective"] < min(even["objective"], cheap["shift"]["on_arrival"])
    assert cheap["shift"]["bound"] <= cheap["objective"]
    (reserved, *_), totals = cheap["mix"], cheap["totals"]
    assert (reserved["market"], reserved["usd_per_gpu_hour"]) == ("reserved", 1.5)
    assert reserved["gpu_hours"] == 4 * reserved["gpus"]
    assert totals["embodied_kg"] == pytest.approx(totals["gpu_hours"] * 7.3 / 1000)


def test_moved_work_is_done_in_its_hours_and_in_time(stored: dict[str, StoredTrace]) -> None:
    batch = SHIFT["tiers"][1] | {"e2e_ms": 21_600_000}
    scenario = asked(**SHIFT | {"tiers": [TIERS[0], batch]}, objective=FOLLOWS)
    options = simulate.Options(policy="lt-i", requests=True)
    run = simulate.run(Inputs(scenario, stored), options, silent)
    row = run.document["policies"]["lt-i"]
    assert row["arrived"] == row["completed"] + row["rejected"] + row["unfinished"]
    assert row["slo_attainment"]["batch"] == 1.0
    assert 0 < row["reserved_usd"] < row["cost_usd"]
    requests = run.tables[REQUESTS].filter(pl.col("tier") == "batch")
    assert requests["met"].all()
    # None of it is urgent within the window, so no hour does more than planned by then.
    plan = planned(stored, **SHIFT | {"tiers": [TIERS[0], batch]}, objective=FOLLOWS)
    begun_s = (requests["arrival"] - requests["arrival"].min()).dt.total_seconds() + (
        requests["ttft_ms"] / 1000
    )
    most = 0.0
    for hour, row in enumerate(plan["shift"]["hours"]):
        most += row["planned"]
        done = float(requests["input_tokens"].filter(begun_s < 3600 * hour + 3590).sum())
        assert done <= most + 10 * float(requests["input_tokens"].max())


def test_less_carbon_takes_less_carbon_and_more_money(stored: dict[str, StoredTrace]) -> None:
    cost = planned(stored)
    carbon = planned(stored, objective={"minimise": "carbon"})
    assert (cost["unit"], carbon["unit"]) == ("$", "kg CO2e")
    assert carbon["totals"]["carbon_kg"] <= cost["totals"]["carbon_kg"] + 1e-9
    assert carbon["totals"]["usd"] >= cost["totals"]["usd"] - 1e-9
    assert cost["totals"]["usd"] == pytest.approx(cost["objective"])
    assert carbon["totals"]["carbon_kg"] == pytest.approx(carbon["objective"])
    both = planned(stored, objective={"weights": {"usd": 1, "kg": 1}})
    assert both["minimise"] == "weighted"
    assert both["objective"] == pytest.approx(both["totals"]["usd"] + both["totals"]["carbon_kg"])


def test_all_periods_at_once_never_cost_more_on_the_same_forecast(
    stored: dict[str, StoredTrace],
) -> None:
    """Ahead of the trace both stand on one forecast."""
    horizon = {"start": "end", "duration_s": 7200, "period_s": 1800}
    alone = planned(stored, horizon=horizon)
    together = planned(stored, horizon=horizon, objective={"periods": "all"})
    assert (alone["periods"], together["periods"]) == ("one", "all")
    assert together["objective"] <= alone["objective"] * (1 + 2e-4)
    assert together["bound"] <= together["objective"]
    lending = planned(stored, horizon=horizon, objective={"periods": "all", "lend_share": 0.9})
    assert lending["objective"] <= together["objective"] * (1 + 2e-4)
    assert lending["lent_gpu_hours"] >= 0 and together["lent_gpu_hours"] is None


def test_a_limit_too_tight_is_a_conflict_in_words(stored: dict[str, StoredTrace]) -> None:
    with pytest.raises(Infeasible, match=r"the budget of \$3\.00/h"):
        planned(stored, objective={"limits": {"usd_per_hour": 3}})
    with pytest.raises(Infeasible, match=r"\$3\.00 at most over all periods"):
        planned(stored, objective={"periods": "all", "limits": {"usd": 3}})


@pytest.mark.parametrize("policy", ["Exact", "None", "PriorityExhaustive", "RoundRobin"])
def test_what_capacity_cannot_serve_is_left_by_tier(
    stored: dict[str, StoredTrace], policy: str
) -> None:
    changes: dict[str, Any] = {
        "regions": [{**EAST, "capacity": {"G": 2}}],
        "tiers": TIERS,
        "traffic__sources": [source(tiers={"chat": 0.5, "mail": 0.5})],
        "objective": {"limited": policy, "priorities": {"tiers": {"chat": 5}}},
    }
    limited = planned(stored, **changes)
    assert limited["limited"] == policy
    assert limited["conflicts"] and "GPUs" in " ".join(limited["conflicts"]) + "GPUs"
    left = {row["tier"]: row["input_tps"] for row in limited["unserved"]}
    assert left.get("mail", 0) >= left.get("chat", 0)
    assert left["mail"] > 0
    with pytest.raises(Infeasible):
        planned(stored, **changes | {"objective": {}})
    if policy == "Exact":
        together = planned(stored, **changes | {"objective": {**changes["objective"],
                                                              "periods": "all"}})  # fmt: skip
        assert {row["tier"] for row in together["unserved"]} <= {"mail", "chat"}


@pytest.mark.parametrize("most", ["chat", "mail"])
def test_short_capacity_serves_the_requests_with_the_most_utility(
    stored: dict[str, StoredTrace], most: str
) -> None:
    """Both tiers have prompts of equal length, so utility alone decides."""
    tiers = [{**tier, "utility": 5 if tier["name"] == most else 1} for tier in TIERS]
    limited = planned(
        stored,
        regions=[{**EAST, "capacity": {"G": 2}}],
        tiers=tiers,
        traffic__sources=[source(tiers={"chat": 0.5, "mail": 0.5})],
        objective={"limited": "Exact"},
    )
    left = {row["tier"]: row["input_tps"] for row in limited["unserved"]}
    (least,) = {"chat", "mail"} - {most}
    assert left[least] > left.get(most, 0.0)


@pytest.mark.parametrize("periods", ["one", "all"])
def test_demand_is_served_where_its_utility_exceeds_its_cost(
    stored: dict[str, StoredTrace], periods: str
) -> None:
    sources = [source(tiers={"chat": 0.5, "mail": 0.5})]

    def plan(chat: float, mail: float, usd: float | None) -> dict[str, Any]:
        utility = {"chat": chat, "mail": mail}
        tiers = [{**tier, "utility": utility[tier["name"]]} for tier in TIERS]
        objective = {"periods": periods} | ({} if usd is None else {"utility_usd": usd})
        return planned(stored, tiers=tiers, traffic__sources=sources, objective=objective)

    every, chat_alone = plan(1.0, 1.0, 10.0), plan(1.0, 0.0, 10.0)
    assert not every["unserved"]
    assert every["fleet_cost"] == pytest.approx(plan(1.0, 1.0, None)["fleet_cost"], rel=1e-3)
    assert {row["tier"] for row in chat_alone["unserved"]} == {"mail"}
    assert chat_alone["fleet_cost"] < every["fleet_cost"]
    worthless = plan(1.0, 1.0, 1e-9)
    assert {row["tier"] for row in worthless["unserved"]} == {"chat", "mail"}
    assert worthless["fleet_cost"] <= chat_alone["fleet_cost"]


def test_utility_in_dollars_needs_a_tier_with_utility(stored: dict[str, StoredTrace]) -> None:
    with pytest.raises(ScenarioError, match="utility"):
        planned(stored, tiers=TIERS, objective={"utility_usd": 1.0})


def test_tiers_are_planned_for_at_their_own_quantile(stored: dict[str, StoredTrace]) -> None:
    changes: dict[str, Any] = {
        "tiers": TIERS,
        "traffic__sources": [
            source(tiers={"chat": 0.5, "mail": 0.5}, regions={"east": 0.5, "west": 0.5})
        ],
    }
    mean = {"method": "last-value", "quantile": "mean"}
    usual = planned(stored, **changes, forecast=mean)
    surer = planned(stored, **changes, forecast=mean | {"quantiles": {"chat": 0.9}})
    assert surer["objective"] >= usual["objective"] - 1e-9


def test_two_variants_split_the_load(stored: dict[str, StoredTrace]) -> None:
    """Few of the cheap GPU, so that the dear one carries the rest."""
    speed = {"alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12, "delta_ms": 0.06}
    result = planned(
        stored,
        gpus=[
            {"name": name, "memory_gb": 80, "idle_w": 60, "prefill_w": 400, "decode_w": 250}
            for name in ("G", "H")
        ],
        profiles=[{"model": "m", "gpu": "G", **speed}, {"model": "m", "gpu": "H", **speed}],
        regions=[{**EAST, "capacity": {"G": 2, "H": 32}, "usd_per_gpu_hour": {"G": 2, "H": 5}}],
        traffic__sources=[source()],
    )
    shares = {row["arrangement"]: row for row in result["split"]}
    assert set(shares) == {"1 x G", "1 x H"}
    assert sum(row["share"] for row in shares.values()) == pytest.approx(1.0)
    worth = {row["family"]: row for row in result["worth"]["rows"]}
    assert worth["capacity"]["what"] == "1 more G in east"
    # An H at 5 is not needed, which would start in this period (a thirtieth of it burnt) or runs
    # already; the G at 2 starts.
    starts = [5 / 30 - 2 / 30, -2 / 30]
    assert any(worth["capacity"]["saves"] == pytest.approx(5 - 2 + more) for more in starts)
    assert worth["slo"]["saves"] >= 0
    assert worth["slo"]["per_unit"] == pytest.approx(worth["slo"]["saves"] / worth["slo"]["step"])


def test_a_front_of_cost_and_carbon(stored: dict[str, StoredTrace]) -> None:
    front = pareto.run(
        Inputs(asked(), stored), pareto.Options(of="carbon,cost", points=4), silent
    ).document
    assert front["of"] == ["carbon", "cost"]
    points = front["points"]
    assert all(a["second"] < b["second"] for a, b in itertools.pairwise(points))
    assert all(a["first"] > b["first"] for a, b in itertools.pairwise(points))
    assert all(point["first_bound"] <= point["first"] for point in points)
    assert points[0]["cost"] == pytest.approx(points[0]["second"])
    assert front["headline"]


@pytest.mark.parametrize(
    ("words", "pair"),
    [("cost,carbon", ("cost", "carbon")), ("cost, energy", ("energy", "cost"))],
)
def test_the_capped_one_comes_last(words: str, pair: tuple[str, str]) -> None:
    assert pair_of(words) == pair


@pytest.mark.parametrize("words", ["cost", "cost,cost", "cost,latency", "energy,gpu-hours"])
def test_pairs_that_make_no_front_are_refused(words: str) -> None:
    with pytest.raises(OptionsRefused, match=f"of {words}:"):
        options_of(pareto.Options, {"of": words})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"objective": {"limits": {"usd": 5}}}, "limits.usd is about the whole window"),
        ({"objective": {"lend_share": 0.5}}, "lend_share is about the whole window"),
        ({"objective": {"periods": "all", "limited": "RoundRobin"}}, "limited: Exact"),
        ({"objective": {"weights": {}}}, "at least one of usd"),
        ({"objective": {"priorities": {"tiers": {"chat": 2}}}}, "Give limited with them"),
        (
            {"objective": {"limited": "Exact", "priorities": {"models": {"x": 2}}}},
            "model 'x' is not in this scenario, which has m",
        ),
        ({"forecast": {"quantiles": {"fax": 0.9}}}, "tier 'fax' is not in this scenario"),
    ],
)
def test_words_that_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        asked(**changes)


def test_what_the_plan_lends_is_lent_in_its_replay(stored: dict[str, StoredTrace]) -> None:
    """More than is needed, which may not be stopped: it is lent."""
    either = asked(
        objective={"periods": "all", "lend_share": 0.5, "limits": {"changes": 0}},
        fleet={
            "today": [
                {"model": "m", "region": region, "gpu": "G", "replicas": 6} for region in PLACES
            ]
        },
        traffic__sources=[source(regions={"east": 0.5, "west": 0.5}, scale=0.2)],
        policies=[{"name": "lt-h", "load_factor": 1.0001}],  # not tuned: the plan itself
        test_days=[],
    )
    document = compare.run(Inputs(either, stored), compare.Options(), silent).document
    replayed = document["policies"]["lt-h"]["donated_gpu_hours"]
    planned_alone = plan.run(Inputs(either, stored), plan.Options(), silent).document["plan"]
    assert planned_alone["lent_gpu_hours"] > 1
    # It drains first, and what the next period wants comes back before it.
    assert (
        0.8 * planned_alone["lent_gpu_hours"] < replayed <= planned_alone["lent_gpu_hours"] * 1.01
    )
    # It earns half of its price, which is 2 dollars in east and 3 in west; plan and replay agree.
    its = document["policies"]["lt-h"]
    assert replayed <= its["lent_usd"] <= 1.5 * replayed
    paid = its["cost_usd"] - its["after_cost_usd"]
    assert paid == pytest.approx(planned_alone["totals"]["usd"], rel=0.01)


def test_spot_takes_its_share_and_no_more(stored: dict[str, StoredTrace]) -> None:
    spot = {"G": {"capacity": 32, "usd_per_gpu_hour": 0.5, "reclaims_per_instance_hour": 0.1}}
    by_share = {}
    for share in (0.0, 0.5, 1.0):
        objective = {"spot_share": share, "epsilon": 1.0}
        regions = [EAST | {"spot": spot}, WEST]
        by_share[share] = planned(stored, regions=regions, objective=objective)
        held = {"owned": 0, "spot": 0}
        for row in by_share[share]["decisions"]:
            if row["region"] == "east":
                held[row["market"]] += row["target"]
        if share == 0.0:
            assert held["spot"] == 0 < held["owned"]
        if share == 0.5:
            assert held["spot"] > 0 and held["owned"] > 0
        if share == 1.0:
            assert held["spot"] > held["owned"]
    costs = [by_share[share]["totals"]["usd"] for share in (0.0, 0.5, 1.0)]
    assert costs[0] > costs[1] > costs[2]
    assert {row["arrangement"] for row in by_share[0.5]["split"]} >= {"1 x G, spot"}


def test_what_may_be_sent_is_limited_and_shown(stored: dict[str, StoredTrace]) -> None:
    """West is dear and may send what epsilon allows, a tenth of it, or nothing."""
    ways: dict[str, Any] = {"any": None, "tenth": {"west": {"east": 0.1}}, "none": {}}
    for periods in ("one", "all"):
        by_name = {
            name: planned(
                stored,
                regions=[EAST, WEST | {"usd_per_gpu_hour": {"G": 9}}],
                objective={"epsilon": 0.5, "reroute": way, "periods": periods},
                horizon={"start": "end", "duration_s": 3600, "period_s": 1800},
            )
            for name, way in ways.items()
        }
        costs = [by_name[name]["totals"]["usd"] for name in ("any", "tenth", "none")]
        assert costs[0] < costs[1] <= costs[2]
        assert by_name["none"]["rerouted"] == []
        (row,) = by_name["any"]["rerouted"]
        assert (row["from"], row["to"]) == ("west", "east") and 0.1 < row["share"] <= 0.5 + 1e-9
        assert all(row["share"] <= 0.1 + 1e-9 for row in by_name["tenth"]["rerouted"])
        assert by_name["none"]["gap"] <= 1e-3


def test_free_gpus_are_sized_but_not_planned(stored: dict[str, StoredTrace]) -> None:
    free = {"usd_per_gpu_hour": {"G": 0}, "electricity_usd_per_kwh": 0}
    regions = [WEST, EAST | free]
    with pytest.raises(ScenarioError, match=r"regions\[1\]\.usd_per_gpu_hour\.G"):
        planned(stored, regions=regions)
    sized = size.run(Inputs(asked(regions=regions), stored), size.Options(), silent).document
    assert sized["pools"]


def test_ways_that_lead_nowhere_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"line .* region 'mars' is not in this scenario"):
        asked(objective={"reroute": {"mars": {}}})
    with pytest.raises(ScenarioError, match="only limited: Exact keeps to reroute"):
        asked(objective={"reroute": {}, "limited": "RoundRobin"})


def test_gpu_prices_by_hour_move_work_and_are_paid_by_the_hour(
    stored: dict[str, StoredTrace],
) -> None:
    prices = [4.0] * 4 + [1.0] * 20
    priced = {"usd_per_gpu_hour": {"G": prices}, "electricity_usd_per_kwh": 0}
    today = [{"model": "m", "region": "east", "gpu": "G", "replicas": 3}]
    given = SHIFT | {"regions": [SHIFT["regions"][0] | priced], "fleet__today": today}
    hours = planned(stored, **given, objective=FOLLOWS | {"reserve": None})["shift"]["hours"]
    assert sum(row["planned"] for row in hours[:2]) < hours[2]["planned"]
    run = simulate.run(
        Inputs(asked(**given), stored), simulate.Options(policy="today"), silent
    ).document["policies"]["today"]
    # Two hours of the window cost $4, two cost $1. Work after the window has the mean price.
    inside = run["gpu_hours"] - run["after_gpu_hours"]
    mean = (4 * 4.0 + 20 * 1.0) / 24
    assert run["cost_usd"] == pytest.approx(2.5 * inside + mean * run["after_gpu_hours"])
