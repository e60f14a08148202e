"""What a model takes of a GPU's memory: weights, KV cache, activations, and what then fits.

Parameters follow from the shape. Weights in 8 or 4 bits are those of the linear layers;
embedding, router, norms and output head stay in 16 bits, as in the published checkpoints, and 4-bit
weights of a mixture of experts are those of its experts only (hf_quant_config.json of
nvidia/DeepSeek-R1-NVFP4, config.json of openai/gpt-oss-120b and moonshotai/Kimi-K2.5).
"""

from __future__ import annotations

import math

from simulation.errors import SimulationError
from simulation.performance.graph import operator_graph
from simulation.performance.parameters import parameters
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelShape, ModelSpec
from simulation.performance.work import LowRank

MEMORY_SHARE = 0.9  # of GPU memory given to weights and KV cache; vLLM's gpu_memory_utilization
# Bytes of scale per weight. fp8: one 32-bit scale per block of 128 x 128 (DeepSeek-V3, arXiv
# 2412.19437, section 3.3). fp4: one 8-bit scale per 16 (NVFP4) to 32 (MXFP4) weights, the larger
# taken. int4: one 16-bit scale per 32 (Kimi-K2-Thinking, config.json, group_size 32). int8: one per
# output channel, nothing beside the weights.
SCALE_BYTES = {"bf16": 0.0, "fp8": 4 / 128**2, "fp4": 1 / 16, "int8": 0.0, "int4": 2 / 32}
INDEX_SCALE_BYTES = 4  # per cached key of a sparse attention layer, beside 8 bits per element
# Of one GPU, for the CUDA context, NCCL and captured graphs. Assumed: a vLLM engine on an 80 GB GPU
# reports 0.5 to 1.5 GB beside weights, activations and KV cache.
OVERHEAD_BYTES = 1e9
MAX_BATCH_TOKENS = 8192  # of an iteration; vLLM's default on GPUs of 80 GB
MAX_LOGITS = 256  # sequences whose next token is drawn at once; vLLM's max_num_seqs
TP_CHOICES = (1, 2, 4, 8, 16, 32, 64)


def weight_bytes(shape: ModelShape, precision: str = "bf16") -> float:
    """Bytes of all weights, one copy, linear layers in ``precision``."""
    parts = parameters(shape)
    low, rest = _stored_by_part(shape, precision)
    plain = parts.embedding + parts.router + parts.norms + parts.head + parts.encoder
    return (
        low * parts.experts + rest * (parts.attention + parts.feed_forward) + BYTES["bf16"] * plain
    )


def _stored_by_part(shape: ModelShape, precision: str) -> tuple[float, float]:
    """Bytes of a weight, its scale included, of experts and of the other linear layers."""
    if precision not in BYTES:
        raise SimulationError(f"Precision {precision!r} is unknown; use one of {', '.join(BYTES)}.")
    stored = BYTES[precision] + SCALE_BYTES[precision]
    experts_only = bool(shape.experts) and BYTES[precision] < 1
    return stored, BYTES["bf16"] if experts_only else stored


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
    in_window = min(context, shape.window) if shape.window else context
    return (
        context * _full_bytes(shape, precision)
        + in_window * _window_bytes(shape, precision)
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


def activation_bytes(
    shape: ModelShape, arrangement: Arrangement, max_batch_tokens: int = MAX_BATCH_TOKENS
) -> float:
    """Transient memory of one GPU in an iteration of ``max_batch_tokens``: the residual stream, the
    input and output of the widest operator, and the logits of MAX_LOGITS sequences in 32 bits.

    Modelled: what vLLM's profiling run allocates at its peak, without the allocator's slack.
    """
    tp = arrangement.tp
    factor = 3 if shape.gated else 2
    kv_heads = math.ceil(shape.kv_heads / tp)
    heads = math.ceil(shape.heads / tp)
    widths = [(heads + 2 * kv_heads) * shape.head_dim, factor * shape.intermediate / tp]
    if shape.experts:
        width = shape.hidden + factor * shape.expert_intermediate / arrangement.moe_tp
        widths.append(shape.experts_per_token * width)
    per_token = BYTES["bf16"] * (2 * shape.hidden + max(widths))
    return max_batch_tokens * per_token + MAX_LOGITS * shape.vocab * 4


def gpu_weight_bytes(shape: ModelShape, arrangement: Arrangement) -> float:
    """Weights on the fullest GPU of an arrangement: attention and dense feed-forward layers divided
    over ``tp``, experts over ``moe_tp * moe_ep``, layers over ``pp``; norms and router on each."""
    low, rest = _stored_by_part(shape, arrangement.weights)
    parts, tp = parameters(shape, arrangement.tp), arrangement.tp
    plain = BYTES["bf16"]
    layers = (
        low * parts.experts / _expert_gpus(shape, arrangement)
        + rest * (parts.attention + parts.feed_forward / tp)
        + plain * (parts.router + parts.norms)
    )
    ends = (parts.embedding, parts.head)
    outside = sum(ends) if arrangement.pp == 1 else max(ends)
    share = math.ceil(shape.layers / arrangement.pp) / shape.layers
    weights = share * layers + plain * (outside + parts.encoder) / tp
    return weights + adapter_bytes(shape, arrangement)


def adapter_bytes(shape: ModelShape, arrangement: Arrangement) -> float:
    """Adapters on one GPU, 16 bits, as many as may be used at once."""
    if shape.adapters is None:
        return 0.0
    operators = operator_graph(shape, arrangement).operators
    weights = sum(o.count * o.memory_bytes for o in operators if isinstance(o, LowRank))
    return weights / arrangement.pp


def _expert_gpus(shape: ModelShape, arrangement: Arrangement) -> int:
    """GPUs that hold the experts between them: all of a stage, also where the arrangement does not
    say how."""
    spread = arrangement.moe_tp * arrangement.moe_ep
    return spread if spread > 1 else arrangement.tp * arrangement.attention_dp


def gpu_kv_bytes(shape: ModelShape, context: int, arrangement: Arrangement) -> float:
    """What a sequence of ``context`` tokens holds on each GPU of the copy of attention it is on."""
    share = math.ceil(shape.layers / arrangement.pp) / shape.layers
    states = shape.linear_layers * shape.linear_state_bytes
    cache = kv_bytes(shape, context, arrangement.kv_cache) - states
    return share * (cache * _kv_share(shape, arrangement.tp) + states / arrangement.tp)


def _kv_share(shape: ModelShape, tp: int) -> float:
    """Of a sequence's KV cache on one of ``tp`` GPUs: heads cannot be cut, and a latent vector
    serves all heads, so that every GPU keeps it."""
    if shape.kv_lora_rank:
        return 1.0
    return math.ceil(shape.kv_heads / tp) / shape.kv_heads


def kv_room_bytes(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> float:
    """Bytes of one GPU left for KV cache; negative where the weights do not fit."""
    used = gpu_weight_bytes(shape, arrangement) + OVERHEAD_BYTES
    used += activation_bytes(shape, arrangement, max_batch_tokens)
    return gpu.memory_bytes * MEMORY_SHARE - used


def largest_batch(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    context: int,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> int:
    """Sequences of ``context`` tokens that one instance holds at once; 0 where none fits."""
    room = kv_room_bytes(shape, gpu, arrangement, max_batch_tokens)
    each = gpu_kv_bytes(shape, context, arrangement)
    return arrangement.attention_dp * max(0, int(room // each))


def largest_context(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> int:
    """Tokens of the longest single sequence that fits, at most the model's own limit; 0: none."""
    room = kv_room_bytes(shape, gpu, arrangement, max_batch_tokens)
    if gpu_kv_bytes(shape, 1, arrangement) > room:
        return 0
    low, high = 1, shape.max_context
    while low < high:  # bytes grow with the context
        middle = (low + high + 1) // 2
        fits = gpu_kv_bytes(shape, middle, arrangement) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def minimum_tp(
    shape: ModelShape,
    gpu: GpuSpec,
    precision: str = "bf16",
    context: int = 4096,
    kv_cache: str = "bf16",
) -> int:
    """Fewest GPUs, a power of two, over which a model fits with one sequence of ``context`` tokens.

    Raises SimulationError where not even the largest number does.
    """
    choices = [tp for tp in TP_CHOICES if tp <= shape.heads]
    for tp in choices:
        arrangement = Arrangement(tp=tp, moe_tp=tp, weights=precision, kv_cache=kv_cache)
        if largest_batch(shape, gpu, arrangement, min(context, shape.max_context)):
            return tp
    raise SimulationError(
        f"{shape.name} does not fit on {choices[-1]} x {gpu.name}: its weights take "
        f"{weight_bytes(shape, precision) / 1e9:.0f} GB; use a smaller precision or pipeline "
        "parallelism."
    )


def capacity_tokens(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    context: int,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> int:
    """Tokens of KV cache that one instance holds in sequences of ``context``; raises if none."""
    room = kv_room_bytes(shape, gpu, arrangement, max_batch_tokens)
    each = gpu_kv_bytes(shape, context, arrangement) / context
    tokens = arrangement.attention_dp * int(room // each)
    if tokens < 1:
        raise SimulationError(
            f"{shape.name} does not fit on {arrangement.gpus} x {gpu.name}: its weights take "
            f"{gpu_weight_bytes(shape, arrangement) / 1e9:.0f} GB of the "
            f"{gpu.memory_bytes * MEMORY_SHARE / 1e9:.0f} GB that each GPU gives; use more GPUs "
            "per instance or a smaller precision."
        )
    return tokens


def kv_capacity_tokens(
    model: ModelSpec, gpu: GpuSpec, tp: int, max_batch_tokens: int = MAX_BATCH_TOKENS
) -> int:
    """Tokens of KV cache that fit beside the weights on ``tp`` GPUs; raises if none do.

    Of a model known by its memory alone, weights and KV cache divide evenly and activations are not
    counted.
    """
    room = gpu.memory_bytes * MEMORY_SHARE - OVERHEAD_BYTES - model.weight_bytes / tp
    share = 1 / tp
    if model.shape is not None:
        arrangement = Arrangement(tp=tp, moe_tp=tp)
        room -= activation_bytes(model.shape, arrangement, max_batch_tokens)
        share = _kv_share(model.shape, tp)
    tokens = int(room // (model.kv_bytes_per_token * share))
    if tokens < 1:
        raise SimulationError(
            f"{model.name} does not fit on {tp} x {gpu.name}: its weights take "
            f"{model.weight_bytes / 1e9:.0f} GB of {tp * gpu.memory_bytes * MEMORY_SHARE / 1e9:.0f}"
            " GB; use more GPUs per instance (tp) or a smaller precision."
        )
    return tokens
