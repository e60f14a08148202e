"""Spot GPUs in a scenario: columns, capacity and prices of their own, reclaimed at a rate."""

from typing import Any

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.schema import Scenario
from simulation.faults import RandomCrashes
from tests.planner.inputs.scenario.test_columns import BIG, SMALL, on, scenario

REGION = {
    "usd_per_gpu_hour": {"H100-SXM": 2},
    "carbon_g_per_kwh": 400,
    "capacity": {"H100-SXM": 16},
}
OFFER = {"capacity": 8, "usd_per_gpu_hour": 0.5, "reclaims_per_instance_hour": 0.25}


def words(profiles: list[dict[str, Any]], **changes: Any) -> Scenario:
    regions = [
        {"name": "east", "spot": {"H100-SXM": OFFER}} | REGION,
        {"name": "west"} | REGION,
    ]
    return scenario(profiles, **{"regions": regions} | changes)


def built(profiles: list[dict[str, Any]], **changes: Any) -> Hardware:
    return build_hardware(words(profiles, **changes), spot=True)


def test_a_type_offered_as_spot_is_there_twice_with_capacity_and_price_of_its_own() -> None:
    hardware = built([on(SMALL)])
    assert [column.label for column in hardware.columns] == ["H100-SXM", "H100-SXM, spot"]
    assert [hardware.market(g) for g in (0, 1)] == ["owned", "spot"]
    assert not hardware.has_one_column_per_gpu and hardware.types.tolist() == [0, 1]
    assert hardware.type_names == ("H100-SXM", "H100-SXM, spot")
    assert hardware.capacity_gpus.tolist() == [[16, 8], [16, 0]]
    assert hardware.usd_per_gpu_hour.tolist() == [[2, 0.5], [2, 0]]
    assert hardware.maximum[0].tolist() == [[16, 8], [16, 0]]
    assert hardware.minimum[0].tolist() == [[1, 0], [1, 0]]  # owned, though spot is cheaper
    assert hardware.profiles[0, 0] is hardware.profiles[0, 1]
    assert hardware.arrangement(0, 1) == "1 x H100-SXM, spot"


def test_pools_on_spot_cost_its_price_and_are_lost_at_its_rate() -> None:
    hardware = built([on(SMALL)])
    fleet = hardware.fleet(hardware.minimum)
    assert [pool.usd_per_gpu_hour for pool in fleet.pools] == [2, 0.5, 2]
    assert fleet.faults == (RandomCrashes(0.25, (1,)),)


def test_roles_keep_their_place_and_their_link_on_spot() -> None:
    hardware = built([on(BIG, tp=4, role="prefill"), on(BIG, tp=2, role="decode")])
    assert hardware.stages.tolist() == [1, 2, 1, 2]
    assert hardware.types.tolist() == [0, 0, 1, 1]
    pools = hardware.fleet(hardware.minimum).pools
    assert {pool.role for pool in pools if pool.link} == {"prefill"}
    assert [pool.usd_per_gpu_hour for pool in pools if pool.region == "east"] == [2, 2, 0.5, 0.5]


def test_without_spot_nothing_is_doubled_and_rows_of_today_on_spot_are_left_out() -> None:
    row = {"model": SMALL, "region": "east", "gpu": "H100-SXM"}
    today = [row | {"replicas": 3}, row | {"replicas": 2, "spot": True}]
    text = words([on(SMALL)], fleet={"today": today})
    with_spot, owned = build_hardware(text, spot=True), build_hardware(text)
    assert with_spot.today is not None and owned.today is not None
    assert with_spot.today[0, 0].tolist() == [3, 2]
    assert owned.today[0, 0].tolist() == [3]
    assert owned.has_one_column_per_gpu and not owned.spot.any()


def test_the_price_of_a_region_it_is_like_is_its_spot_price() -> None:
    regions = [
        {"name": "east", "like": "eastus", "capacity": {"A100-80GB": 8},
         "spot": {"A100-80GB": {"capacity": 8}}}
    ]  # fmt: skip
    hardware = built([on(SMALL, "A100-80GB")], regions=regions)
    owned, spot = hardware.usd_per_gpu_hour[0]
    assert 0 < spot < owned
    assert dict(hardware.provenance)["Spot price of A100-80GB in east"].kind == "published"
    regions[0] |= {"like": "us-east-1"}  # where none is known
    with pytest.raises(ScenarioError, match="east has no spot price for A100-80GB"):
        built([on(SMALL, "A100-80GB")], regions=regions)


TEXT = """version: 1
models: [llama-3.1-8b]
profiles:
  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 2}
regions:
  - {name: us-east, like: us-east-1, capacity: {A100-80GB: 64}SPOT}
tiers:
  - {name: chat, ttft_ms: 1000}
traffic: {sources: [{trace: t}]}
fleet:
  today:
    - {model: llama-3.1-8b, region: us-east, gpu: A100-80GB, replicas: 1TODAY}
"""


@pytest.mark.parametrize(
    ("spot", "today", "message"),
    [
        (", spot: {H200: {capacity: 8}}", "", "line 6: .*GPU 'H200' is not in this scenario"),
        ("", ", spot: true", "line 12: .*'us-east' does not offer A100-80GB as spot"),
        (", spot: {A100-80GB: {}}", "", "line 6: .*capacity"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(spot: str, today: str, message: str) -> None:
    text = TEXT.replace("SPOT", spot).replace("TODAY", today)
    with pytest.raises(ScenarioError, match=message):
        parse(text)


def test_a_share_of_spot_has_a_default() -> None:
    assert words([on(SMALL)]).objective.spot_share == 0.5
    assert np.isclose(words([on(SMALL)], objective={"spot_share": 0}).objective.spot_share, 0)
