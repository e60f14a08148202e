"""Roofline and operator profiles: bounds, growth, sums, provenance."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.curves import Curve, evaluate, overlapped_seconds
from simulation.performance.efficiency import KINDS, Efficiencies, Efficiency, computed_in
from simulation.performance.graph import operator_graph
from simulation.performance.kernel_tables import KernelRows, kernels
from simulation.performance.profile import Profile, iteration_s, measured_range
from simulation.performance.roofline import (
    KERNEL_SPREAD,
    mean_over_time,
    operator_profile,
    roofline_profile,
)
from simulation.performance.specs import (
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Provenance,
)
from simulation.performance.work import iteration
from tests.simulation.performance.oracles import encoder_s, ideal_curve, operator_s
from tests.simulation.performance.test_graph import DEEPSEEK, HYBRID, LLAMA_8B, MIXTRAL, VISION

GPU = GpuSpec(
    "Test", 80e9, 100, 700, 400, Provenance("published", "test"), bandwidth_bytes_s=3e12,
    peak_flops={"bf16": 1e15, "fp8": 2e15}, link_bytes_s=4e11, network_bytes_s=5e10,
    family="hopper",
)  # fmt: skip
FACTORS = Efficiencies(
    tuple(
        Efficiency(kind, "hopper", "bf16", 5e-6, 0.0, 0.0, 0.7, 0.8, 2.0, 0.1, 100, "test")
        for kind in KINDS
    ),
    dict.fromkeys(KINDS, 0.4),
)
LIMITS = EngineSettings(256, 8192, 500_000)
CASES = [
    (LLAMA_8B, Arrangement()),
    (LLAMA_8B, Arrangement(tp=4, weights="fp8", kv_cache="fp8")),
    (MIXTRAL, Arrangement(tp=2, moe_tp=2)),
    (DEEPSEEK, Arrangement(attention_dp=8, moe_ep=8, weights="fp8")),
    (DEEPSEEK, Arrangement(tp=4, pp=2, moe_tp=4, weights="fp8")),
    (HYBRID, Arrangement()),
]


def random_iterations(size: int = 300) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(3)
    b, p = draw.integers(0, 400, size).astype(float), draw.integers(0, 8000, size).astype(float)
    b[:50], p[50:100] = 0, 0
    keys, before = draw.integers(1, 30_000, (2, size))
    return b, b * keys, p, p * (before + p / 2)


def test_it_is_a_profile() -> None:
    profile = roofline_profile(LLAMA_8B, GPU, Arrangement(tp=2), FACTORS, LIMITS)
    assert isinstance(profile, Profile)
    assert (profile.kind, profile.tp, profile.provenance.kind) == ("roofline", 2, "modelled")


@pytest.mark.parametrize(("shape", "where"), CASES)
def test_the_bound_is_never_beaten(shape: ModelShape, where: Arrangement) -> None:
    profile = roofline_profile(shape, GPU, where, FACTORS, LIMITS)
    amounts = random_iterations()
    least = evaluate(ideal_curve(shape, GPU, where), *amounts)
    assert (iteration_s(profile, *amounts) >= least * (1 - 1e-12)).all()


@pytest.mark.parametrize(("shape", "where"), CASES)
def test_an_iteration_grows_with_every_argument(shape: ModelShape, where: Arrangement) -> None:
    curve = roofline_profile(shape, GPU, where, FACTORS, LIMITS).curve
    b, c, p, a = random_iterations()
    base = evaluate(curve, b, c, p, a)
    assert (evaluate(curve, b, c * 1.3, p, a) >= base * (1 - 1e-12)).all()
    assert (evaluate(curve, b, c, p, a * 1.3) >= base * (1 - 1e-12)).all()
    keys = np.divide(c, b, out=np.full_like(b, 500.0), where=b > 0)
    assert (evaluate(curve, b + 7, (b + 7) * keys, p, a) >= base * (1 - 1e-12)).all()
    past = np.divide(a, p, out=np.full_like(p, 500.0), where=p > 0)
    assert (evaluate(curve, b, c, p + 100, (p + 100) * past) >= base * (1 - 1e-12)).all()


@pytest.mark.parametrize(("shape", "where"), CASES)
def test_the_curve_is_the_sum_over_the_operators(shape: ModelShape, where: Arrangement) -> None:
    """At knots exactly; where both decodes and prompts run, the output head is read once."""
    profile = roofline_profile(shape, GPU, where, FACTORS, replace(LIMITS, overhead_s=1e-3))
    for amounts in ((64.0, 64 * 2048.0, 0.0, 0.0), (0.0, 0.0, 1024.0, 1024 * 512.0)):
        parts = operator_s(profile, iteration(*amounts))
        total = sum(float(part) for part in parts.values()) + 1e-3
        assert float(iteration_s(profile, *amounts)) == pytest.approx(total, rel=1e-9)
    between = (61.0, 61 * 2500.0, 0.0, 0.0)
    parts = operator_s(profile, iteration(*between))
    total = sum(float(part) for part in parts.values()) + 1e-3
    assert float(iteration_s(profile, *between)) == pytest.approx(total, rel=0.02)


def test_the_encoder_is_timed_apart() -> None:
    seen = roofline_profile(VISION, GPU, Arrangement(), FACTORS, LIMITS)
    blind = roofline_profile(replace(VISION, encoder=None), GPU, Arrangement(), FACTORS, LIMITS)
    np.testing.assert_array_equal(seen.curve.values, blind.curve.values)
    assert encoder_s(seen, 4096.0, 1024.0) > encoder_s(seen, 1024.0, 1024.0) > 0
    assert encoder_s(blind, 4096.0, 1024.0) == 0


def test_a_family_without_measurements_states_a_wider_spread() -> None:
    measured = roofline_profile(LLAMA_8B, GPU, Arrangement(), FACTORS, LIMITS)
    other = replace(GPU, name="Other", family="cdna3")
    borrowed = roofline_profile(LLAMA_8B, other, Arrangement(), FACTORS, LIMITS)
    assert measured.spread == pytest.approx(0.1)
    assert borrowed.spread == pytest.approx(0.4)
    assert "hopper" in borrowed.provenance.source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth_bytes_s": None}, "Add bandwidth_bytes_s"),
        ({"peak_flops": {}}, "Add peak_flops"),
        ({"link_bytes_s": None, "network_bytes_s": None}, "Add link_bytes_s"),
    ],
)
def test_what_is_not_published_is_asked_for(change: dict[str, object], words: str) -> None:
    gpu = replace(GPU, **change)  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=words):
        roofline_profile(LLAMA_8B, gpu, Arrangement(tp=2), FACTORS, LIMITS)


def test_weights_of_a_precision_without_units_are_computed_in_a_wider_one() -> None:
    old = replace(GPU, peak_flops={"bf16": 1e15})
    amounts = (0.0, 0.0, 8192.0, 8192 * 10.0)
    slow, fast = (
        float(
            iteration_s(
                roofline_profile(LLAMA_8B, gpu, Arrangement(weights="fp8"), FACTORS, LIMITS),
                *amounts,
            )
        )
        for gpu in (old, GPU)
    )
    assert slow > 1.5 * fast


def test_a_gpu_without_units_for_4_bits_unpacks_experts_to_16() -> None:
    native = replace(GPU, peak_flops={**GPU.peak_flops, "fp4": 4e15})
    precisions = {"fp4": ("fp4", "fp8", "bf16"), "int4": ("bf16",)}
    for weights, computed in precisions.items():
        experts = operator_graph(MIXTRAL, Arrangement(weights=weights))["experts"]
        assert computed_in(experts, native) == computed
        assert computed_in(experts, GPU) == ("bf16",)
    dense = operator_graph(LLAMA_8B, Arrangement(weights="fp4"))["qkv_projection"]
    assert computed_in(dense, GPU) == ("fp8", "bf16")


def test_time_of_reading_and_computing_lies_between_the_longer_and_the_sum() -> None:
    a, b = np.array([1.0, 1.0, 0.0]), np.array([1.0, 3.0, 0.0])
    for sharpness in (1.0, 2.0, 20.0):
        both = overlapped_seconds(a, b, sharpness)
        assert (both >= np.maximum(a, b)).all()
        assert (both <= a + b + 1e-15).all()
    np.testing.assert_allclose(overlapped_seconds(a, b, 1.0), a + b, atol=1e-29)


def synthetic(scale: float) -> list[KernelRows]:
    """Products and decode attention of a GPU where everything takes ``scale`` times its bytes."""
    m, n, k = np.meshgrid([1.0, 256, 65536], [256.0, 65536], [256.0, 65536], indexing="ij")
    c = {"m": m.ravel(), "n": n.ravel(), "k": k.ravel()}
    gemm = KernelRows("gemm", "bf16", c, scale * 2e-12 * c["n"] * c["k"])
    b, s = (x.ravel() for x in np.meshgrid([1.0, 1024], [1.0, 65536], indexing="ij"))
    fixed = {"heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
    columns = {"batch": b, "context": s, **{x: np.full(4, v) for x, v in fixed.items()}}
    decode = KernelRows("attention_decode", "bf16", columns, scale * 4e-9 * b * s)
    return [gemm, decode]


def test_an_operator_profile_sums_its_kernels_and_knows_their_range() -> None:
    table = kernels("Test", "made up", synthetic(1.0))
    profile = operator_profile(LLAMA_8B, GPU, Arrangement(), table, FACTORS, LIMITS)
    it = iteration(32.0, 32 * 1000.0)
    parts = operator_s(profile, it)
    assert float(parts["output_projection"]) == pytest.approx(32 * 2e-12 * 4096 * 4096, rel=1e-6)
    assert float(parts["attention_decode"]) == pytest.approx(32 * 4e-9 * 32 * 1000, rel=1e-6)
    assert profile.kind == "operator"
    assert profile.provenance.kind == "measured"
    share = mean_over_time(profile.graph, profile.timing, lambda o: table.read(o, it) is not None)
    assert 0.9 < share < 1
    assert profile.spread == pytest.approx(share * KERNEL_SPREAD + (1 - share) * 0.1)
    inside = measured_range(profile, [32, 32, 5000], [32e3, 32 * 1e5, 5e6], 0, 0)
    np.testing.assert_array_equal(inside, [True, False, False])


def test_slower_kernels_make_a_slower_profile() -> None:
    def seconds(profile: GraphProfile | Curve) -> np.ndarray:
        curve = profile if isinstance(profile, Curve) else profile.curve
        return evaluate(curve, *random_iterations())

    fast, slow = (
        operator_profile(
            LLAMA_8B, GPU, Arrangement(), kernels("Test", "", synthetic(s)), FACTORS, LIMITS
        )
        for s in (1.0, 2.0)
    )
    assert (seconds(slow) >= seconds(fast)).all()


def test_operators_by_name() -> None:
    with pytest.raises(SimulationError, match="no operator"):
        operator_graph(LLAMA_8B, Arrangement())["sampler"]
