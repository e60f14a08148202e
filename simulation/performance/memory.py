"""GPU memory of a model: weights, KV cache and activations, and the batch or context that fits.

Only the linear layers have weights in 8 or 4 bits. Embedding, router, norms and output head stay in
16 bits, as in the published checkpoints. In a mixture of experts only the experts have 4-bit
weights. Sources: hf_quant_config.json of nvidia/DeepSeek-R1-NVFP4, and config.json of
openai/gpt-oss-120b and moonshotai/Kimi-K2.5.
"""

import math
from bisect import bisect_right
from dataclasses import replace

from simulation.errors import SimulationError
from simulation.performance.graph import operator_graph
from simulation.performance.parameters import parameters, window_heads
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelShape, ModelSpec
from simulation.performance.work import LowRank

MEMORY_SHARE = 0.9  # of GPU memory given to weights and KV cache; vLLM's gpu_memory_utilization
# Bytes of scale per weight. fp8: one 32-bit scale per block of 128 x 128 (DeepSeek-V3, arXiv
# 2412.19437, section 3.3). fp4: one 8-bit scale per 16 (NVFP4) or 32 (MXFP4) weights; 16 is used,
# the larger share. int4: one 16-bit scale per 32 (Kimi-K2-Thinking, config.json, group_size 32).
# int8: one scale per output channel, which is negligible.
SCALE_BYTES = {"bf16": 0.0, "fp8": 4 / 128**2, "fp4": 1 / 16, "int8": 0.0, "int4": 2 / 32}
INDEX_SCALE_BYTES = 4  # per cached key of a sparse attention layer, besides 8 bits per element
# CUDA context, NCCL and captured graphs on one GPU. Assumed: a vLLM engine on an 80 GB GPU reports
# 0.5 to 1.5 GB besides weights, activations and KV cache.
OVERHEAD_BYTES = 1e9
MAX_BATCH_TOKENS = 8192  # of an iteration; vLLM's default on GPUs of 80 GB
MAX_LOGITS = 256  # sequences that draw a token at once; vLLM's max_num_seqs
TP_CHOICES = (1, 2, 4, 8, 16, 32, 64)


def weight_bytes(shape: ModelShape, precision: str = "bf16") -> float:
    """Return the bytes of one copy of all weights, with the linear layers in ``precision``."""
    return gpu_weight_bytes(replace(shape, adapters=None), Arrangement(weights=precision))


def bytes_per_weight(shape: ModelShape, precision: str) -> tuple[float, float]:
    """Return the bytes per weight of experts, and of other linear layers, with their scales."""
    stored = _bytes_of(precision) + SCALE_BYTES[precision]
    experts_only = bool(shape.experts) and BYTES[precision] < 1
    return stored, BYTES["bf16"] if experts_only else stored


def kv_bytes_per_token(
    shape: ModelShape, precision: str = "bf16", context: int | None = None
) -> float:
    """Return the bytes of one token in the KV cache of all layers.

    With ``context``, return the mean over a sequence of that many tokens. Window layers reduce the
    mean, and the fixed state of linear layers increases it.
    """
    if context is not None:
        return kv_bytes(shape, context, precision) / context
    return sum(_token_bytes(shape, precision))


def kv_bytes(shape: ModelShape, context: int, precision: str = "bf16") -> float:
    """Return the bytes of a sequence of ``context`` tokens: KV cache and linear states."""
    in_window = min(context, shape.window) if shape.window else context
    full, window = _token_bytes(shape, precision)
    states = shape.linear_layers * shape.linear_state_bytes
    return context * full + in_window * window + states


def _token_bytes(shape: ModelShape, precision: str) -> tuple[float, float]:
    """Return the bytes of one token in all layers with full attention, and in all window layers."""
    layers = shape.layers - shape.window_layers - shape.linear_layers
    entry = _entry_bytes(shape, shape.kv_heads, shape.head_dim, precision)
    index = shape.index_head_dim + INDEX_SCALE_BYTES if shape.index_head_dim else 0
    window = shape.window_layers * _entry_bytes(shape, *window_heads(shape), precision)
    return layers * (entry + index) / shape.kv_compression, window


def _entry_bytes(shape: ModelShape, kv_heads: int, head_dim: int, precision: str) -> float:
    """Return the bytes that one token adds to the cache of one layer, at ``precision``.

    They are keys and values, or a latent vector (MLA).
    """
    elements = kv_heads * (head_dim + (shape.v_head_dim or head_dim))
    if shape.kv_lora_rank:
        elements = shape.kv_lora_rank + shape.rope_head_dim
    return _bytes_of(precision) * elements


def _bytes_of(precision: str) -> float:
    """Return the bytes of an element; raise SimulationError if the precision is unknown."""
    if precision not in BYTES:
        raise SimulationError(f"Precision {precision!r} is unknown. Use one of {', '.join(BYTES)}.")
    return BYTES[precision]


def activation_bytes(
    shape: ModelShape, arrangement: Arrangement, max_batch_tokens: int = MAX_BATCH_TOKENS
) -> float:
    """Return the transient bytes of one GPU in an iteration of ``max_batch_tokens``.

    They are the residual stream, the input and output of the widest operator, and the logits of
    MAX_LOGITS sequences in 32 bits. This models the peak of vLLM's profiling run, without the slack
    of the allocator.
    """
    tp = arrangement.tp
    matrices = 3 if shape.gated else 2  # gate, up and down
    heads, kv_heads = math.ceil(shape.heads / tp), math.ceil(shape.kv_heads / tp)
    widths = [(heads + 2 * kv_heads) * shape.head_dim, matrices * shape.intermediate / tp]
    if shape.experts:
        width = shape.hidden + matrices * shape.expert_intermediate / arrangement.moe_tp
        widths.append(shape.experts_per_token * width)
    per_token = BYTES["bf16"] * (2 * shape.hidden + max(widths))
    return max_batch_tokens * per_token + MAX_LOGITS * shape.vocab * 4


def gpu_weight_bytes(shape: ModelShape, arrangement: Arrangement) -> float:
    """Return the bytes of weights on the fullest GPU of an arrangement.

    Attention and dense feed-forward layers are divided over ``tp``, experts over
    ``moe_tp * moe_ep``, and layers over ``pp``. Each GPU of a stage has all its norms and routers.
    """
    bytes_of_expert_weight, bytes_of_other_weight = bytes_per_weight(shape, arrangement.weights)
    parts, tp = parameters(shape, arrangement.tp), arrangement.tp
    spread = arrangement.moe_tp * arrangement.moe_ep
    expert_gpus = spread if spread > 1 else tp * arrangement.attention_dp
    layers = (
        bytes_of_expert_weight * parts.experts / expert_gpus
        + bytes_of_other_weight * (parts.attention + parts.feed_forward / tp)
        + BYTES["bf16"] * (parts.router + parts.norms)
    )
    end_parts = (parts.embedding, parts.head)  # on the first and on the last stage
    end_weights = sum(end_parts) if arrangement.pp == 1 else max(end_parts)
    longest_stage = math.ceil(shape.layers / arrangement.pp) / shape.layers
    weights = longest_stage * layers
    weights += BYTES["bf16"] * (end_weights + parts.encoder) / tp
    return weights + adapter_bytes(shape, arrangement)


def adapter_bytes(shape: ModelShape, arrangement: Arrangement) -> float:
    """Return the bytes on one GPU of all LoRA adapters that may be active, in 16 bits."""
    if shape.adapters is None:
        return 0.0
    operators = operator_graph(shape, arrangement).operators
    weights = sum(o.count * o.memory_bytes for o in operators if isinstance(o, LowRank))
    return weights / arrangement.pp


def gpu_kv_bytes(shape: ModelShape, context: int, arrangement: Arrangement) -> float:
    """Return the bytes of a sequence of ``context`` tokens on each GPU that holds part of it."""
    states = shape.linear_layers * shape.linear_state_bytes
    cache = kv_bytes(shape, context, arrangement.kv_cache) - states
    layers = cache * _kv_share(shape, arrangement.tp) + states / arrangement.tp
    return math.ceil(shape.layers / arrangement.pp) / shape.layers * layers  # longest stage


def _kv_share(shape: ModelShape, tp: int) -> float:
    """Return the share of a sequence's KV cache that each of ``tp`` GPUs stores.

    Heads cannot be cut, so the share is rounded up to whole heads. A latent vector serves all
    heads, so every GPU keeps it whole.
    """
    if shape.kv_lora_rank:
        return 1.0
    return math.ceil(shape.kv_heads / tp) / shape.kv_heads


def kv_room_bytes(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> float:
    """Return the bytes of one GPU left for KV cache; negative if the weights do not fit."""
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
    """Return how many sequences of ``context`` tokens fit on one instance at once."""
    free_bytes = kv_room_bytes(shape, gpu, arrangement, max_batch_tokens)
    sequence_bytes = gpu_kv_bytes(shape, context, arrangement)
    return arrangement.attention_dp * max(0, int(free_bytes // sequence_bytes))


def largest_context(shape: ModelShape, gpu: GpuSpec, arrangement: Arrangement) -> int:
    """Return the tokens of the longest sequence that fits, up to the model's limit; 0: none fits.

    The search is a bisection, since bytes grow with the context.
    """
    free_bytes = kv_room_bytes(shape, gpu, arrangement)
    contexts = range(1, shape.max_context + 1)
    return bisect_right(
        contexts, free_bytes, key=lambda tokens: gpu_kv_bytes(shape, tokens, arrangement)
    )


def minimum_tp(
    shape: ModelShape, gpu: GpuSpec, precision: str = "bf16", context: int = 4096
) -> int:
    """Return the smallest tensor parallelism, a power of two, that fits one sequence.

    The sequence has ``context`` tokens, or the model's limit if that is smaller. Raises
    SimulationError if the model fits on none of TP_CHOICES up to its number of heads.
    """
    choices = [tp for tp in TP_CHOICES if tp <= shape.heads]
    for tp in choices:
        arrangement = Arrangement(tp=tp, moe_tp=tp, weights=precision)
        if largest_batch(shape, gpu, arrangement, min(context, shape.max_context)):
            return tp
    raise SimulationError(
        f"{shape.name} does not fit on {choices[-1]} x {gpu.name}: its weights take "
        f"{weight_bytes(shape, precision) / 1e9:.0f} GB. Use a smaller precision or pipeline "
        "parallelism."
    )


def capacity_tokens(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    context: int,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> int:
    """Return the tokens of KV cache that fit on an instance, in sequences of ``context``.

    Raises SimulationError if none fits.
    """
    free_bytes = kv_room_bytes(shape, gpu, arrangement, max_batch_tokens)
    bytes_per_token = gpu_kv_bytes(shape, context, arrangement) / context
    tokens = arrangement.attention_dp * int(free_bytes // bytes_per_token)
    if tokens < 1:
        raise SimulationError(
            f"{shape.name} does not fit on {arrangement.gpus} x {gpu.name}: its weights take "
            f"{gpu_weight_bytes(shape, arrangement) / 1e9:.0f} GB of the "
            f"{gpu.memory_bytes * MEMORY_SHARE / 1e9:.0f} GB that each GPU gives. Use more GPUs "
            "per replica or a smaller precision."
        )
    return tokens


def kv_capacity_tokens(
    model: ModelSpec, gpu: GpuSpec, tp: int, max_batch_tokens: int = MAX_BATCH_TOKENS
) -> int:
    """Return the tokens of KV cache that fit next to the weights on ``tp`` GPUs.

    Without the shape of the model, weights and KV cache divide evenly and activations do not count.
    Raises SimulationError if no token fits.
    """
    free_bytes = gpu.memory_bytes * MEMORY_SHARE - OVERHEAD_BYTES - model.weight_bytes / tp
    share = 1 / tp
    if model.shape is not None:
        arrangement = Arrangement(tp=tp, moe_tp=tp)
        free_bytes -= activation_bytes(model.shape, arrangement, max_batch_tokens)
        share = _kv_share(model.shape, tp)
    tokens = int(free_bytes // (model.kv_bytes_per_token * share))
    if tokens < 1:
        raise SimulationError(
            f"{model.name} does not fit on {tp} x {gpu.name}: its weights take "
            f"{model.weight_bytes / 1e9:.0f} GB of {tp * gpu.memory_bytes * MEMORY_SHARE / 1e9:.0f}"
            " GB. Use more GPUs per replica (tp) or a smaller precision."
        )
    return tokens
