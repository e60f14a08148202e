"""Columns of a fleet: GPU types as they were, variants and roles apart, GPUs shared."""

from typing import Any

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario

BIG, SMALL = "llama-3.1-70b", "llama-3.1-8b"
ROOFLINE = {"kind": "roofline"}


def on(model: str, gpu: str = "H100-SXM", tp: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": model, "gpu": gpu, "tp": tp} | ROOFLINE | more


def scenario(profiles: list[dict[str, Any]], **changes: Any) -> Scenario:
    gpus = {profile["gpu"] for profile in profiles}
    region = {"usd_per_gpu_hour": dict.fromkeys(gpus, 2), "carbon_g_per_kwh": 400}
    data: dict[str, Any] = {
        "version": 1,
        "models": sorted({profile["model"] for profile in profiles}, reverse=True),
        "profiles": profiles,
        "regions": [
            {"name": "east", "capacity": dict.fromkeys(gpus, 32)} | region,
            {"name": "west", "capacity": dict.fromkeys(gpus, 9)} | region,
        ],
        "tiers": [{"name": "chat", "ttft_ms": 1000}],
        "traffic": {"sources": [{"trace": "t"}]},
    }
    return Scenario.model_validate(data | changes)


def built(profiles: list[dict[str, Any]], **changes: Any) -> Hardware:
    return build_hardware(scenario(profiles, **changes))


def test_one_profile_a_type_makes_each_type_a_column_whatever_its_tp() -> None:
    hardware = built([on(SMALL), on(BIG, tp=4), on(SMALL, "A100-80GB"), on(BIG, "A100-80GB", 8)])
    assert [column.label for column in hardware.columns] == ["H100-SXM", "A100-80GB"]
    assert hardware.has_one_column_per_gpu and hardware.types.tolist() == [0, 1]
    assert hardware.arrangement(hardware.models.index(hardware.models[0]), 0) == "1 x H100-SXM"
    assert hardware.maximum[1].tolist() == [[8, 4], [2, 1]]


def test_an_estimated_profile_needs_a_tp_that_divides_the_attention_heads() -> None:
    with pytest.raises(ScenarioError, match="64 attention heads"):
        built([on(BIG, tp=3)])
    assert built([on(BIG, tp=2)]).arrangement(0, 0) == "2 x H100-SXM"


def test_variants_are_columns_of_one_type_and_share_its_gpus() -> None:
    hardware = built([on(BIG, tp=4), on(BIG, tp=8), on(BIG, tp=4, precision="fp8"), on(SMALL)])
    labels = [column.label for column in hardware.columns]
    assert labels == ["4 x H100-SXM", "8 x H100-SXM", "4 x H100-SXM, fp8", "1 x H100-SXM"]
    assert not hardware.has_one_column_per_gpu and hardware.types.tolist() == [0, 0, 0, 0]
    assert hardware.capacity_gpus.tolist() == [[32], [9]]
    assert hardware.usd_per_gpu_hour.shape == (2, 4)
    small = [model.name for model in hardware.models].index(SMALL)
    assert hardware.maximum[1 - small].tolist() == [[8, 4, 8, 0], [2, 1, 2, 0]]
    assert hardware.minimum[1 - small].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]  # the cheapest
    pools = hardware.fleet(hardware.minimum).pools
    assert len(pools) == 8 and {pool.role for pool in pools} == {"both"}


def test_prefill_and_decode_pools_have_a_link_and_a_minimum_each() -> None:
    hardware = built([on(BIG, tp=8, role="prefill"), on(BIG, tp=4, role="decode"), on(SMALL)])
    labels = [column.label for column in hardware.columns]
    assert labels == ["H100-SXM, prefill", "H100-SXM, decode", "H100-SXM"]
    assert hardware.stages.tolist() == [1, 2, 0]
    assert [hardware.role(g) for g in range(3)] == ["prefill", "decode", "mixed"]
    big = [model.name for model in hardware.models].index(BIG)
    assert hardware.minimum[big].tolist() == [[1, 1, 0], [1, 1, 0]]
    pools = {pool.role: pool for pool in hardware.fleet(hardware.minimum).pools}
    link = pools["prefill"].link
    assert link is not None and pools["decode"].link is None
    gpu = hardware.gpus[0]
    assert gpu.network_bytes_s is not None
    assert link.bytes_s == pytest.approx(8 * gpu.network_bytes_s)
    assert link.kv_bytes_per_token == hardware.models[big].kv_bytes_per_token
    assert (
        dict(hardware.provenance)["KV transfer of llama-3.1-70b from prefill on H100-SXM"].kind
        == "assumed"
    )
    # 3 prefill instances of 100 and 5 decode instances of 50 together carry what decodes carry.
    theta = np.array([100.0, 50.0, 0.0])
    assert hardware.capacity_of_region(np.array([3, 5, 0]) * theta) == 250.0


def test_a_prefill_pool_has_no_room_where_no_decode_pool_fits() -> None:
    hardware = built([on(BIG, tp=8, role="prefill"), on(BIG, tp=16, role="decode")])
    assert hardware.maximum[0].tolist() == [[4, 2], [0, 0]]  # west has 9 GPUs
    assert {pool.region for pool in hardware.fleet(hardware.minimum).pools} == {"east"}


def test_todays_rows_name_the_variant_they_mean() -> None:
    profiles = [on(BIG, tp=4), on(BIG, tp=8, role="prefill"), on(BIG, tp=8, role="decode")]
    row = {"model": BIG, "region": "east", "gpu": "H100-SXM", "replicas": 1}

    def today(*rows: dict[str, Any]) -> Hardware:
        return built(profiles, fleet={"today": [row | more for more in rows]})

    hardware = today({"tp": 4}, {"role": "decode", "replicas": 2}).today
    assert hardware is not None and hardware[0, 0].tolist() == [1, 0, 2]
    with pytest.raises(ScenarioError, match=r"llama-3.1-70b, H100-SXM"):
        today({"tp": 8})
    with pytest.raises(ScenarioError, match=r"tp 4, bf16"):
        today({"tp": 2})


def test_a_gpu_without_a_known_network_is_refused_as_a_sender() -> None:
    gpu = {"name": "mine", "memory_gb": 80, "idle_w": 1, "prefill_w": 2, "decode_w": 2}
    speed: dict[str, Any] = {
        "alpha_ms": 9,
        "beta_ms": 1,
        "gamma_ms": 9,
        "delta_ms": 1,
        "kind": "linear",
    }
    profiles = [on(SMALL, "mine", role=role, **speed) for role in ("prefill", "decode")]
    with pytest.raises(ScenarioError, match=r"network_gb_s"):
        built(profiles, gpus=[gpu])
    serving = [{"kv_transfer": {"gb_s": 25, "shared_gb_s": 200}}]
    link = built(profiles, gpus=[gpu], serving=serving).links[0, 0]
    assert (link.bytes_s, link.shared_bytes_s) == (25e9, 200e9)
