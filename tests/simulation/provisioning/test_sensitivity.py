"""What grows with length, batch, rate and a smaller share of the GPU, and how fast."""

import numpy as np
import pytest

from simulation.provisioning.sensitivity import sensitivity
from simulation.provisioning.workload import phase_problem
from simulation.sizing.queueing import mmc_mean_wait
from tests.simulation.provisioning.test_workload import GPU, SHAPE, service, timing


def of(phase, slo_s):
    return sensitivity(
        service(phase, slo_s=slo_s),
        lambda s: phase_problem(s, timing, batches=(1, 2, 8), parallel=(1,)),
        lengths=(1024, 2048, 8192),
        rates=(1.0, 10.0, 100.0),
    )


def test_attention_is_quadratic_in_the_prompt_and_products_are_linear():
    curves = of("prefill", 1.0)
    attention = curves.names.index("attention_prefill")
    product = curves.names.index("gate_up_projection")
    assert curves.latency_by_length[attention] == pytest.approx([1, 4, 64])
    assert curves.latency_by_length[product] == pytest.approx([1, 2, 8])
    assert curves.latency_by_batch[product] == pytest.approx([1, 2, 8])
    # KV cache of a prompt: 2 x 8 heads x 128 x 2 bytes x 32 layers a token, beside what it touches.
    kept = 8192 * 2 * 8 * 128 * 2 * 32
    assert curves.memory_by_length[attention, 2] >= kept
    assert (np.diff(curves.memory_by_length, axis=1) >= 0).all()


def test_decode_reads_weights_whatever_the_context():
    curves = of("decode", 0.08)
    product, attention = (curves.names.index(n) for n in ("qkv_projection", "attention_decode"))
    assert curves.latency_by_length[product] == pytest.approx([1, 1, 1])
    assert curves.latency_by_length[attention, 2] > 5
    assert curves.latency_by_batch[product, 2] == pytest.approx(1, rel=0.01)


def test_replicas_are_the_fewest_that_are_stable():
    curves = of("prefill", 1.0)
    phase = phase_problem(service(), timing, batches=(1,), parallel=(1,))
    load = np.array([1.0, 10.0, 100.0]) * phase.problem.latency_s[:, 0]
    assert (curves.replicas_by_rate > load).all()
    assert (curves.replicas_by_rate - 1 <= load).all()


def test_a_share_of_the_gpu_slows_what_is_bound_by_arithmetic_first():
    prefill, decode = of("prefill", 1.0), of("decode", 0.08)
    product = prefill.names.index("gate_up_projection")
    assert prefill.latency_by_share[product] == pytest.approx(1 / prefill.shares)
    half = np.flatnonzero(np.isclose(decode.shares, 0.5))[0]
    assert decode.latency_by_share[decode.names.index("qkv_projection"), half] < 1.2
    assert prefill.latency_by_share[:, -1] == pytest.approx(1.0)


def test_what_is_handed_on_grows_with_the_tokens():
    curves = of("prefill", 1.0)
    qkv = curves.names.index("qkv_projection")
    sent = 1024 * (32 + 2 * 8) * 128 * 2 * SHAPE.layers
    assert curves.data_by_length[qkv] == pytest.approx(np.array([1, 2, 8]) * sent)
    again = curves.data_by_length / GPU.link_bytes_s
    assert (curves.transfer_by_length > 0).all() and (again[qkv] > 0).all()


def test_waits_are_those_of_the_fewest_stable_replicas():
    curves = of("prefill", 1.0)
    phase = phase_problem(service(), timing, batches=(1,), parallel=(1,))
    seconds = phase.problem.latency_s[:, 0, 0]
    for v, k in ((0, 0), (3, 1), (5, 2)):
        servers, rate = int(curves.replicas_by_rate[v, k]), float(curves.rates[k])
        expected = mmc_mean_wait(servers, rate, float(seconds[v]))
        assert curves.wait_by_rate[v, k] == pytest.approx(expected)
    assert np.isfinite(curves.wait_by_length).all()


def test_prompts_fill_the_arithmetic_and_decodes_the_bandwidth():
    prefill, decode = of("prefill", 1.0), of("decode", 0.08)
    product = prefill.names.index("gate_up_projection")
    assert prefill.arithmetic_by_length[product].min() > prefill.bandwidth_by_length[product].max()
    product = decode.names.index("gate_up_projection")
    assert decode.bandwidth_by_length[product].min() > decode.arithmetic_by_length[product].max()
    # With half of the multiprocessors a product of a prompt computes on all of them.
    product = prefill.names.index("gate_up_projection")
    assert prefill.sm_use_by_share[product] == pytest.approx(1.0)
    assert (decode.sm_use_by_share <= 1.0).all()
