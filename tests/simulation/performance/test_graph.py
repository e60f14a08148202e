"""The operator graph: hand-worked modules, conservation laws and brute force."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.memory import gpu_weight_bytes
from simulation.performance.parameters import parameters
from simulation.performance.specs import Arrangement, ModelShape
from simulation.performance.work import Attention, Experts, iteration
from tests.simulation.engine.test_memory import DEEPSEEK_V3 as DEEPSEEK
from tests.simulation.engine.test_memory import LLAMA_8B, MIXTRAL
from tests.simulation.performance.oracles import active_parameters

MIB, GIGA = 2**20, 1e9
LLAMA_13B = ModelShape("llama-13b", 40, 5120, 32000, 40, 40, 128, 13824, 2048)
HYBRID = ModelShape(
    "hybrid", 8, 1024, 1000, 8, 2, 128, 2048, 65536,
    linear_layers=6, linear_state_bytes=4 * 16 * 128 * 128, linear_key_width=1024,
    linear_value_width=2048, attention_gate=True,
)  # fmt: skip
WINDOWED = replace(LLAMA_8B, name="windowed", window_layers=16, window=1024)
SPARSE = replace(DEEPSEEK, name="sparse", sparse_top_k=2048, index_head_dim=128)
ENCODER = ModelShape("tower", 4, 512, 1, 8, 8, 64, 2048, 4096, gated=False)
VISION = replace(LLAMA_8B, name="vision", encoder=ENCODER)
SHAPES = (LLAMA_13B, LLAMA_8B, MIXTRAL, DEEPSEEK, HYBRID, WINDOWED, SPARSE, VISION)


def flops(graph: OperatorGraph, **amounts: float) -> float:
    return float(graph.total("flops", iteration(**amounts)))


def test_the_modules_of_llama_13b_are_those_of_the_published_table() -> None:
    """CoCoServe, section 3.3: batch 1, 256 tokens, all pairs of them; 127.5 GFLOPs of a layer leave
    out one projection of the feed-forward part."""
    graph = operator_graph(LLAMA_13B, Arrangement())
    it = iteration(prefill_tokens=256, prefill_pairs=256 * 256)
    memory = {o.name: o.memory_bytes / MIB for o in graph.operators}
    done = {o.name: float(o.work(it).flops) / GIGA for o in graph.operators}
    attention = ("qkv_projection", "output_projection", "attention_prefill")
    feed_forward = ("gate_up_projection", "down_projection")
    norms = memory["input_norm"] + memory["post_norm"]

    assert memory["output_projection"] == 50
    assert sum(memory[name] for name in attention) == 200
    assert memory["down_projection"] == 135
    assert sum(memory[name] for name in (*attention, *feed_forward)) == 605
    assert norms == pytest.approx(0.02, abs=0.001)
    assert done["output_projection"] == pytest.approx(13.42, abs=0.005)
    assert done["attention_prefill"] == pytest.approx(1.34, abs=0.005)
    assert sum(done[name] for name in attention) == pytest.approx(55.02, abs=0.02)
    assert done["down_projection"] == pytest.approx(36.24, abs=0.005)
    layer = sum(done[name] for name in (*attention, *feed_forward))
    assert layer == pytest.approx(163.7, abs=0.05)
    assert layer - done["down_projection"] == pytest.approx(127.5, abs=0.05)


@pytest.mark.parametrize("shape", [LLAMA_13B, LLAMA_8B, MIXTRAL, HYBRID, WINDOWED, VISION])
def test_a_decoded_token_takes_two_operations_per_active_parameter(shape: ModelShape) -> None:
    graph = operator_graph(shape, Arrangement())
    read = [o for o in graph.operators if o.axis != "decodes"]
    it = iteration(decodes=1.0, decode_context=0.0)
    done = sum(o.count * float(o.work(it).flops) for o in read)
    assert done == pytest.approx(2 * active_parameters(shape), rel=1e-9)


def test_latent_attention_in_decode_by_hand() -> None:
    graph = operator_graph(DEEPSEEK, Arrangement())
    it = iteration(decodes=2.0, decode_context=2000.0)
    attention = graph["attention_decode"].work(it)
    assert float(attention.flops) == 2 * 2000 * 128 * (576 + 512)
    assert float(attention.kv_bytes) == 2000 * 576 * 2
    # The absorbed projections do what the up-projection of keys and values would.
    absorbed = sum(float(graph[n].work(it).flops) for n in ("query_absorb", "value_absorb"))
    assert absorbed == 2 * 2 * 512 * 128 * (128 + 128)
    assert graph["query_absorb"].memory_bytes == 0
    # Active parameters of the publication (37 billion), within the output head and embedding.
    linear = flops(graph, decodes=1.0) / 2
    assert linear == pytest.approx(37e9, rel=0.03)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_weights_are_those_of_the_memory_module(shape: ModelShape) -> None:
    for where in (Arrangement(), Arrangement(weights="int8")):
        kept = operator_graph(shape, where).weight_bytes
        assert kept == pytest.approx(gpu_weight_bytes(shape, where), rel=0.02)
    assert operator_graph(shape, Arrangement()).weight_bytes / 2 == pytest.approx(
        parameters(shape).total, rel=0.01
    )


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("shape", [LLAMA_8B, MIXTRAL, WINDOWED])
def test_tensor_parallelism_divides_the_work_and_adds_none(shape: ModelShape, tp: int) -> None:
    single, many = (operator_graph(shape, Arrangement(tp=n, moe_tp=n)) for n in (1, tp))
    it = iteration(32.0, 32 * 700.0, 512.0, 512 * 300.0)
    for operator in single.operators:
        if operator.name == "router" or operator.name.endswith("norm"):
            continue  # on every GPU whole
        alone, shared = operator.work(it), many[operator.name].work(it)
        assert float(shared.flops) * tp == pytest.approx(float(alone.flops))
        assert float(shared.weight_bytes) * tp == pytest.approx(float(alone.weight_bytes))
        assert many[operator.name].memory_bytes * tp == pytest.approx(operator.memory_bytes)


def test_heads_are_copied_where_there_are_more_gpus_than_them() -> None:
    few = operator_graph(LLAMA_8B, Arrangement(tp=16))["attention_decode"]
    assert isinstance(few, Attention)
    assert (few.heads, few.kv_heads) == (2, 1)


def test_attention_data_parallelism_and_stages_divide_the_sequences() -> None:
    it = iteration(64.0, 64 * 1000.0)
    unsplit = operator_graph(DEEPSEEK, Arrangement())["attention_decode"].work(it)
    where = Arrangement(attention_dp=8, moe_ep=8)
    spread = operator_graph(DEEPSEEK, where)["attention_decode"].work(it)
    staged = operator_graph(DEEPSEEK, Arrangement(pp=4))["attention_decode"].work(it)
    assert float(spread.flops) * 8 == float(unsplit.flops)
    assert float(staged.flops) * 4 == float(unsplit.flops)
    lone = operator_graph(DEEPSEEK, where)["attention_decode"].work(iteration(1.0, 1000.0))
    assert float(lone.flops) * 64 == float(unsplit.flops)  # one GPU has it all, the others nothing


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_work_grows_with_every_argument(shape: ModelShape) -> None:
    where = Arrangement(tp=2, attention_dp=2, pp=2, moe_tp=2, moe_ep=2, weights="fp8")
    graph = operator_graph(shape, where)
    draw = np.random.default_rng(0)
    b, p = draw.integers(0, 300, (2, 50)).astype(float)
    keys, pairs = draw.integers(1, 9000, (2, 50)).astype(float)
    base = (b, b * keys, p, p * pairs)
    quantities = ("flops", "weight_bytes", "activation_bytes", "kv_bytes", "message_bytes")
    for argument in range(4):
        more = list(base)
        more[argument] = more[argument] * 1.5 + (1 if argument in (0, 2) else 0)
        if argument in (0, 2):  # more sequences of the same context
            more[argument + 1] = more[argument] * (keys if argument == 0 else pairs)
        for operator in graph.operators:
            low, high = (operator.work(iteration(*amounts)) for amounts in (base, more))
            for name in quantities:
                difference = getattr(high, name) - getattr(low, name)
                assert (difference >= -1e-6 * getattr(high, name)).all(), (operator.name, name)


def test_expected_experts_hit_against_drawing_them() -> None:
    shape = replace(MIXTRAL, experts=16, experts_per_token=2)
    experts = operator_graph(shape, Arrangement(moe_ep=4, attention_dp=4))["experts"]
    assert isinstance(experts, Experts)
    draw = np.random.default_rng(1)
    for tokens in (1, 3, 10):
        hit = [
            len({int(e) for _ in range(tokens) for e in draw.choice(16, 2, replace=False) if e < 4})
            for _ in range(4000)
        ]
        expected = float(experts.distinct(iteration(decodes=float(tokens))))
        assert expected == pytest.approx(np.mean(hit), rel=0.05)


def test_windows_and_sparse_attention_bound_the_keys() -> None:
    short, long = iteration(1.0, 512.0), iteration(1.0, 100_000.0)
    window = operator_graph(WINDOWED, Arrangement())["window_attention_decode"]
    assert float(window.work(long).kv_bytes) == 2 * float(window.work(short).kv_bytes)
    sparse = operator_graph(SPARSE, Arrangement())
    chosen, scored = sparse["attention_decode"], sparse["indexer"]
    assert float(chosen.work(long).kv_bytes) == 4 * float(chosen.work(short).kv_bytes)
    assert float(scored.work(long).kv_bytes) == 100_000 * (128 + 4)


def test_linear_layers_do_not_see_the_context() -> None:
    graph = operator_graph(HYBRID, Arrangement())
    near, far = (graph["linear_decode"].work(iteration(4.0, 4 * c)) for c in (10.0, 60_000.0))
    assert float(near.kv_bytes) == float(far.kv_bytes) == 2 * 4 * HYBRID.linear_state_bytes
    assert graph["attention_decode"].count == 2


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_operators_come_after_those_they_wait_for(shape: ModelShape) -> None:
    for where in (Arrangement(), Arrangement(tp=2, attention_dp=4, moe_ep=8, pp=2)):
        seen: set[str] = set()
        for operator in operator_graph(shape, where).operators:
            assert operator.name not in seen
            assert seen.issuperset(operator.after)
            seen.add(operator.name)


def test_the_encoder_is_a_branch_of_its_own() -> None:
    graph = operator_graph(VISION, Arrangement())
    tower = [o for o in graph.operators if o.axis == "encoder"]
    assert tower
    assert all(o.name.startswith("encoder_") for o in tower)
    text = iteration(decodes=8.0, decode_context=8000.0)
    assert sum(float(o.work(text).flops) for o in tower) == 0
    assert "encoder_projector" in graph["embedding"].after
    image = iteration(encoder_tokens=1024.0, encoder_pairs=1024.0**2)
    assert sum(float(o.work(image).flops) for o in tower) > 2 * 1024 * 4 * 512 * 512


def test_four_bit_weights_of_a_mixture_are_those_of_its_experts() -> None:
    graph = operator_graph(DEEPSEEK, Arrangement(weights="fp4"))
    experts, output = graph["experts"], graph["output_projection"]
    assert experts.memory_bytes == 256 * 3 * 7168 * 2048 / 2
    assert output.memory_bytes == 2 * 128 * 128 * 7168
    assert operator_graph(LLAMA_8B, Arrangement(weights="fp4"))[
        "output_projection"
    ].memory_bytes == pytest.approx(4096 * 4096 / 2)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Arrangement(tp=4, moe_tp=2, moe_ep=4), "Make the two equal"),
        (Arrangement(tp=0), "tp must be at least 1"),
        (Arrangement(weights="fp7"), "Use one of"),
    ],
)
def test_arrangements_that_cannot_be(where: Arrangement, words: str) -> None:
    with pytest.raises(SimulationError, match=words):
        operator_graph(MIXTRAL, where)


def test_an_encoder_attends_to_all_tokens_of_a_prompt_and_not_to_half() -> None:
    both_ways = operator_graph(replace(LLAMA_8B, causal=False), Arrangement())
    masked = operator_graph(LLAMA_8B, Arrangement())
    it = iteration(prefill_tokens=512, prefill_pairs=512 * 256)
    for one, other in zip(both_ways.operators, masked.operators, strict=True):
        times = 2 if one.name == "attention_prefill" else 1
        assert float(one.work(it).flops) == times * float(other.work(it).flops)
