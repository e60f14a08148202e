"""Count the parameters of a model by part, from its shape."""

import math
from dataclasses import astuple, dataclass

from simulation.performance.specs import ModelShape


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters by part of a model."""

    embedding: float
    attention: float  # with the mixers of linear layers
    feed_forward: float  # dense layers and shared experts
    experts: float
    router: float
    norms: float
    head: float
    encoder: float  # of images, with its projector

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


def parameters(shape: ModelShape, tp: int = 1) -> Parameters:
    """Return the numbers of parameters by part of the model.

    Biases and multi-token prediction layers do not count. With ``tp``, attention counts the
    parameters on one of that many GPUs. Heads are divided. With fewer key and value heads than
    GPUs, each GPU has a whole one. Latent projections (MLA) are whole on each GPU.
    """
    matrices = 3 if shape.gated else 2  # gate, up and down
    moe_layers, dense_layers = feed_forward_layers(shape)
    expert_width = shape.expert_hidden or shape.hidden
    # Projections to the width of the experts and back
    narrowing = 2 * shape.hidden * expert_width * moe_layers if shape.expert_hidden else 0
    encoder = 0.0
    if shape.encoder:  # its layers, and the projector of merged patches (2 x 2) to the text model
        parts, merged = parameters(shape.encoder), 4 * shape.encoder.hidden
        encoder = parts.attention + parts.feed_forward + parts.norms
        encoder += merged * (merged + shape.hidden)
    return Parameters(
        embedding=shape.vocab * shape.hidden,
        attention=_attention_parameters(shape, tp),
        feed_forward=matrices * shape.hidden * shape.intermediate * dense_layers
        + matrices * shape.hidden * shape.shared_intermediate * moe_layers
        + narrowing,
        experts=matrices * expert_width * shape.expert_intermediate * shape.experts * moe_layers,
        router=shape.hidden * shape.experts * moe_layers,
        # before attention, before the feed-forward part, and before the output head
        norms=shape.hidden * (shape.layers + moe_layers + dense_layers + 1),
        head=0 if shape.tied_embeddings else shape.vocab * shape.hidden,
        encoder=encoder,
    )


def feed_forward_layers(shape: ModelShape) -> tuple[int, int]:
    """Return the numbers of layers with a mixture of experts and with a dense feed-forward part."""
    layers = shape.layers if shape.ffn_layers is None else shape.ffn_layers
    moe = layers - shape.dense_layers if shape.experts else 0
    return moe, layers - moe


def window_heads(shape: ModelShape) -> tuple[int, int]:
    """Return the key and value heads of a window layer, and the dimension of a head."""
    return shape.window_kv_heads or shape.kv_heads, shape.window_head_dim or shape.head_dim


def linear_widths(shape: ModelShape) -> tuple[int, int]:
    """Return the widths of keys and of values of a linear layer, all heads together."""
    width = shape.heads * shape.head_dim
    return shape.linear_key_width or width, shape.linear_value_width or width


def _attention_parameters(shape: ModelShape, tp: int) -> float:
    """Return the parameters of attention and linear mixers on one of ``tp`` GPUs."""
    full = shape.layers - shape.window_layers - shape.linear_layers
    if shape.kv_lora_rank:
        softmax = (full + shape.window_layers) * _latent_layer(shape, tp)
    else:
        softmax = full * _layer(shape, tp, shape.kv_heads, shape.head_dim)
        softmax += shape.window_layers * _layer(shape, tp, *window_heads(shape))
    keys, values = linear_widths(shape)
    mixer = shape.hidden * (2 * keys + 3 * values) / tp  # queries, keys; values, gate, output
    return softmax + shape.linear_layers * mixer


def _layer(shape: ModelShape, tp: int, kv_heads: int, head_dim: int) -> float:
    """Return the parameters of one layer's query, key, value and output projections on a GPU.

    The layer is divided over ``tp`` GPUs. ``kv_heads`` and ``head_dim`` are those of the layer.
    """
    heads, kv_heads = math.ceil(shape.heads / tp), math.ceil(kv_heads / tp)
    values = shape.v_head_dim or head_dim
    query = heads * head_dim * (2 if shape.attention_gate else 1)
    return shape.hidden * (query + kv_heads * (head_dim + values) + heads * values)


def _latent_layer(shape: ModelShape, tp: int) -> float:
    """Return the parameters of one latent attention layer on one of ``tp`` GPUs.

    Each GPU has the whole down-projections and a share of the heads (DeepSeek-V2, arXiv 2405.04434,
    section 2.1).
    """
    hidden, heads = shape.hidden, math.ceil(shape.heads / tp)
    key = shape.nope_head_dim + shape.rope_head_dim
    rank = shape.q_lora_rank
    query = hidden * rank + rank * heads * key if rank else hidden * heads * key
    latent = hidden * (shape.kv_lora_rank + shape.rope_head_dim)
    expand = shape.kv_lora_rank * heads * (shape.nope_head_dim + shape.v_head_dim)
    return query + latent + expand + heads * shape.v_head_dim * hidden
