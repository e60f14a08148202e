"""The operators of attention: grouped-query, latent, sparse, windowed and linear."""

import math
from dataclasses import replace
from typing import Any, TypeVar

from simulation.performance.parameters import feed_forward_layers, linear_widths, window_heads
from simulation.performance.specs import BYTES, Arrangement, ModelShape
from simulation.performance.work import (
    Attention,
    Axis,
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Operator,
    Recurrence,
)

# The lightning indexer of DeepSeek-V3.2 (arXiv 2512.02556, section 2.1; config.json): heads, their
# default dimension, and bytes of the scale of a cached 8-bit key.
INDEX_HEADS, INDEX_DIM, INDEX_SCALE_BYTES = 64, 128, 4.0


T = TypeVar("T", bound=Operator)


def split(amount: int, parts: int) -> int:
    """Return the part of ``amount`` on the busiest of ``parts`` GPUs; at least 1.

    Heads that are fewer than the GPUs are replicated.
    """
    return max(1, math.ceil(amount / parts))


class AttentionParts:
    """Builds single operators of a model on one arrangement, and those of its attention."""

    def __init__(self, shape: ModelShape, arrangement: Arrangement) -> None:
        self.shape, self.where = shape, arrangement
        self.share = 1.0 / (arrangement.attention_dp * arrangement.pp)
        self.heads = split(shape.heads, arrangement.tp)
        self.kv_heads = split(shape.kv_heads, arrangement.tp)
        four_bit_experts = bool(shape.experts) and BYTES[arrangement.weights] == 0.5
        self.attention_precision = "bf16" if four_bit_experts else arrangement.weights
        self.layers = shape.layers
        self.moe_layers, self.dense_layers = feed_forward_layers(shape)
        self.softmax_layers = shape.layers - shape.linear_layers

    def layer_operator(
        self, operator: type[T], name: str, after: str, count: int, **sizes: Any
    ) -> T:
        """Return an operator of type ``operator`` that occurs in ``count`` layers.

        ``after`` has the names of the operators before it, separated by spaces. ``sizes`` are the
        other fields of the operator.
        """
        before = tuple(after.split())
        return operator(name=name, after=before, count=count, share=self.share, **sizes)

    def gemm(
        self,
        name: str,
        after: str,
        n: int,
        k: int,
        count: int,
        precision: str | None = None,
        axis: Axis = "tokens",
    ) -> Gemm:
        """Return a matrix product of ``count`` layers, rows x k times k x n.

        ``precision`` None: that of attention.
        """
        precision = precision or self.attention_precision
        by_block = bool(self.shape.experts) and precision == "fp8"
        return self.layer_operator(
            Gemm, name, after, count, axis=axis, n=n, k=k, precision=precision, by_block=by_block
        )

    def elementwise(
        self, name: str, after: str, read: int, written: int, count: int, **more: float
    ) -> Elementwise:
        """Return an elementwise operator; ``read`` and ``written`` are elements per row."""
        return self.layer_operator(
            Elementwise, name, after, count, read=read, written=written, **more
        )

    def norm(self, name: str, after: str, count: int) -> Elementwise:
        """Return a norm with the addition of the residual stream before it."""
        hidden = self.shape.hidden
        return self.elementwise(name, after, 2 * hidden, 2 * hidden, count, memory=hidden * 2.0)

    def all_reduce(self, name: str, after: str, count: int) -> Collective:
        """Return an all-reduce over the tensor parallel GPUs; none with a single GPU."""
        tp = self.where.tp
        return self.collective(name, after, "all_reduce", tp, self.shape.hidden, count * (tp > 1))

    def collective(
        self, name: str, after: str, kind: CollectiveKind, gpus: int, width: float, count: int,
        **more: Any,
    ) -> Collective:  # fmt: skip
        """Return communication between ``gpus``, of ``width`` elements per row."""
        return self.layer_operator(
            Collective, name, after, count, kind=kind, gpus=gpus, width=width, **more
        )

    def attention(self) -> list[Operator]:
        """Return the attention operators of all layers, with the all-reduce and the norm after."""
        shape = self.shape
        operators: list[Operator] = []
        if shape.linear_layers:
            operators += self.linear_attention()
        if self.softmax_layers:
            operators += self.latent() if shape.kv_lora_rank else self.softmax_attention()
        outputs = "output_projection window_output_projection linear_output"
        operators.append(self.all_reduce("attention_all_reduce", outputs, self.layers))
        with_feed_forward = self.moe_layers + self.dense_layers
        operators.append(
            self.norm("post_norm", f"attention_all_reduce {outputs}", with_feed_forward)
        )
        return operators

    def kernels(
        self,
        axis: Axis,
        after: str,
        kv_heads: int,
        qk: int,
        v: int,
        row: float,
        latent: bool = False,
    ) -> list[Operator]:
        """Return the attention kernels of one ``axis`` (prefill or decode): full, then in a window.

        ``qk`` and ``v`` are the widths of a query and a value head. ``row`` is a token's bytes in
        the KV cache. With ``latent``, keys and values are one compressed vector.
        """
        shape = self.shape
        name = f"attention_{'decode' if axis == 'decodes' else 'prefill'}"
        # In an encoder each token of a prompt attends to all, and not to half of them on average.
        halved = 1.0 if shape.causal or axis == "decodes" else 2.0
        full = self.layer_operator(
            Attention,
            name,
            after,
            self.softmax_layers - shape.window_layers,
            axis=axis,
            heads=self.heads,
            kv_heads=kv_heads,
            qk_dim=qk,
            v_dim=v,
            kv_row_bytes=row,
            kv_cache=self.where.kv_cache,
            window=shape.sparse_top_k,
            compression=shape.kv_compression / halved,
            latent=latent,
        )
        window = replace(
            full,
            name=f"window_{name}",
            count=shape.window_layers,
            window=shape.window,
            compression=1.0 / halved,
        )
        return [full, window]

    def softmax_attention(self) -> list[Operator]:
        """Return multi-head, grouped-query or multi-query attention.

        Window layers get separate projections if their heads differ from those of the other layers.
        """
        shape = self.shape
        kv_heads, dim = window_heads(shape)
        if (kv_heads, dim) == (shape.kv_heads, shape.head_dim) or not shape.window_layers:
            return self.layer_kind("", self.softmax_layers, shape.kv_heads, shape.head_dim, "both")
        full = self.softmax_layers - shape.window_layers
        return [
            *self.layer_kind("", full, shape.kv_heads, shape.head_dim, "full"),
            *self.layer_kind("window_", shape.window_layers, kv_heads, dim, "window"),
        ]

    def layer_kind(
        self, prefix: str, count: int, kv_heads: int, dim: int, kind: str
    ) -> list[Operator]:
        """Return the projections and attention kernels of ``count`` layers.

        ``kind`` selects the kernels: those of "full" attention, of "window" layers, or "both".
        ``dim`` is the width of a head. ``prefix`` distinguishes the operators of window layers.
        """
        shape, kv_heads = self.shape, split(kv_heads, self.where.tp)
        v = shape.v_head_dim or dim
        queries = self.heads * dim * (2 if shape.attention_gate else 1)
        row = kv_heads * (dim + v) * BYTES[self.where.kv_cache]
        rotated = self.heads * dim + kv_heads * (dim + v)
        projection, rope = f"{prefix}qkv_projection", f"{prefix}rope"
        width = queries + kv_heads * (dim + v)
        operators: list[Operator] = [
            self.gemm(projection, "input_norm", width, shape.hidden, count),
            self.elementwise(rope, projection, rotated, self.heads * dim, count, kv_row_bytes=row),
            *(self.indexer("input_norm") if kind != "window" else []),
        ]
        axes: tuple[Axis, ...] = ("prefill", "decodes")
        chosen = {"full": slice(0, 1), "window": slice(1, 2), "both": slice(0, 2)}[kind]
        inner: list[Operator] = []
        for axis in axes:
            after = f"{rope} indexer indexer_prefill"
            inner += self.kernels(axis, after, kv_heads, dim, v, row)[chosen]
        names = " ".join(operator.name for operator in inner)
        output = self.gemm(f"{prefix}output_projection", names, shape.hidden, self.heads * v, count)
        return [*operators, *inner, output]

    def latent(self) -> list[Operator]:
        """Return multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

        Prefill projects latent vectors up to keys and values. Decode absorbs the projections into
        queries and outputs.
        """
        shape, heads, count = self.shape, self.heads, self.softmax_layers
        rope, latent = shape.rope_head_dim, shape.kv_lora_rank
        nope = shape.nope_head_dim or shape.head_dim - rope
        v = shape.v_head_dim or nope
        qk = nope + rope
        row = (latent + rope) * BYTES[self.where.kv_cache]
        operators: list[Operator] = []
        if shape.q_lora_rank:
            down = shape.q_lora_rank + latent + rope
            operators += [
                self.gemm("qkv_down", "input_norm", down, shape.hidden, count),
                self.elementwise("latent_norm", "qkv_down", down, down, count),
                self.gemm("query_up", "latent_norm", heads * qk, shape.q_lora_rank, count),
            ]
        else:
            operators += [
                self.gemm("query_up", "input_norm", heads * qk, shape.hidden, count),
                self.gemm("kv_down", "input_norm", latent + rope, shape.hidden, count),
            ]
        projected = "query_up kv_down"
        expanded = heads * (nope + v)  # a key without its rotated part, and a value, of every head
        rotated = heads * rope
        row_read = (expanded + rope) * 2.0
        decoded = "attention_decode window_attention_decode"
        outputs = "attention_prefill window_attention_prefill value_absorb"
        return [
            *operators,
            self.elementwise("rope", projected, rotated + rope, rotated, count, kv_row_bytes=row),
            *self.indexer("latent_norm input_norm"),
            self.gemm("kv_up", projected, expanded, latent, count, axis="prefill"),
            *self.kernels("prefill", "rope kv_up indexer_prefill", heads, qk, v, row_read),
            self.absorbed_product("query_absorb", "rope", latent, nope),
            *self.kernels(
                "decodes", "query_absorb indexer", 1, latent + rope, latent, row, latent=True
            ),
            self.absorbed_product("value_absorb", decoded, v, latent),
            self.gemm("output_projection", outputs, shape.hidden, heads * v, count),
        ]

    def absorbed_product(self, name: str, after: str, n: int, k: int) -> Gemm:
        """Return a product of latent attention in decode, with weights of the up-projection."""
        product = self.gemm(name, after, n, k, self.softmax_layers, "bf16", "decodes")
        return replace(product, matrices=self.heads, absorbed=True)

    def indexer(self, after: str) -> list[Operator]:
        """Return the indexer of sparse attention, which scores the whole context to select keys."""
        shape = self.shape
        if not shape.sparse_top_k:
            return []
        count = self.softmax_layers - shape.window_layers
        dim, inputs = shape.index_head_dim or INDEX_DIM, shape.q_lora_rank or shape.hidden
        projection = self.gemm("indexer_projection", after, INDEX_HEADS * dim, inputs, count)
        score = self.layer_operator(
            Attention,
            "indexer",
            "indexer_projection",
            count,
            axis="decodes",
            heads=INDEX_HEADS,
            kv_heads=1,
            qk_dim=dim,
            v_dim=0,
            kv_row_bytes=dim + INDEX_SCALE_BYTES,
            kv_cache="fp8",
            compression=shape.kv_compression,
            latent=True,
        )
        return [projection, score, replace(score, name="indexer_prefill", axis="prefill")]

    def linear_attention(self) -> list[Operator]:
        """Return linear attention with a state instead of a KV cache (gated delta network).

        Models with it are Qwen3-Next and Qwen3.5.
        """
        shape, tp, count = self.shape, self.where.tp, self.shape.linear_layers
        keys, values = linear_widths(shape)
        width = split(2 * keys + 2 * values, tp)  # queries, keys, values, output gate
        attended = "linear_prefill linear_decode"
        state = self.layer_operator(
            Recurrence,
            "linear_prefill",
            "linear_input",
            count,
            axis="prefill",
            state_elements=shape.linear_state_bytes / 4 / tp,  # 32 bits each
            state_bytes=shape.linear_state_bytes / tp,
            width=width,
        )
        return [
            self.gemm("linear_input", "input_norm", width, shape.hidden, count),
            state,
            replace(state, name="linear_decode", axis="decodes"),
            self.gemm("linear_output", attended, shape.hidden, split(values, tp), count),
        ]
