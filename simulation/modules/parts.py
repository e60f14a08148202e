"""Memory and arithmetic of a layer's modules, and the cost of an action on them (methods.md B1).

The modules are those of CoCoServe, table 1. To replicate or migrate modules takes a fixed start
time, plus their bytes over the bandwidth of the link. The start time is that of the source's
smallest operation (section 6.5, table 2: one layer of LLaMA-13B over PCIe 4.0). From 10 layers on,
that table has fewer seconds than the bytes need over PCIe, so it is not used.
"""

from dataclasses import dataclass

from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.parameters import parameters
from simulation.performance.specs import BYTES, ModelShape

MIB = 2.0**20
LAYER_BYTES = 605 * MIB  # of LLaMA-13B, table 1
PCIE_BYTES_S = 25e9  # what copies reach of the 31.5 GB/s of PCIe 4.0 x16
START_S = {
    "replicate": 0.2987 - LAYER_BYTES / PCIE_BYTES_S,
    "migrate": 0.2492 - LAYER_BYTES / PCIE_BYTES_S,
}
MORE_BYTES = 502 * MIB  # memory of an operation, besides its modules (table 2)
COORDINATE_S = 0.0391
"""Seconds of coordination between copies and originals after an operation (section 6.5)."""
LATENCY_DISTURBANCE = 0.05
"""Largest rise of the latency of instances on the same devices during an operation (section 8)."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a layer, such as its attention; a mean over layers of different sizes."""

    name: str
    memory_bytes: float  # size of the weights, or of the KV cache of the tokens
    flops: float  # operations for one sequence of the tokens
    per_layer: int = 1  # number in a layer


def modules_of(shape: ModelShape, precision: str = "bf16", tokens: int = 256) -> tuple[Module, ...]:
    """Return the modules of a layer with their bytes and FLOPs, as in table 1 of the source.

    FLOPs are those of a prompt of ``tokens`` tokens (256 in the source), two per weight that a
    token uses. Attention scores add four per pair of tokens and head dimension. As in the source,
    the causal mask does not halve them.
    """
    parts, n = parameters(shape), shape.layers
    # Weights of one layer: of each part, and of the feed-forward part that one token uses.
    attention, feed_forward = parts.attention / n, (parts.feed_forward + parts.experts) / n
    active = parts.feed_forward / n
    if shape.experts:
        active += parts.experts / n * shape.experts_per_token / shape.experts
    scores = 4.0 * tokens * tokens * shape.heads * (shape.v_head_dim or shape.head_dim)
    size = BYTES[precision]  # bytes per weight
    matrices_in = 3 if shape.gated else 2  # of the feed-forward part
    projection = shape.hidden * shape.heads * shape.head_dim
    gate_or_up = 0.0 if shape.experts else active / matrices_in  # only dense models list it
    rows = [Module("self_attn.q_proj", projection * size, 2.0 * projection * tokens)]
    rows.append(Module("self_attn", attention * size, 2.0 * attention * tokens + scores))
    if gate_or_up:
        rows.append(
            Module(
                "ffn.up_proj", gate_or_up * size, 2.0 * gate_or_up * tokens, per_layer=matrices_in
            )
        )
    layer = attention + feed_forward
    rows += [
        Module("ffn", feed_forward * size, 2.0 * active * tokens),
        Module("decoder layer", layer * size, 2.0 * (attention + active) * tokens + scores),
        Module("KV cache", kv_bytes_per_token(shape) / n * tokens, 0.0),
    ]
    return tuple(rows)


def layer_bytes(shape: ModelShape, weight_bytes: float) -> tuple[float, float]:
    """Return the weight bytes of one layer's attention and feed-forward part (with experts).

    Both are means over layers of a model with ``weight_bytes`` in total. Embedding, head and
    encoder do not move.
    """
    parts = parameters(shape)
    bytes_per_parameter = weight_bytes / parts.total
    rest = parts.feed_forward + parts.experts + parts.router + parts.norms
    return (
        parts.attention * bytes_per_parameter / shape.layers,
        rest * bytes_per_parameter / shape.layers,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an operation on modules, and the memory that it uses."""

    seconds: float
    memory_bytes: float


def acting_cost(action: str, size_bytes: float, link_bytes_s: float) -> Cost:
    """Return the cost of a ``replicate`` or ``migrate`` of modules of ``size_bytes``."""
    return Cost(START_S[action] + size_bytes / link_bytes_s, MORE_BYTES + size_bytes)
