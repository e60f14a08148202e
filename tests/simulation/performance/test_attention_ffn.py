"""Attention and experts on GPUs of their own: limits, an example by hand, what is conserved."""

from dataclasses import replace

import numpy as np
import pytest

from planner.inputs.catalogue import gpus, models
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.errors import SimulationError
from simulation.performance.attention_ffn import (
    AttentionFfn,
    AttentionFfnProfile,
    attention_ffn_profile,
    kv_tokens,
    side_bytes,
)
from simulation.performance.graph import operator_graph
from simulation.performance.memory import gpu_weight_bytes
from simulation.performance.parameters import feed_forward_layers
from simulation.performance.profile import iteration_s
from simulation.performance.roofline import OperatorTiming
from simulation.performance.specs import Arrangement, EngineSettings, ModelShape
from simulation.performance.work import iteration

GPU = gpus()["H20"]
MOE = models()["qwen3-235b-a22b"].shape
FP8 = Arrangement(weights="fp8")
FREE = {"bytes_s": np.inf, "latency_s": 0.0}
TOKENS = np.array([1.0, 8.0, 64.0, 512.0])
CONTEXT = 1024.0  # a knot of the curve


def made(
    split: AttentionFfn, where: Arrangement = FP8, shape: ModelShape | None = MOE
) -> AttentionFfnProfile:
    assert shape is not None
    engine = EngineSettings(1024, 8192, kv_tokens(shape, GPU, where, split, 4096, 8192))
    return attention_ffn_profile(shape, GPU, where, split, efficiencies(), engine)


def test_a_request_waits_the_engine_s_time_before_its_first_iteration() -> None:
    assert MOE is not None
    engine = EngineSettings(64, 8192, 100_000, start_s=0.07)
    profile = attention_ffn_profile(
        MOE, GPU, FP8, AttentionFfn(8, 8, **FREE), efficiencies(), engine
    )
    assert profile.start_s == engine.start_s


def decode_s(split: AttentionFfn, tokens: np.ndarray = TOKENS) -> np.ndarray:
    return iteration_s(made(split), tokens, tokens * CONTEXT, 0.0, 0.0)


def test_one_micro_batch_and_a_free_way_is_the_ordinary_instance_without_its_collectives() -> None:
    assert MOE is not None
    n = 8
    graph = operator_graph(MOE, replace(FP8, attention_dp=n, moe_ep=n))
    it = iteration(decodes=TOKENS, decode_context=TOKENS * CONTEXT)
    ordinary = np.zeros(TOKENS.size)
    for operator in graph.operators:
        if operator.name not in ("dispatch", "combine") and operator.axis in (
            "tokens", "decodes", "logits"
        ):  # fmt: skip
            ordinary += operator.count * OperatorTiming(GPU, efficiencies())(operator, it)
    apart = decode_s(AttentionFfn(n, n, micro_batches=1, **FREE))
    np.testing.assert_allclose(apart, ordinary, rtol=1e-9)


def test_experts_on_very_many_gpus_leave_attention_alone() -> None:
    """With a free way and the feed-forward side nearly idle an iteration is its attention, in one
    micro-batch: more of them would only cut batches."""
    assert MOE is not None
    tiny = replace(MOE, expert_intermediate=1, experts=128)
    alone = made(AttentionFfn(8, 128, **FREE), shape=tiny)
    many = made(AttentionFfn(8, 128, micro_batches=6, **FREE), shape=tiny)
    seconds = [iteration_s(p, TOKENS, TOKENS * CONTEXT, 0.0, 0.0) for p in (alone, many)]
    np.testing.assert_allclose(seconds[0], seconds[1], rtol=0.02)


def test_two_equal_sides_and_a_free_way_by_hand() -> None:
    """Per layer 2 micro-batches take max(2 max(A, F), A + F); from the profile's own operators."""
    assert MOE is not None
    split = AttentionFfn(8, 8, micro_batches=2, bytes_s=1e9, latency_s=1e-5)
    profile = made(split)
    tokens = np.array([64.0])
    ends = {"embedding", "final_norm", "output_head"}

    def side(graph: object, of: float) -> float:
        it = iteration(decodes=[of], decode_context=[of * CONTEXT])
        return sum(
            float(o.count * OperatorTiming(GPU, efficiencies())(o, it)[0])
            for o in graph.operators  # type: ignore[attr-defined]
            if o.name not in ends
        )

    def layer(m: int) -> float:
        of = 64.0 / m
        a, f = side(profile.attention, of) / MOE.layers, side(profile.ffn, of) / MOE.layers
        copies = 8 * (1 - (1 - 1 / 8) ** 8)  # GPUs that one of a token's 8 experts is on
        # 8 GPUs send at 1 GB/s each; 8 bits out, 16 back.
        out = 1e-5 + of * copies * 4096 * 1 / 8e9
        back = 1e-5 + of * copies * 4096 * 2 / 8e9
        stations = (a, out, f, back)
        return max(m * max(stations), sum(stations))

    it = iteration(decodes=[64.0], decode_context=[64 * CONTEXT])
    outside = sum(
        float(o.count * OperatorTiming(GPU, efficiencies())(o, it)[0])
        for o in profile.attention.operators
        if o.name in ends
    )
    expected = MOE.layers * min(layer(1), layer(2)) + outside
    seconds = iteration_s(profile, tokens, tokens * CONTEXT, 0.0, 0.0)
    np.testing.assert_allclose(seconds, [expected], rtol=1e-9)


def test_weights_are_conserved_and_the_cache_is_on_the_attention_side() -> None:
    assert MOE is not None
    for f in (4, 8, 16):
        attention, experts = side_bytes(MOE, FP8, AttentionFfn(1, f))
        moe, _ = feed_forward_layers(MOE)
        assert moe == MOE.layers  # neither dense nor shared: nothing is kept twice
        assert attention + f * experts == pytest.approx(gpu_weight_bytes(MOE, FP8), rel=1e-12)
    less = made(AttentionFfn(4, 8)).kv_capacity_tokens
    assert made(AttentionFfn(8, 8)).kv_capacity_tokens == 2 * less
    assert made(AttentionFfn(4, 16)).kv_capacity_tokens == less


def test_a_faster_way_is_never_slower_and_neither_are_more_micro_batches() -> None:
    before = np.full(TOKENS.size, np.inf)
    for rate in (1e9, 1e10, 5e10, 4.5e11, np.inf):
        seconds = decode_s(AttentionFfn(8, 8, bytes_s=rate, latency_s=1e-5))
        assert (seconds <= before * (1 + 1e-12)).all()
        before = seconds
    before = np.full(TOKENS.size, np.inf)
    for m in (1, 2, 3, 4):
        seconds = decode_s(AttentionFfn(8, 8, micro_batches=m))
        assert (seconds <= before * (1 + 1e-12)).all()
        before = seconds


def test_more_tokens_never_take_less_time() -> None:
    tokens = np.arange(1.0, 600.0)
    assert (np.diff(decode_s(AttentionFfn(8, 8), tokens)) >= -1e-9).all()


@pytest.mark.parametrize(
    ("split", "where", "shape", "words"),
    [
        (AttentionFfn(4, 4), FP8, models()["llama-3.1-70b"].shape, "no experts"),
        (AttentionFfn(6, 4), replace(FP8, tp=4), MOE, "multiple"),
        (AttentionFfn(4, 256), FP8, MOE, "128 experts"),
        (AttentionFfn(4, 1), FP8, MOE, "1 x H20 for ffn"),
        (AttentionFfn(4, 4), replace(FP8, moe_ep=4), MOE, "Leave out pp"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(
    split: AttentionFfn, where: Arrangement, shape: ModelShape, words: str
) -> None:
    with pytest.raises(SimulationError, match=words):
        made(split, where, shape)
