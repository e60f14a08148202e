"""Laws of power by load: between idle and TDP, more with more work, less energy per token in a
larger batch; and the formula once by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.errors import SimulationError
from simulation.performance.graph import operator_graph
from simulation.performance.power import PowerAtLoad, PowerModel, load, share_of_tdp
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, Provenance
from simulation.performance.work import iteration

GPU = GpuSpec(
    "G", 80e9, 60.0, 400.0, 250.0, Provenance("assumed", "test"),
    bandwidth_bytes_s=2e12, peak_flops={"bf16": 4e14, "fp8": 8e14}, tdp_w=500.0,
)  # fmt: skip
SHAPE = ModelShape("m", 32, 4096, 128_256, 32, 8, 128, 14_336, 131_072)
ROUTED = replace(SHAPE, experts=64, experts_per_token=4, expert_intermediate=1024)
MODEL = PowerModel(
    floor=0.2, memory=0.6, cache=0.5, compute=1.4, memory_exponent=0.9, compute_exponent=0.6,
    prefill=0.85, prefill_efficiency=0.45, experts=0.05, block_experts=0.15, attention_dp=0.3,
    imbalance=0.1, gap=0.1, expert_bytes=1.2,
)  # fmt: skip


def power(shape: ModelShape = SHAPE, where: Arrangement | None = None) -> PowerAtLoad:
    return PowerAtLoad(MODEL, GPU, (operator_graph(shape, where or Arrangement()),))


@given(
    b=st.floats(0, 4096), context=st.floats(0, 1e5), p=st.floats(0, 8192),
    ms=st.floats(1e-3, 1e4), shape=st.sampled_from([SHAPE, ROUTED]),
    where=st.sampled_from([
        Arrangement(), Arrangement(tp=4, moe_tp=1, moe_ep=4),
        Arrangement(attention_dp=4, moe_ep=4, weights="fp8"), Arrangement(pp=2),
    ]),
)  # fmt: skip
def test_between_idle_and_tdp(b, context, p, ms, shape, where):
    w = power(shape, where).watts(ms / 1000, b, b * context, p, p * p / 2)
    assert 60.0 <= w <= 500.0


@pytest.mark.parametrize("shape", [SHAPE, ROUTED])
def test_more_work_in_the_same_time_draws_no_less(shape):
    curve = power(shape, Arrangement(tp=2, moe_tp=1, moe_ep=2))
    batch = np.arange(1.0, 400.0)
    assert (np.diff(curve.watts(0.05, batch, 1000 * batch)) >= 0).all()
    assert (np.diff(curve.watts(0.05, 8.0, 8.0 * np.arange(1, 5000, 100))) >= 0).all()
    tokens = np.arange(0.0, 2000.0, 10.0)
    assert (np.diff(curve.watts(0.05, 32.0, 32_000.0, tokens, tokens**2 / 2)) >= -1e-9).all()


@pytest.mark.parametrize("where", [Arrangement(tp=2), Arrangement(pp=2)])
def test_links_draw_theirs_wherever_an_instance_has_more_than_one_gpu(where):
    """Of 500 W, 0.04, and nothing on one GPU; far from the limit of the board."""
    for arrangement, more in ((where, 20.0), (Arrangement(), 0.0)):
        bare = power(SHAPE, arrangement)
        linked = replace(bare, model=replace(MODEL, link=0.04))
        grown = linked.watts(0.5, 8.0, 8000.0) - bare.watts(0.5, 8.0, 8000.0)
        assert grown == pytest.approx(more, rel=0.1)


def test_slower_iterations_draw_less():
    seconds = np.linspace(0.01, 1.0, 100)
    assert (np.diff(power().watts(seconds, 32.0, 32_000.0)) <= 0).all()


def test_energy_per_token_falls_with_the_batch():
    # Iterations that take what reading and computing takes: alpha + beta b.
    batch = np.arange(1.0, 512.0)
    seconds = 0.010 + 20e-6 * batch
    joules = power().watts(seconds, batch, 500 * batch) * seconds / batch
    assert (np.diff(joules) < 0).all()


def test_formula_by_hand():
    # W = 1e9 / (0.01 s x 2e12) = 0.05; K = 0.02; F = 1e12 / (0.01 x 4e14) = 0.25, no prefill.
    load_now = load(power().graphs[0], GPU, 0.01, iteration(1.0, 1.0))
    ones = np.ones_like(load_now.seconds)
    load_now = replace(
        load_now, weight_bytes=1e9 * ones, cache_bytes=4e8 * ones, decode_flops=1e12 * ones,
        prefill_flops=0 * ones,
    )  # fmt: skip
    # The peaks need 0.7 + 2.5 ms, twice that leaves a gap of 36% of the 10 ms.
    share = 0.2 + 0.6 * 0.05**0.9 + 0.5 * 0.02**0.9 + 1.4 * 0.25**0.6 - 0.1 * 0.36
    expected = (share**-8 + 0.98**-8) ** (-1 / 8)
    assert float(share_of_tdp(MODEL, load_now)) == pytest.approx(expected)
    # Half of the time prefills at 85% of TDP; the decodes then have half the time, and no gap.
    half = replace(load_now, prefill_flops=0.5 * 0.01 * 0.45 * 4e14 * ones)
    share = 0.2 + 0.6 * 0.1**0.9 + 0.5 * 0.04**0.9 + 1.4 * 0.5**0.6
    decode = (share**-8 + 0.98**-8) ** (-1 / 8)
    expected = 0.5 * max(0.85, decode) + 0.5 * decode
    assert float(share_of_tdp(MODEL, half)) == pytest.approx(expected)


def test_experts_of_one_gpu_are_always_balanced_and_few_tokens_are_not():
    graph = operator_graph(ROUTED, Arrangement(tp=8, moe_tp=1, moe_ep=8))
    balance = load(graph, GPU, 0.01, iteration(np.array([1.0, 8.0, 64.0, 1e5]), 100.0)).balance
    assert (np.diff(balance) > 0).all() and balance[-1] == pytest.approx(1.0)
    assert (
        float(load(operator_graph(ROUTED, Arrangement()), GPU, 0.01, iteration(1.0, 1.0)).balance)
        == 1.0
    )


def test_experts_that_a_kernel_widens_are_of_8_bits_in_triton_or_of_4_without_4_bit_arithmetic():
    def flag(weights: str, gpu: GpuSpec = GPU, shape: ModelShape = ROUTED) -> float:
        graph = operator_graph(shape, Arrangement(weights=weights))
        return float(load(graph, gpu, 0.01, iteration(8.0, 800.0)).block_experts)

    native = replace(GPU, peak_flops={**GPU.peak_flops, "fp4": 1.6e15})
    assert [flag("bf16"), flag("fp8"), flag("fp4"), flag("fp4", native)] == [0, 1, 1, 0]
    latent = replace(
        ROUTED, kv_lora_rank=512, q_lora_rank=1536, rope_head_dim=64, nope_head_dim=128,
        v_head_dim=128,
    )  # fmt: skip
    amd = replace(GPU, vendor="AMD")
    assert [flag("fp8", shape=latent), flag("fp8", amd), flag("fp4", amd)] == [0, 0, 1]


def test_what_is_not_known_is_said():
    with pytest.raises(SimulationError, match="bandwidth"):
        load(power().graphs[0], replace(GPU, bandwidth_bytes_s=None), 0.01, iteration(1.0, 1.0))
    with pytest.raises(SimulationError, match="TDP"):
        PowerAtLoad(MODEL, replace(GPU, tdp_w=None), power().graphs).watts(0.01, 1.0, 1.0)
    with pytest.raises(SimulationError, match="above 0"):
        power().watts(0.0, 1.0, 1.0)
