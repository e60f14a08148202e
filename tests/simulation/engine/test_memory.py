"""Memory: hand-worked bytes, laws of dividing over GPUs, and what fits against brute force.

Shapes are written out here, apart from the catalogue, so that a slip there cannot hide.
"""

from dataclasses import replace

import pytest

from simulation.errors import SimulationError
from simulation.performance.memory import (
    MEMORY_SHARE,
    activation_bytes,
    gpu_kv_bytes,
    gpu_weight_bytes,
    kv_bytes,
    kv_bytes_per_token,
    kv_capacity_tokens,
    kv_room_bytes,
    largest_batch,
    largest_context,
    minimum_tp,
    weight_bytes,
)
from simulation.performance.parameters import parameters
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, ModelSpec, Provenance
from tests.simulation.performance.oracles import active_parameters

SOURCE = Provenance("published", "config.json")


def gpu(name: str, gib: float) -> GpuSpec:
    return GpuSpec(name, gib * 2**30, 50, 500, 300, SOURCE)


H100, H200, A100_40 = gpu("H100", 80), gpu("H200", 141), gpu("A100-40", 40)
LLAMA_2_7B = ModelShape("llama-2-7b", 32, 4096, 32000, 32, 32, 128, 11008, 4096)
LLAMA_8B = ModelShape("llama-3.1-8b", 32, 4096, 128256, 32, 8, 128, 14336, 131072)
LLAMA_70B = ModelShape("llama-3.1-70b", 80, 8192, 128256, 64, 8, 128, 28672, 131072)
LLAMA_405B = ModelShape("llama-3.1-405b", 126, 16384, 128256, 128, 8, 128, 53248, 131072)
BLOOM = ModelShape(
    "bloom", 70, 14336, 250880, 112, 112, 128, 57344, 2048, gated=False, tied_embeddings=True
)
GPT_3 = ModelShape(
    "gpt-3", 96, 12288, 50257, 96, 96, 128, 49152, 2048, gated=False, tied_embeddings=True
)
MIXTRAL = ModelShape(
    "mixtral-8x7b", 32, 4096, 32000, 32, 8, 128, 14336, 32768,
    experts=8, experts_per_token=2, expert_intermediate=14336,
)  # fmt: skip
QWEN_235B = ModelShape(
    "qwen3-235b", 94, 4096, 151936, 64, 4, 128, 12288, 40960,
    experts=128, experts_per_token=8, expert_intermediate=1536,
)  # fmt: skip
DEEPSEEK_V3 = ModelShape(
    "deepseek-v3", 61, 7168, 129280, 128, 128, 192, 18432, 163840,
    experts=256, experts_per_token=8, expert_intermediate=2048, shared_intermediate=2048,
    dense_layers=3, kv_lora_rank=512, q_lora_rank=1536, rope_head_dim=64, nope_head_dim=128,
    v_head_dim=128,
)  # fmt: skip
GPT_OSS_20B = ModelShape(
    "gpt-oss-20b", 24, 2880, 201088, 64, 8, 64, 2880, 131072,
    experts=32, experts_per_token=4, expert_intermediate=2880, window_layers=12, window=128,
)  # fmt: skip
MISTRAL = replace(LLAMA_8B, name="mistral-7b", vocab=32000, window_layers=32, window=4096)
GEMMA_1B = ModelShape(  # one key and value head: MQA
    "gemma-3-1b", 26, 1152, 262144, 4, 1, 256, 6912, 32768,
    tied_embeddings=True, window_layers=22, window=512,
)  # fmt: skip
STATE = 32 * 128 * 128 * 4 + 3 * 8192 * 2  # value heads x 128 x 128 in 32 bits, convolution in 16
QWEN_NEXT = ModelShape(
    "qwen3-next", 48, 2048, 151936, 16, 2, 256, 5120, 262144,
    experts=512, experts_per_token=10, expert_intermediate=512, shared_intermediate=512,
    linear_layers=36, linear_state_bytes=STATE, linear_key_width=2048, linear_value_width=4096,
    attention_gate=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "published"),
    [(LLAMA_2_7B, 6.74e9), (LLAMA_8B, 8.03e9), (LLAMA_70B, 70.55e9), (LLAMA_405B, 405.85e9),
     (BLOOM, 176.25e9), (GPT_3, 174.6e9), (MIXTRAL, 46.7e9), (QWEN_235B, 235.1e9),
     (DEEPSEEK_V3, 671e9), (GPT_OSS_20B, 20.9e9), (MISTRAL, 7.24e9), (GEMMA_1B, 1.0e9),
     (QWEN_NEXT, 79.7e9)],
)  # fmt: skip
def test_parameters_are_the_published_number(shape: ModelShape, published: float) -> None:
    assert parameters(shape).total == pytest.approx(published, rel=0.01)


def test_parameters_by_part_of_a_worked_example() -> None:
    """Llama-2-7B: 4 x 4096^2 and 3 x 4096 x 11008 a layer, 32 times; 2 x 32000 x 4096; 65 norms."""
    parts = parameters(LLAMA_2_7B)
    assert parts.attention == 32 * 67_108_864
    assert parts.feed_forward == 32 * 135_266_304
    assert parts.embedding == parts.head == 131_072_000
    assert parts.norms == 65 * 4096
    assert parts.total == 6_738_415_616  # as Hugging Face counts


def test_a_token_passes_its_experts_only() -> None:
    assert active_parameters(DEEPSEEK_V3) == pytest.approx(37e9, rel=0.02)
    assert active_parameters(MIXTRAL) == pytest.approx(12.9e9, rel=0.02)
    assert active_parameters(LLAMA_8B) == pytest.approx(parameters(LLAMA_8B).total, rel=0.07)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LLAMA_2_7B, 524_288),  # MHA: 32 layers x 2 x 32 heads x 128 x 2 B
        (LLAMA_8B, 131_072),  # GQA: 32 x 2 x 8 x 128 x 2
        (LLAMA_70B, 327_680),  # 80 x 2 x 8 x 128 x 2
        (LLAMA_405B, 516_096),  # 126 x 2 x 8 x 128 x 2
        (BLOOM, 4_014_080),  # 70 x 2 x 112 x 128 x 2
        (GPT_3, 4_718_592),  # 96 x 2 x 96 x 128 x 2
        (MIXTRAL, 131_072),
        (QWEN_235B, 192_512),  # 94 x 2 x 4 x 128 x 2
        (DEEPSEEK_V3, 70_272),  # MLA: 61 x (512 + 64) x 2
        (GEMMA_1B, 26_624),  # MQA: 26 x 2 x 1 x 256 x 2
        (GPT_OSS_20B, 49_152),  # 24 x 2 x 8 x 64 x 2, inside the window
        (QWEN_NEXT, 24_576),  # 12 of 48 layers x 2 x 2 x 256 x 2
    ],
)
def test_kv_bytes_per_token(shape: ModelShape, expected: float) -> None:
    assert kv_bytes_per_token(shape) == expected
    assert kv_bytes_per_token(shape, "fp8") == expected / 2


def test_a_window_holds_its_tokens_and_no_more() -> None:
    full, window = 12 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2
    assert kv_bytes(GPT_OSS_20B, 100) == 100 * (full + window)
    assert kv_bytes(GPT_OSS_20B, 1000) == 1000 * full + 128 * window
    assert kv_bytes(MISTRAL, 4096) == kv_bytes(MISTRAL, 30_000) == 4096 * 131_072


def test_a_linear_layer_holds_its_state_at_any_length() -> None:
    assert kv_bytes(QWEN_NEXT, 1) == 36 * STATE + 24_576
    assert kv_bytes(QWEN_NEXT, 1001) - kv_bytes(QWEN_NEXT, 1) == 1000 * 24_576
    assert kv_bytes_per_token(QWEN_NEXT, context=4096) == 24_576 + 36 * STATE / 4096


def test_window_layers_may_have_heads_of_their_own() -> None:
    """Gemma 4 31B: 50 window layers of 16 heads x 256, 10 full ones of 4 x 512."""
    shape = replace(
        LLAMA_8B, layers=60, kv_heads=4, head_dim=512, window_layers=50, window=1024,
        window_kv_heads=16, window_head_dim=256,
    )  # fmt: skip
    assert kv_bytes(shape, 2048) == 2048 * 10 * 2 * 4 * 512 * 2 + 1024 * 50 * 2 * 16 * 256 * 2


def test_a_sparse_layer_caches_the_keys_it_chooses_by() -> None:
    """DeepSeek-V3.2: 128 bytes in 8 bits and a 32-bit scale beside each latent vector."""
    sparse = replace(DEEPSEEK_V3, sparse_top_k=2048, index_head_dim=128)
    assert kv_bytes_per_token(sparse) == 61 * (576 * 2 + 128 + 4)


def test_weights_keep_embeddings_and_head_in_16_bits() -> None:
    parts = parameters(LLAMA_8B)
    linear = parts.attention + parts.feed_forward
    plain = 2 * (parts.embedding + parts.head + parts.norms)
    assert weight_bytes(LLAMA_8B) == 2 * parts.total
    assert weight_bytes(LLAMA_8B, "fp8") == pytest.approx(plain + linear, rel=1e-3)
    assert weight_bytes(LLAMA_8B, "fp4") == pytest.approx(plain + linear * 9 / 16)
    # about 9.1 GB: the files of nvidia/Llama-3.1-8B-Instruct-FP8
    assert weight_bytes(LLAMA_8B, "fp8") / 1e9 == pytest.approx(9.1, rel=0.02)


def test_four_bit_weights_of_a_mixture_are_those_of_its_experts() -> None:
    """gpt-oss-20b is 12.8 GiB of files (model card, arXiv 2508.10925, table 1)."""
    parts = parameters(GPT_OSS_20B)
    expected = parts.experts * 9 / 16 + 2 * (parts.total - parts.experts)
    assert weight_bytes(GPT_OSS_20B, "fp4") == pytest.approx(expected)
    assert weight_bytes(GPT_OSS_20B, "fp4") / 2**30 == pytest.approx(12.8, rel=0.06)


def test_more_gpus_hold_less_each_and_together_at_least_everything() -> None:
    for shape in (LLAMA_70B, MIXTRAL, DEEPSEEK_V3, QWEN_NEXT):
        total = weight_bytes(shape, "fp8")
        assert gpu_weight_bytes(shape, Arrangement(weights="fp8")) == pytest.approx(total)
        before = total
        for tp in (2, 4, 8, 16):
            each = gpu_weight_bytes(shape, Arrangement(tp=tp, moe_tp=tp, weights="fp8"))
            assert total / tp <= each < before
            before = each


def test_stages_divide_layers() -> None:
    alone = gpu_weight_bytes(LLAMA_70B, Arrangement(tp=2))
    two = gpu_weight_bytes(LLAMA_70B, Arrangement(tp=2, pp=2))
    ends = 2 * parameters(LLAMA_70B).embedding / 2
    assert two == pytest.approx((alone - 2 * ends) / 2 + ends, rel=1e-3)
    assert gpu_kv_bytes(LLAMA_70B, 1000, Arrangement(tp=2, pp=2)) == kv_bytes(LLAMA_70B, 1000) / 4


def test_key_and_value_heads_are_copied_where_gpus_outnumber_them() -> None:
    per_gpu = [gpu_kv_bytes(LLAMA_70B, 100, Arrangement(tp=tp)) for tp in (1, 2, 4, 8, 16, 32)]
    all_kv = kv_bytes(LLAMA_70B, 100)
    assert per_gpu == [all_kv, all_kv / 2, all_kv / 4, all_kv / 8, all_kv / 8, all_kv / 8]


def test_a_latent_cache_is_on_every_gpu_unless_attention_is_data_parallel() -> None:
    tensor = Arrangement(tp=8, moe_tp=8, weights="fp8")
    data = Arrangement(attention_dp=8, moe_ep=8, weights="fp8")
    for arrangement in (tensor, data):
        assert gpu_kv_bytes(DEEPSEEK_V3, 4096, arrangement) == kv_bytes(DEEPSEEK_V3, 4096)
    assert gpu_weight_bytes(DEEPSEEK_V3, data) > gpu_weight_bytes(DEEPSEEK_V3, tensor)
    assert largest_batch(DEEPSEEK_V3, H200, data, 4096) > 3 * largest_batch(
        DEEPSEEK_V3, H200, tensor, 4096
    )


@pytest.mark.parametrize(
    ("shape", "where", "precision", "expected"),
    [
        (LLAMA_8B, H100, "bf16", 1),  # 16 GB
        (LLAMA_70B, H100, "bf16", 2),  # 141 GB over 2 x 77 GB
        (LLAMA_70B, H200, "bf16", 2),  # 141 GB are above 136
        (LLAMA_70B, H200, "fp8", 1),
        (LLAMA_70B, A100_40, "bf16", 4),  # 35.3 of 38.7 GB each, and a sequence of 0.34 GB
        (LLAMA_405B, H100, "fp8", 8),  # 408 GB
        (LLAMA_405B, H100, "bf16", 16),  # 812 GB
        (MIXTRAL, H100, "bf16", 2),  # 93 GB
        (DEEPSEEK_V3, H200, "fp8", 8),  # 673 GB
        (BLOOM, H100, "bf16", 8),  # 352 GB, 16 GB of KV cache for one sequence
    ],
)
def test_fewest_gpus(shape: ModelShape, where: GpuSpec, precision: str, expected: int) -> None:
    assert minimum_tp(shape, where, precision) == expected


def test_a_model_that_fits_nowhere_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        SimulationError, match=r"llama-3.1-405b does not fit on 64 x tiny: .* 812 GB"
    ):
        minimum_tp(LLAMA_405B, gpu("tiny", 4))
    with pytest.raises(SimulationError, match="'fp7' is unknown"):
        weight_bytes(LLAMA_8B, "fp7")


@pytest.mark.parametrize("shape", [LLAMA_8B, GPT_OSS_20B, QWEN_NEXT, MISTRAL, DEEPSEEK_V3])
def test_one_more_token_or_sequence_would_not_fit(shape: ModelShape) -> None:
    where = Arrangement(tp=8, moe_tp=8, weights="fp8")
    small = gpu("small", (gpu_weight_bytes(shape, where) + 4e9) / MEMORY_SHARE / 2**30)
    room = kv_room_bytes(shape, small, where)
    assert room > 0
    longest = largest_context(shape, small, where)
    assert gpu_kv_bytes(shape, longest, where) <= room
    assert longest == shape.max_context or gpu_kv_bytes(shape, longest + 1, where) > room
    batch = largest_batch(shape, small, where, 2000)
    assert batch * gpu_kv_bytes(shape, 2000, where) <= room
    assert (batch + 1) * gpu_kv_bytes(shape, 2000, where) > room


def test_nothing_fits_where_the_weights_do_not() -> None:
    assert largest_batch(LLAMA_70B, H100, Arrangement(), 1) == 0
    assert largest_context(LLAMA_70B, H100, Arrangement()) == 0


def test_activations_grow_with_tokens_and_shrink_with_gpus() -> None:
    single, four = Arrangement(), Arrangement(tp=4)
    assert activation_bytes(LLAMA_70B, single, 8192) > activation_bytes(LLAMA_70B, single, 2048)
    assert activation_bytes(LLAMA_70B, four) < activation_bytes(LLAMA_70B, single)
    assert 0.2e9 < activation_bytes(LLAMA_8B, single, 8192) < 2e9


def test_capacity_in_tokens_is_what_the_batch_says() -> None:
    """The capacity of a profile and the largest batch are one thing."""
    for shape, tp in ((LLAMA_8B, 1), (LLAMA_70B, 4), (LLAMA_70B, 16), (DEEPSEEK_V3, 32)):
        spec = ModelSpec(
            shape.name, weight_bytes(shape), kv_bytes_per_token(shape), shape.max_context, SOURCE,
            shape,
        )  # fmt: skip
        tokens = kv_capacity_tokens(spec, H100, tp)
        batch = largest_batch(shape, H100, Arrangement(tp=tp, moe_tp=tp), 1000)
        assert tokens == pytest.approx(1000 * batch, rel=0.15)


def test_capacity_of_a_model_known_by_its_memory_alone() -> None:
    spec = ModelSpec("own", 16e9, 131_072, 8192, SOURCE)
    assert kv_capacity_tokens(spec, H100, 2) == int((0.9 * 80 * 2**30 - 1e9 - 8e9) // 65_536)
    with pytest.raises(SimulationError, match="own does not fit on 1 x A100-40"):
        kv_capacity_tokens(replace(spec, weight_bytes=60e9), A100_40, 1)
