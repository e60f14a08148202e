"""A scenario's fleet in its network: counts, services, trees, and bandwidth back in the replay."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import place
from planner.domain.outcome import Inputs
from planner.domain.placement.services import disaggregated_scenario, placed_services
from planner.domain.placement.simulation import placed_fleet
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.errors import ScenarioError
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.topology import topology_of
from planner.optimizer.placement import (
    PlacementProblem,
    measure_units,
    place_blind,
    service_share,
)
from tests.planner.domain import builders as make

SPEED = {"model": "m", "alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 12, "delta_ms": 0.06}
POWER = {"memory_gb": 80, "idle_w": 60, "prefill_w": 400, "decode_w": 250}
PROFILES = [
    SPEED | {"gpu": "G", "tp": 2, "role": "prefill"},
    SPEED | {"gpu": "H", "tp": 4, "role": "decode"},
]
TREE = {"s2": 3, "s1_per_s2": 2, "racks_per_s1": 2, "nodes_per_rack": 2}
EAST = {
    "name": "east", "capacity": {"G": 96, "H": 96}, "usd_per_gpu_hour": {"G": 2, "H": 3},
    "carbon_g_per_kwh": 400, "pue": 1.2, "topology": TREE | {"mixed_s1": 1, "mixed_s2": 1},
}  # fmt: skip
MIXED_REGION = {
    "name": "east", "capacity": {"G": 64}, "usd_per_gpu_hour": {"G": 2}, "carbon_g_per_kwh": 400,
    "pue": 1.2,
}  # fmt: skip

TRAFFIC = {
    "sources": [make.source(input_tokens={"mean": 900, "cv": 0.3}, output_tokens={"mean": 60})]
}


def row(role: str, gpu: str, replicas: int) -> dict[str, Any]:
    return {"model": "m", "region": "east", "gpu": gpu, "role": role, "replicas": replicas}


def disaggregated(**changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "gpus": [POWER | {"name": name} for name in "GH"],
        "profiles": PROFILES,
        "regions": [EAST],
        "tiers": [{"name": "chat", "ttft_ms": 2000, "tbt_ms": 100}],
        "serving": [{"kv_transfer": {"gb_s": 0.5}}],
        "fleet": {"minimum": 0, "today": [row("prefill", "G", 6), row("decode", "H", 6)]},
        "traffic": TRAFFIC,
        "horizon": {"period_s": 300, "duration_s": 600},
    }
    return make.scenario(**(fields | changes))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    return make.demand_file(tmp_path_factory.mktemp("steady"), {"a": [200.0] * 40})


@pytest.fixture(scope="module")
def placements(stored: StoredTrace) -> dict[str, Any]:
    outcome = place.run(Inputs(disaggregated(), {"t": stored}), place.Options(), silent)
    return {**outcome.document, "tables": outcome.tables}


def test_better_methods_have_fewer_points(placements: dict[str, Any]) -> None:
    points = [placements["methods"][name]["points"] for name in ("exact", "algorithm4", "blind")]
    assert points == sorted(points)
    assert placements["methods"]["exact"]["gap"] < 0.01
    assert placements["counts_from"] == "fleet.today"


def test_affinity_is_honoured_or_the_miss_counted(placements: dict[str, Any]) -> None:
    for name in ("exact", "algorithm4"):
        method = placements["methods"][name]
        assert method["affinity_honoured"] == 1.0
        assert (method["split_units"], method["unplaced"]) == (0, [])
    blind = placements["methods"]["blind"]
    assert blind["affinity_missed"] == round((1 - blind["affinity_honoured"]) * 6)


def test_bandwidth_lost_shows_in_the_replay(placements: dict[str, Any]) -> None:
    """The slower the links, the longer a KV cache takes between first and second token."""
    methods = placements["methods"]
    by_loss = sorted(methods.values(), key=lambda method: method["bandwidth_lost"])
    assert by_loss[0]["bandwidth_lost"] < by_loss[-1]["bandwidth_lost"]
    for key in ("tbt_ms", "e2e_ms"):
        means = [method["simulated"][key]["mean"] for method in by_loss]
        assert means == sorted(means) and means[0] < means[-1]
    assert len({method["simulated"]["arrived"] for method in by_loss}) == 1


def test_links_have_what_the_switches_leave() -> None:
    scenario = disaggregated()
    hardware = build_hardware(scenario)
    assert hardware.today is not None
    placed = placed_services(scenario, hardware, hardware.today)
    problem = PlacementProblem(
        topology_of(scenario, hardware, []), tuple(service.service for service in placed)
    )
    placement = place_blind(problem)
    units = measure_units(problem, placement)
    pair = service_share(units, 0)
    assert pair is not None and pair[1] <= pair[0] <= 1
    for worst in (False, True):
        fleet, counts = placed_fleet(hardware, placed, placement, units, worst=worst)
        (link,) = [pool.link for pool in fleet.pools if pool.link]
        assert link.bytes_s == pytest.approx(0.5e9 * pair[worst])
        assert counts.tolist() == [6, 6]


def test_growing_and_shrinking_are_kept_as_moments(placements: dict[str, Any]) -> None:
    for method in placements["methods"].values():
        assert method["grown"]["gpus"] == 9 * 2 + 9 * 4
        assert method["shrunk"]["gpus"] == method["gpus"] == 6 * 2 + 6 * 4
    instances: pl.DataFrame = placements["tables"]["instances"]
    nodes: pl.DataFrame = placements["tables"]["nodes"]
    used = (
        instances.group_by("method", "state", "node")
        .agg(pl.col("gpus").sum())
        .join(nodes.select("node", pl.col("gpus").alias("room")), on="node")
    )
    assert (used["gpus"] <= used["room"]).all()
    assert set(instances["state"]) == {"start", "grown", "shrunk"}


def test_what_does_not_fit_is_named(stored: StoredTrace) -> None:
    today = [row("prefill", "G", 6), row("decode", "H", 24)]
    scenario = disaggregated(fleet={"minimum": 0, "today": today})
    document = place.run(
        Inputs(scenario, {"t": stored}), place.Options(method="algorithm4"), silent
    ).document
    grown = document["methods"]["algorithm4"]["grown"]
    assert grown["unplaced_units"] > 0
    assert "H needed" in grown["unplaced"][0]["reason"]
    assert document["methods"].keys() == {"algorithm4"}


def test_mixed_pools_apart_by_a_ratio(stored: StoredTrace) -> None:
    mixed = make.scenario(
        regions=[MIXED_REGION],
        traffic=TRAFFIC,
        serving=[{"kv_transfer": {"gb_s": 5}}],
        fleet={"today": [{"model": "m", "region": "east", "gpu": "G", "replicas": 9}]},
    )
    plain = place.run(
        Inputs(mixed, {"t": stored}), place.Options(method="algorithm4", grow=0), silent
    ).document
    assert plain["methods"]["algorithm4"]["affinity_honoured"] is None
    assert plain["methods"]["algorithm4"]["simulated"] is None
    document = place.run(
        Inputs(mixed, {"t": stored}),
        place.Options(method="algorithm4", ratio=(1, 2)),
        silent,
    ).document
    roles = document["services"][0]["roles"]
    assert [(role["role"], role["instances"]) for role in roles] == [("prefill", 3), ("decode", 6)]
    assert document["methods"]["algorithm4"]["simulated"]["completed"] > 0
    single = mixed.fleet.today[0].model_copy(update={"replicas": 1})
    with pytest.raises(ScenarioError, match="one replica on G"):
        disaggregated_scenario(mixed, (1, 2), [single])


def test_without_today_the_plan_says_how_many(stored: StoredTrace) -> None:
    scenario = make.scenario(
        regions=[MIXED_REGION], traffic=TRAFFIC, horizon={"period_s": 300, "duration_s": 600}
    )
    document = place.run(
        Inputs(scenario, {"t": stored}), place.Options(method="blind", grow=0), silent
    ).document
    assert document["counts_from"].startswith("the plan's largest period, from 13 May 2024")
    assert document["methods"]["blind"]["units"] > 0
    with pytest.raises(ScenarioError, match=r"fleet\.today"):
        place.run(Inputs(scenario, {"t": stored}), place.Options(counts="today"), silent)


def services(**rules: Any) -> Any:
    scenario = disaggregated(placement={"services": [{"model": "m", **rules}]})
    hardware = build_hardware(scenario)
    assert hardware.today is not None
    return placed_services(scenario, hardware, hardware.today)


def test_rules_of_a_service() -> None:
    (placed,) = services(affinity="s1", priority=3, ratio=[1, 1], fallbacks=["H", "G"])
    service = placed.service
    assert (service.affinity, service.priority, service.ratio) == ("s1", 3, (1, 1))
    assert [role.parts[0].types for role in service.roles] == [(0, 1), (1, 0)]
    (placed,) = services(attention_to_ffn=[1, 1])
    parts = placed.service.roles[0].parts
    assert [(part.name, part.count, part.gpus) for part in parts] == [
        ("attention", 1, 1),
        ("ffn", 1, 1),
    ]
    with pytest.raises(ScenarioError, match="2 GPUs, which 2 attention and 1 FFN replicas"):
        services(attention_to_ffn=[2, 1])


def tree(**region: Any) -> Any:
    scenario = disaggregated(
        regions=[{k: v for k, v in (EAST | region).items() if v is not None}], fleet={"minimum": 0}
    )
    facts: list[Any] = []
    return topology_of(scenario, build_hardware(scenario), facts), facts


def test_a_tree_holds_the_capacity() -> None:
    topology, _ = tree()
    assert np.bincount(topology.gpu, topology.gpus).tolist() == [96, 96]
    topology, facts = tree(topology=None, capacity={"G": 100, "H": 3})
    assert np.bincount(topology.gpu, topology.gpus).tolist() == [100, 3]
    assert "derived from the capacity" in facts[0][1].source
    assert sorted(np.unique(topology.gpus).tolist()) == [3, 4, 8]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"topology": TREE | {"s2": 2}}, "places for 16 nodes and its GPUs need 24"),
        ({"topology": TREE | {"mixed_s1": 4}}, "3 S2 switches and 4 of them are to be mixed"),
        ({"topology": TREE | {"gpus_per_node": {"Z": 8}}}, "GPU 'Z' is not in this scenario"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        tree(**changes)


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"model": "nobody"}, "model 'nobody' is not in this scenario"),
        ({"fallbacks": ["Z"]}, "GPU 'Z' is not in this scenario"),
        ({"affinity": "s3"}, "affinity"),
    ],
)
def test_rules_that_point_nowhere_are_refused(rules: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        disaggregated(placement={"services": [rules]})


def test_decode_alone_is_refused() -> None:
    scenario = disaggregated(fleet={"minimum": 0, "today": [row("decode", "H", 2)]})
    hardware = build_hardware(scenario)
    assert hardware.today is not None
    with pytest.raises(ScenarioError, match="prefill replicas without decode"):
        placed_services(scenario, hardware, hardware.today)


def test_what_requests_do_not_notice_is_said_first(tmp_path: Path) -> None:
    """The simple alternative is said first where requests do not notice."""
    stored = make.demand_file(tmp_path, {"a": [20.0] * 40})
    scenario = disaggregated(serving=[{"kv_transfer": {"gb_s": 400}}])
    document = place.run(Inputs(scenario, {"t": stored}), place.Options(grow=0), silent).document
    assert "E2E p95" in document["warnings"][0]
