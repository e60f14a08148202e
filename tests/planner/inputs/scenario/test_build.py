"""From the scenario's words to the core's values: built-in facts, bounds, and their refusals."""

from typing import Any

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema import Scenario
from tests.planner.domain import builders as make

MODEL, GPU = "llama-3.1-8b", "H100-SXM"
BUILT_IN = sorted(key for key in catalogue.profiles() if key[:2] == (MODEL, GPU))[0]


def scenario(**changes: Any) -> Scenario:
    data: dict[str, Any] = {
        "version": 1,
        "models": [MODEL],
        "profiles": [{"model": MODEL, "gpu": GPU, "tp": BUILT_IN[2]}],
        "regions": [
            {"name": "east", "capacity": {GPU: 9}, "usd_per_gpu_hour": {GPU: 2},
             "carbon_g_per_kwh": 400, "latency_ms": {"west": 40}},
            {"name": "west", "like": "us-west-2", "capacity": {GPU: 5}},
        ],
        "tiers": [{"name": "chat", "ttft_ms": 1000, "percentile": 99}],
        "traffic": {"sources": [{"trace": "t"}]},
    }  # fmt: skip
    return Scenario.model_validate(data | changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(ScenarioError) as problem:
        build_hardware(scenario(**changes))
    return str(problem.value)


def test_built_in_profiles_keep_their_limits_through_copies() -> None:
    written = scenario()
    copy = Scenario.model_validate(written.model_dump())
    for each in (written, copy):
        assert build_hardware(each).profiles[0, 0] == catalogue.profiles()[BUILT_IN]
    changed = scenario(profiles=[{"model": MODEL, "gpu": GPU, "tp": BUILT_IN[2], "max_batch": 7}])
    speed = build_hardware(changed).profiles[0, 0]
    assert speed.max_batch == 7
    assert speed.max_batch_tokens == catalogue.profiles()[BUILT_IN].max_batch_tokens


@pytest.mark.parametrize(
    ("ways", "there", "back"),
    [
        ({}, np.inf, np.inf),
        ({"east": {"west": 0.1}}, 0.04, np.inf),
        ({"east": {"west": 0.0}, "west": {"east": 1.0}}, np.inf, 0.04),
    ],
)
def test_a_way_that_is_not_named_is_closed(ways: Any, there: float, back: float) -> None:
    latency = build_hardware(scenario(objective={"reroute": ways})).latency_s
    np.testing.assert_allclose(latency, [[0, there], [back, 0]])


def test_what_a_region_does_not_say_comes_from_the_one_it_is_like() -> None:
    hardware = build_hardware(scenario())
    like = catalogue.regions()["us-west-2"]
    west = hardware.regions[1]
    assert (west.carbon_g_per_kwh, west.pue) == (like.carbon_g_per_kwh, like.pue)
    assert hardware.usd_per_gpu_hour[1, 0] == like.usd_per_gpu_hour[GPU]
    sources = dict(hardware.provenance)
    assert sources["Carbon intensity in west"].kind == "published"
    assert sources["Carbon intensity in east"].kind == "assumed"


def test_instances_are_bounded_by_gpus_and_by_what_today_says() -> None:
    tp2 = [{"model": MODEL, "gpu": GPU, "tp": 2}]
    hardware = build_hardware(scenario(profiles=tp2))
    assert hardware.maximum[0, :, 0].tolist() == [4, 2]
    assert hardware.minimum[0, :, 0].tolist() == [1, 1]
    assert hardware.today is None
    row = {"model": MODEL, "region": "east", "gpu": GPU, "replicas": 3}
    today = {"today": [row | {"minimum": 2, "maximum": 3}]}
    hardware = build_hardware(scenario(profiles=tp2, fleet=today))
    assert hardware.maximum[0, :, 0].tolist() == [3, 2]
    assert hardware.minimum[0, :, 0].tolist() == [2, 1]
    assert hardware.today is not None and hardware.today[0, :, 0].tolist() == [3, 0]
    assert "are more than the 4 that fit" in refusal(
        profiles=tp2, fleet={"today": [row | {"replicas": 5}]}
    )
    none = build_hardware(scenario(profiles=tp2, fleet={"today": [row | {"maximum": 0}]}))
    assert none.minimum[0, 0, 0] == 0  # never above the maximum


def test_gpus_may_be_unlimited() -> None:
    regions = [{"name": "east", "capacity": {"G": "unlimited"}, "usd_per_gpu_hour": {"G": 2},
                "carbon_g_per_kwh": 400, "pue": 1.2}]  # fmt: skip
    hardware = build_hardware(make.scenario(regions=regions))
    assert hardware.capacity_gpus.tolist() == [[8192]]
    with pytest.raises(ScenarioError, match="capacity"):
        make.scenario(regions=[{**regions[0], "capacity": {"G": "endless"}}])
