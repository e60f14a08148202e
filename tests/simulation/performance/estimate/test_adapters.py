"""What LoRA adapters take, by hand, by law and beside what was published."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.errors import SimulationError
from simulation.performance.estimate.estimate import Estimate, estimate
from simulation.performance.graph import operator_graph
from simulation.performance.memory import adapter_bytes, gpu_weight_bytes
from simulation.performance.profile import iteration_s
from simulation.performance.specs import Adapters, Arrangement
from simulation.performance.work import LowRank, iteration

LLAMA_2_7B = {"model": "llama-2-7b", "gpu": "A100-80GB", "isl": 512, "osl": 256, "rounds": 1e6}


def one(**fields: Any) -> Estimate:
    asked = deployment(LLAMA_2_7B | {"concurrency": 32} | fields)
    return estimate(asked, estimate_fit().calibration, efficiencies())


def test_adapters_weigh_what_their_factors_do() -> None:
    """Rank 16 on the seven projections of Llama-2-7B: 39,976,960 parameters, as PEFT counts."""
    shape = catalogue.shape("llama-2-7b")
    for active in (1, 8):
        weights = adapter_bytes(replace(shape, adapters=Adapters(16, active)), Arrangement())
        assert weights == active * 39_976_960 * 2
    plain, adapted = (
        gpu_weight_bytes(s, Arrangement(tp=2))
        for s in (shape, replace(shape, adapters=Adapters(16, 8)))
    )
    # One factor of each is split, the other whole on both GPUs.
    assert 8 * 39_976_960 < adapted - plain < 2 * 8 * 39_976_960


def test_those_that_are_used_are_read_and_every_row_has_one() -> None:
    graph = operator_graph(
        replace(catalogue.shape("llama-2-7b"), adapters=Adapters(16, 8)), Arrangement()
    )
    down = graph["output_projection_adapters_down"]
    assert isinstance(down, LowRank)
    work = down.work(iteration(np.array([0.0, 1.0, 1e6])))
    assert work.weight_bytes == pytest.approx(np.array([0.0, 1.0, 8.0]) * 16 * 4096 * 2)
    assert work.flops == pytest.approx(np.array([0.0, 1.0, 1e6]) * 2 * 16 * 4096)


def test_more_adapters_or_a_higher_rank_never_cost_less() -> None:
    plain = one()
    many = [[one(lora_rank=r, lora_active=a) for a in (1, 8, 32)] for r in (8, 64)]
    for name in ("decode_s", "prompt_s", "ttft_s", "tbt_s", "weight_bytes"):
        values = np.array([[getattr(e, name) for e in row] for row in many])
        assert (values > getattr(plain, name)).all(), name
        assert (np.diff(values, axis=0) >= 0).all() and (np.diff(values, axis=1) >= 0).all(), name
    assert (np.array([[e.tokens_per_s for e in row] for row in many]) < plain.tokens_per_s).all()


def test_a_token_takes_about_as_much_longer_as_was_published() -> None:
    """Punica (arXiv 2310.18547) on A100 80 GB: 2 ms a token for Llama-2-7B, rank 16, batch 32."""
    for active in (1, 32):
        more = one(lora_rank=16, lora_active=active).decode_s - one().decode_s
        assert 1e-3 < more < 4e-3


def test_sizes_and_plans_read_what_estimates_do() -> None:
    section = {"model": "llama-2-7b", "gpu": "A100-80GB", "kind": "roofline", "engine": "vllm"}
    model, gpu = catalogue.model("llama-2-7b"), catalogue.gpu("A100-80GB")
    adapters = {"lora_rank": 16, "lora_active": 32}
    plain, adapted = (
        speed_of(Profile.model_validate(section | more), model, gpu, NO_USER_FACTS)
        for more in ({}, adapters)
    )
    for profile, estimated in ((plain, one()), (adapted, one(**adapters))):
        decode = float(iteration_s(profile, 32.0, 32 * (512 + 128.0), 0.0, 0.0))
        assert decode == pytest.approx(estimated.decode_s, rel=0.02)
    kept = adapter_bytes(replace(catalogue.shape("llama-2-7b"), adapters=Adapters(16, 32)),
                         Arrangement())  # fmt: skip
    fewer = (plain.kv_capacity_tokens - adapted.kv_capacity_tokens) * model.kv_bytes_per_token
    assert fewer == pytest.approx(kept, rel=0.01)
    assert "32 LoRA adapters of rank 16" in adapted.provenance.source
    for wrong, words in (
        ({"lora_rank": 16}, "lora_active"),
        (adapters | {"kind": "linear", "engine": None}, "lora_rank"),
    ):
        with pytest.raises(ValueError, match=words):
            Profile.model_validate(section | wrong)


def test_adapters_are_said_and_bad_ones_are_a_sentence() -> None:
    assert any(
        "LoRA adapters of rank 16" in n for n in one(lora_rank=16, lora_active=4).assumptions
    )
    with pytest.raises(PlannerError, match="lora_active is missing"):
        one(lora_rank=16)
    with pytest.raises(PlannerError, match=r"lora_rank is 1\.5. Give a whole number"):
        one(lora_rank=1.5, lora_active=1)
    with pytest.raises(SimulationError, match="rank is 0"):
        one(lora_rank=0, lora_active=1)
    with pytest.raises(SimulationError, match="does not fit"):
        one(lora_rank=1024, lora_active=4096)
