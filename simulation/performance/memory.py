"""What a model takes of a GPU's memory: weights, KV cache, activations, and what then fits.

Parameters follow from the shape. Weights in 8 or 4 bits are those of the linear layers;
embedding, router, norms and output head stay in 16 bits, as in the published checkpoints, and 4-bit
weights of a mixture of experts are those of its experts only (hf_quant_config.json of
nvidia/DeepSeek-R1-NVFP4, config.json of openai/gpt-oss-120b and moonshotai/Kimi-K2.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulation.errors import SimulationError
from simulation.performance.specs import BYTES, GpuSpec, ModelShape, ModelSpec

MEMORY_SHARE = 0.9  # of GPU memory given to weights and KV cache; vLLM's gpu_memory_utilization
# Bytes of scale per weight. fp8: one 32-bit scale per block of 128 x 128 (DeepSeek-V3, arXiv
# 2412.19437, section 3.3). fp4: one 8-bit scale per 16 (NVFP4) to 32 (MXFP4) weights, the larger
# taken. int4: one 16-bit scale per 32 (Kimi-K2-Thinking, config.json, group_size 32). int8: one per
# output channel, nothing beside the weights.
SCALE_BYTES = {"bf16": 0.0, "fp8": 4 / 128**2, "fp4": 1 / 16, "int8": 0.0, "int4": 2 / 32}
INDEX_SCALE_BYTES = 4  # per cached key of a sparse attention layer, beside 8 bits per element
# CUDA context, NCCL buffers and captured graphs outside the share given to the engine: what vLLM
# leaves of 80 GB at 0.9 holds them; on small cards it is taken from the share. Assumed.
OVERHEAD_BYTES = 1.5e9
TP_CHOICES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Number of parameters by part of a model."""

    embedding: float
    attention: float  # mixers of linear layers too
    feed_forward: float  # dense layers and shared experts
    experts: float
    router: float
    norms: float
    head: float
    encoder: float  # of images, with its projector

    @property
    def total(self) -> float:
        return (
            self.embedding + self.attention + self.feed_forward + self.experts + self.router
            + self.norms + self.head + self.encoder
        )  # fmt: skip


def parameters(shape: ModelShape) -> Parameters:
    """Parameters of a model; biases and the layers that predict further tokens are left out."""
    factor = 3 if shape.gated else 2
    moe, dense = feed_forward_layers(shape)
    width = shape.expert_hidden or shape.hidden
    latent = 2 * shape.hidden * width * moe if shape.expert_hidden else 0
    return Parameters(
        embedding=shape.vocab * shape.hidden,
        attention=_attention_parameters(shape),
        feed_forward=factor * shape.hidden * shape.intermediate * dense
        + factor * shape.hidden * shape.shared_intermediate * moe
        + latent,
        experts=factor * width * shape.expert_intermediate * shape.experts * moe,
        router=shape.hidden * shape.experts * moe,
        norms=shape.hidden * (shape.layers + moe + dense + 1),
        head=0 if shape.tied_embeddings else shape.vocab * shape.hidden,
        encoder=_encoder_parameters(shape) if shape.encoder else 0,
    )


def active_parameters(shape: ModelShape) -> float:
    """Parameters that a token of text passes: its experts, no embedding table, no encoder."""
    parts = parameters(shape)
    share = shape.experts_per_token / shape.experts if shape.experts else 0
    head = parts.head or parts.embedding
    return parts.attention + parts.feed_forward + share * parts.experts + parts.router + head


def feed_forward_layers(shape: ModelShape) -> tuple[int, int]:
    """Layers with a mixture of experts, and with a dense feed-forward part."""
    layers = shape.layers if shape.ffn_layers is None else shape.ffn_layers
    moe = layers - shape.dense_layers if shape.experts else 0
    return moe, layers - moe


def _attention_parameters(shape: ModelShape) -> float:
    full = shape.layers - shape.window_layers - shape.linear_layers
    hidden, heads = shape.hidden, shape.heads
    if shape.kv_lora_rank:
        key = shape.nope_head_dim + shape.rope_head_dim
        query = (
            hidden * shape.q_lora_rank + shape.q_lora_rank * heads * key
            if shape.q_lora_rank
            else hidden * heads * key
        )
        latent = hidden * (shape.kv_lora_rank + shape.rope_head_dim)
        expand = shape.kv_lora_rank * heads * (shape.nope_head_dim + shape.v_head_dim)
        layer = query + latent + expand + heads * shape.v_head_dim * hidden
        softmax = (full + shape.window_layers) * layer
    else:
        softmax = full * _layer(shape, shape.kv_heads, shape.head_dim)
        softmax += shape.window_layers * _layer(
            shape,
            shape.window_kv_heads or shape.kv_heads,
            shape.window_head_dim or shape.head_dim,
        )
    keys = shape.linear_key_width or heads * shape.head_dim
    values = shape.linear_value_width or heads * shape.head_dim
    mixer = hidden * (2 * keys + 2 * values) + values * hidden
    return softmax + shape.linear_layers * mixer


def _layer(shape: ModelShape, kv_heads: int, head_dim: int) -> int:
    values = shape.v_head_dim or head_dim
    query = shape.heads * head_dim * (2 if shape.attention_gate else 1)
    return shape.hidden * (query + kv_heads * (head_dim + values) + shape.heads * values)


def _encoder_parameters(shape: ModelShape) -> float:
    """Its layers and a projector of merged patches (2 x 2) to the width of the text model."""
    encoder = shape.encoder
    assert encoder is not None
    merged = 4 * encoder.hidden
    parts = parameters(encoder)
    return parts.attention + parts.feed_forward + parts.norms + merged * (merged + shape.hidden)


def weight_bytes(shape: ModelShape, precision: str = "bf16") -> float:
    """Bytes of all weights, one copy, linear layers in ``precision``."""
    parts = parameters(shape)
    low = _stored(precision)
    four_bit_experts = bool(shape.experts) and BYTES[precision] < 1
    rest = BYTES["bf16"] if four_bit_experts else low
    plain = parts.embedding + parts.router + parts.norms + parts.head + parts.encoder
    return (
        low * parts.experts + rest * (parts.attention + parts.feed_forward) + BYTES["bf16"] * plain
    )


def _stored(precision: str) -> float:
    if precision not in BYTES:
        raise SimulationError(f"Precision {precision!r} is unknown; use one of {', '.join(BYTES)}.")
    return BYTES[precision] + SCALE_BYTES[precision]


def kv_bytes_per_token(
    shape: ModelShape, precision: str = "bf16", context: int | None = None
) -> float:
    """KV cache of one more token, in every layer that keeps one.

    With ``context``, the mean over a sequence of that many tokens: less where layers see a window,
    more by the fixed state of linear layers.
    """
    if context is not None:
        return kv_bytes(shape, context, precision) / context
    return _full_bytes(shape, precision) + _window_bytes(shape, precision)


def kv_bytes(shape: ModelShape, context: int, precision: str = "bf16") -> float:
    """What a sequence of ``context`` tokens holds: KV cache, window layers, linear states."""
    seen = min(context, shape.window) if shape.window else context
    return (
        context * _full_bytes(shape, precision)
        + seen * _window_bytes(shape, precision)
        + shape.linear_layers * shape.linear_state_bytes
    )


def _full_bytes(shape: ModelShape, precision: str) -> float:
    layers = shape.layers - shape.window_layers - shape.linear_layers
    entry = _entry_bytes(shape, shape.kv_heads, shape.head_dim, precision)
    index = shape.index_head_dim + INDEX_SCALE_BYTES if shape.index_head_dim else 0
    return layers * (entry + index) / shape.kv_compression


def _window_bytes(shape: ModelShape, precision: str) -> float:
    heads = shape.window_kv_heads or shape.kv_heads
    head_dim = shape.window_head_dim or shape.head_dim
    return shape.window_layers * _entry_bytes(shape, heads, head_dim, precision)


def _entry_bytes(shape: ModelShape, kv_heads: int, head_dim: int, precision: str) -> float:
    """Of one token in one layer: keys and values of each head, or one compressed vector (MLA)."""
    if precision not in BYTES:
        raise SimulationError(
            f"KV precision {precision!r} is unknown; use one of {', '.join(BYTES)}."
        )
    if shape.kv_lora_rank:
        return BYTES[precision] * (shape.kv_lora_rank + shape.rope_head_dim)
    return BYTES[precision] * kv_heads * (head_dim + (shape.v_head_dim or head_dim))


def kv_capacity_tokens(model: ModelSpec, gpu: GpuSpec, tp: int) -> int:
    """Tokens of KV cache that fit beside the weights on ``tp`` GPUs; raises if none do."""
    room = tp * gpu.memory_bytes * MEMORY_SHARE - model.weight_bytes
    tokens = int(room // model.kv_bytes_per_token)
    if tokens < 1:
        raise SimulationError(
            f"{model.name} does not fit on {tp} x {gpu.name}: its weights take "
            f"{model.weight_bytes / 1e9:.0f} GB of {tp * gpu.memory_bytes * MEMORY_SHARE / 1e9:.0f}"
            " GB; use more GPUs per instance (tp) or a smaller precision."
        )
    return tokens
