"""From a model's shape to a problem: what operators see, keep and hand over."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.performance.specs import GpuSpec, ModelShape, Provenance
from simulation.performance.work import Elementwise
from simulation.provisioning.algorithm1 import greedy_plan
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.interference import GEMM_MEMORY_BOUND, SHARED_KINDS
from simulation.provisioning.placement import place_plan
from simulation.provisioning.problem import critical_path
from simulation.provisioning.replicas import plan_whole_replicas
from simulation.provisioning.workload import PhaseLoad, phase_problem
from tests.simulation.performance.oracles import ideal_s

GPU = GpuSpec(
    name="test GPU",
    memory_bytes=80e9,
    idle_w=50,
    prefill_w=400,
    decode_w=300,
    provenance=Provenance("assumed", "round numbers"),
    bandwidth_bytes_s=2e12,
    peak_flops={"bf16": 300e12},
    link_bytes_s=300e9,
)
SHAPE = ModelShape(
    name="seven billion",
    layers=32,
    hidden=4096,
    vocab=32000,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    max_context=8192,
)


def timing(operator, it):
    """The roofline bound, and for elementwise operators, which it leaves out, their bytes."""
    if isinstance(operator, Elementwise):
        return operator.work(it).memory_bytes / GPU.bandwidth_bytes_s
    return ideal_s(operator, it, GPU)


def service(phase="prefill", requests_s=20.0, slo_s=1.0):
    return PhaseLoad(SHAPE, GPU, phase, requests_s, isl=1024, osl=200, slo_s=slo_s)


def test_decode_sees_a_token_per_iteration_and_prefill_requests():
    assert service().rate == 20.0
    assert service("decode").rate == 20.0 * 200
    assert service("decode").context == 1024 + 100


def test_products_of_few_rows_wait_for_memory():
    """A decode of up to 64 sequences reads weights; a prompt of 1,024 tokens computes.

    The head sees one row per sequence in both phases.
    """
    for phase, gemm in (("prefill", "gemm"), ("decode", GEMM_MEMORY_BOUND)):
        problem = phase_problem(service(phase), timing)
        kind = {
            name: SHARED_KINDS[shares.argmax()]
            for name, shares in zip(problem.names, problem.demand.kinds, strict=True)
        }
        gemms = {of for name, of in kind.items() if of.startswith("gemm") and "head" not in name}
        assert gemms == {gemm} and problem.demand.kinds.sum(axis=1) == pytest.approx(1.0)


def test_only_the_operators_of_the_phase_take_part():
    prefill = phase_problem(service(), timing).problem
    decode = phase_problem(service("decode", slo_s=0.1), timing).problem
    assert "attention_prefill" in prefill.names and "attention_decode" not in prefill.names
    assert "attention_decode" in decode.names and "attention_prefill" not in decode.names
    assert not any("all_reduce" in name for name in prefill.names)


def test_latency_is_that_of_all_layers_and_collectives_belong_to_an_operator():
    phase = phase_problem(service(), timing, batches=(1,), parallel=(1, 2))
    names = phase.problem.names
    gate_up = names.index("gate_up_projection")
    flops = 2 * 1024 * 4096 * 2 * 14336 * 32
    assert phase.problem.latency_s[gate_up, 0, 0] == pytest.approx(flops / 300e12)
    # On two GPUs half the product; the all-reduce is that of the projection before it.
    assert phase.problem.latency_s[gate_up, 0, 1] == pytest.approx(flops / 300e12 / 2)
    down = names.index("down_projection")
    half = phase.problem.latency_s[down, 0, 0] / 2
    reduce_s = 32 * 1024 * 4096 * 2 / 300e9  # one buffer over the link, two GPUs
    assert phase.problem.latency_s[down, 0, 1] == pytest.approx(half + reduce_s, rel=0.01)


def test_transfer_is_the_output_over_the_link_once_per_layer():
    phase = phase_problem(service(), timing, batches=(2,), parallel=(1,))
    qkv = phase.problem.names.index("qkv_projection")
    sent = 2 * 1024 * (32 + 2 * 8) * 128 * 2 * 32
    assert phase.problem.transfer_s[qkv, 0, 0] == pytest.approx(sent / 300e9)


def test_weights_and_kv_cache_of_a_replica_by_hand():
    phase = phase_problem(service(), timing, batches=(1,), parallel=(1,))
    # 20 requests/s for at most 1 s, 1024 tokens of 2 x 8 heads x 128 x 2 bytes x 32 layers.
    assert phase.kv_bytes[0] == pytest.approx(20 * 1024 * 2 * 8 * 128 * 2 * 32)
    layer = 4096 * (48 * 128 + 32 * 128) + 3 * 4096 * 14336 + 2 * 4096
    weights = 2 * (32 * layer + 2 * 32000 * 4096)
    assert weights < phase.replica_bytes[0, 0] < 1.05 * weights


def test_a_pass_of_a_replica_is_one_operator_after_the_other():
    """As in the engine: what could run side by side shares the replica's own GPUs."""
    phase = phase_problem(service(), timing)
    assert phase.replica_s == pytest.approx(phase.problem.latency_s.sum(axis=0))
    for b, p in np.ndindex(phase.replica_s.shape):
        path, _ = critical_path(phase.problem, phase.problem.latency_s[:, b, p])
        assert phase.replica_s[b, p] >= path * (1 - 1e-12)


def test_operators_need_fewer_bytes_than_whole_replicas_at_high_rates():
    phase = phase_problem(service(requests_s=200.0), timing)
    replicas = plan_whole_replicas(phase, 72e9)
    plan = greedy_plan(phase.problem)
    placed = place_plan(phase.problem, phase.demand, plan, 72e9)
    assert placed.feasible and exact_plan(phase.problem).slots <= plan.slots
    assert placed.memory_bytes.sum() < replicas.memory_bytes


def test_a_vision_encoder_brings_its_own_operators():
    tower = replace(SHAPE, name="tower", layers=4, hidden=1024, heads=16, kv_heads=16, head_dim=64)
    model = replace(SHAPE, encoder=tower)
    looks = replace(service(), shape=model, image_tokens=500.0)
    problem = phase_problem(looks, timing, batches=(1,), parallel=(1,)).problem
    assert any(name.startswith("encoder_") for name in problem.names)
    # Without images the tower has nothing to do, its collectives on two GPUs neither.
    blind = phase_problem(replace(looks, image_tokens=0.0), timing, batches=(1,), parallel=(1, 2))
    plain = phase_problem(service(), timing, batches=(1,), parallel=(1, 2))
    assert blind.problem.names == plain.problem.names
    assert blind.problem.latency_s == pytest.approx(plain.problem.latency_s)
