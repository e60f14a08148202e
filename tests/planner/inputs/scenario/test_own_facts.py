"""Scenarios that bring their own models, GPUs and carbon, and profiles that nobody measured."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from simulation.performance.memory import capacity_tokens
from simulation.performance.profile import iteration_s
from simulation.performance.specs import Arrangement, ModelShape
from tests.planner.inputs.catalogue.hf_configs import CONFIGS

MODEL, GPU = "Qwen/Qwen3-8B", "h100_sxm"
OWN_GPU = {"name": "our-gpu", "memory_gb": 96, "idle_w": 70, "prefill_w": 500, "decode_w": 330}
FAST = OWN_GPU | {"bandwidth_gb_s": 4000, "bf16_tflops": 900, "link_gb_s": 400, "family": "hopper"}
LLAMA = {"layers": 32, "hidden": 4096, "vocab": 128256, "heads": 32, "kv_heads": 8,
         "head_dim": 128, "intermediate": 14336, "max_context": 131072}  # fmt: skip


def hardware(model: Any = MODEL, gpu: str = GPU, **changes: Any) -> Hardware:
    """One model on one GPU type by a roofline; ``changes`` are of its profile, gpus and carbon."""
    gpus, carbon = changes.pop("gpus", []), changes.pop("carbon", 400)
    name = model if isinstance(model, str) else model["name"]
    region = {"name": "east", "capacity": {gpu: 64}, "usd_per_gpu_hour": {gpu: 2}}
    data: dict[str, Any] = {
        "version": 1,
        "gpus": gpus,
        "models": [model],
        "profiles": [{"model": name, "gpu": gpu, "kind": "roofline"} | changes],
        "regions": [region | carbon if isinstance(carbon, dict) else
                    region | {"carbon_g_per_kwh": carbon}],
        "tiers": [{"name": "chat", "ttft_ms": 1000}],
        "traffic": {"sources": [{"trace": "t"}]},
    }  # fmt: skip
    return build_hardware(Scenario.model_validate(data))


def refusal(*args: Any, **changes: Any) -> str:
    with pytest.raises((ScenarioError, ValidationError)) as problem:
        hardware(*args, **changes)
    return str(problem.value)


def test_any_model_runs_on_any_gpu_without_a_measurement() -> None:
    built = hardware()
    profile = built.profiles[0, 0]
    assert (profile.kind, profile.model, profile.gpu, profile.tp) == ("roofline", MODEL, GPU, 1)
    assert profile.provenance.kind == "modelled"
    assert built.models[0].name == MODEL and built.gpus[0].name == GPU
    # at least the time to read 16 GB at the published bandwidth, at most three times that
    assert 16.4e9 / 3.35e12 < iteration_s(profile, 1, 1000, 0, 0) < 3 * 16.4e9 / 3.35e12
    assert dict(built.provenance)[f"Memory of {MODEL}"].kind == "published"


def test_precision_and_arrangement_decide_speed_and_room() -> None:
    plain = hardware().profiles[0, 0]
    low = hardware(precision="fp8", kv_precision="fp8").profiles[0, 0]
    assert iteration_s(low, 8, 8000, 0, 0) < iteration_s(plain, 8, 8000, 0, 0)
    assert low.kv_capacity_tokens > 2 * plain.kv_capacity_tokens
    spread = hardware("deepseek-v3", "H200", precision="fp8", attention_dp=8, moe_ep=8)
    profile = spread.profiles[0, 0]
    assert profile.tp == 8
    assert spread.maximum[0, 0, 0] == 8  # of 64 GPUs
    where = Arrangement(attention_dp=8, moe_ep=8, weights="fp8")
    shape, gpu = catalogue.shape("deepseek-v3"), catalogue.gpu("H200")
    assert profile.kv_capacity_tokens == capacity_tokens(shape, gpu, where, 4096, 2048)


def test_a_model_in_full_by_its_shape_or_its_config() -> None:
    shape = {"name": "ours", "shape": LLAMA, "source": "our training run"}
    config = {"name": "ours", "config": CONFIGS["llama-3.1-8b"]}
    built_in, known = catalogue.model("llama-3.1-8b"), catalogue.shape("llama-3.1-8b")
    for section in (shape, config):
        spec = hardware(section).models[0]
        assert spec.weight_bytes == built_in.weight_bytes
        assert spec.kv_bytes_per_token == 131_072
        assert spec.provenance.kind == "assumed"
        assert spec.shape == replace(known, name="ours")


def test_a_hybrid_in_full_by_its_shape() -> None:
    known = catalogue.shape("granite-4.0-h-small")
    default = {field.name: field.default for field in fields(ModelShape)}
    stated = {name: value for name in default if (value := getattr(known, name)) != default[name]}
    del stated["name"]
    spec = hardware({"name": "ours", "shape": stated, "source": "ours"}).models[0]
    assert spec.shape == replace(known, name="ours")
    assert spec.kv_bytes_per_token == catalogue.model("granite-4.0-h-small").kv_bytes_per_token


def test_a_gpu_in_full_runs_a_roofline_where_its_peaks_are_given() -> None:
    profile = hardware(gpu="our-gpu", gpus=[FAST]).profiles[0, 0]
    assert iteration_s(profile, 1, 1000, 0, 0) > 16.4e9 / 4e12
    assert "our-gpu" in refusal(gpu="our-gpu", gpus=[OWN_GPU])


def test_names_that_tools_use_find_built_in_profiles_and_prices() -> None:
    key = next(k for k in catalogue.profiles() if k[:2] == ("llama-3.1-8b", "H100-SXM"))
    names = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-80gb"}
    data = {
        "version": 1,
        "models": [names["model"]],
        "profiles": [names | {"tp": key[2]}],
        "regions": [{"name": "east", "like": "us-east-1", "capacity": {"h100-80gb": 8}}],
        "tiers": [{"name": "chat", "ttft_ms": 1000}],
        "traffic": {"sources": [{"trace": "t"}]},
    }
    built = build_hardware(Scenario.model_validate(data))
    profile = built.profiles[0, 0]
    assert (profile.model, profile.gpu) == (names["model"], "h100-80gb")
    assert (profile.curve.values == catalogue.profiles()[key].curve.values).all()
    assert built.usd_per_gpu_hour[0, 0] == 6.88


def test_carbon_may_be_given_by_hour() -> None:
    hourly = [300.0] * 12 + [100.0] * 12
    region = hardware(carbon=hourly).regions[0]
    assert region.carbon_g_per_kwh == 200
    assert region.carbon_hourly_g_per_kwh == tuple(hourly)
    assert "24 items" in refusal(carbon=hourly[:23])


def test_a_region_takes_the_daily_cycle_of_the_one_it_is_like() -> None:
    built = hardware(carbon={"like": "eu-central-1"})
    region, like = built.regions[0], catalogue.regions()["eu-central-1"]
    assert region.carbon_hourly_g_per_kwh == like.carbon_hourly is not None
    assert dict(built.provenance)["Daily cycle of carbon in east"].kind == "modelled"
    assert hardware(carbon={"like": "us-east-1"}).regions[0].carbon_hourly_g_per_kwh is None


@pytest.mark.parametrize(
    ("args", "changes", "says"),
    [
        (("llama-3.1-405b",), {"tp": 8}, "does not fit on 8 x h100_sxm: its weights take 101 GB"),
        (("Qwen3-9B",), {}, "'Qwen3-9B' is not built in. Give it in full, or use one of qwen"),
        ((), {"alpha_ms": 1, "beta_ms": 1, "gamma_ms": 1, "delta_ms": 1}, "is computed"),
        ((), {"kind": "linear", "attention_dp": 8}, "attention_dp above 1 needs kind: roofline"),
        ((), {"kind": "linear"}, "no built-in profile of Qwen/Qwen3-8B on 1 x h100_sxm. Give"),
        (({"name": "mem", "weight_gb": 16, "kv_bytes_per_token": 1e5, "max_context": 4096},), {},
         "Give the model by shape or config instead of weight_gb"),
        (({"name": "x", "config": {"hidden_size": 8}},), {}, "models: config.json of x: "),
        (({"name": "x", "shape": LLAMA | {"experts": 4}},), {}, "experts_per_token must be 1 to 4"),
        (({"name": "x", "shape": LLAMA, "config": {}},), {}, "give only one of"),
        ((MODEL, "half"), {"gpus": [{"name": "half", "bf16_tflops": 9}]}, "give memory_gb"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(args: Any, changes: dict[str, Any], says: str) -> None:
    assert says in refusal(*args, **changes)


def test_power_and_hosts_are_found_by_any_name_and_follow_the_profile() -> None:
    """A GPU under another tool's name draws what it draws; a roofline knows its own precision."""
    alias = hardware(precision="fp8", tp=2).fleet(np.ones((1, 1, 1), np.int64)).pools[0]
    plain = hardware(gpu="H100-SXM", precision="fp8", tp=2).fleet(np.ones((1, 1, 1), np.int64))
    assert alias.power is not None and plain.pools[0].power is not None
    assert alias.power.model == plain.pools[0].power.model
    assert alias.power.graphs[0].arrangement.weights == "fp8"
    assert alias.host_w == plain.pools[0].host_w > 0
