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


def per_gpu(amount: int, gpus: int) -> int:
    """Return the share of ``amount`` on the GPU with the most, a whole number of at least 1.

    ``amount`` is divided over ``gpus``. If there are fewer heads than GPUs, heads are replicated.
    """
    return max(1, math.ceil(amount / gpus))


class AttentionBuilder:
    """Builds single operators of a model on one arrangement, and those of its attention."""

    def __init__(self, shape: ModelShape, arrangement: Arrangement) -> None:
        """Derive the heads of one GPU, and the numbers of layers of each kind."""
        self.shape, self.arrangement = shape, arrangement
        # One GPU computes 1/dp of the requests, and 1/pp of the layers.
        self.share = 1.0 / (arrangement.attention_dp * arrangement.pp)
        self.heads = per_gpu(shape.heads, arrangement.tp)
        self.kv_heads = per_gpu(shape.kv_heads, arrangement.tp)
        # Checkpoints with 4-bit experts keep the weights of attention in bf16.
        four_bit_experts = bool(shape.experts) and BYTES[arrangement.weights] == 0.5
        self.attention_precision = "bf16" if four_bit_experts else arrangement.weights
        self.layers = shape.layers
        self.moe_layers, self.dense_layers = feed_forward_layers(shape)
        self.softmax_layers = shape.layers - shape.linear_layers
        self.full_layers = self.softmax_layers - shape.window_layers

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
        """Return a matrix product (rows x k times k x n) that occurs in ``count`` layers.

        For ``after`` see ``layer_operator``. ``precision`` None: that of attention's weights.
        """
        precision = precision or self.attention_precision
        by_block = bool(self.shape.experts) and precision == "fp8"
        return self.layer_operator(
            Gemm, name, after, count, axis=axis, n=n, k=k, precision=precision, by_block=by_block
        )

    def elementwise(
        self, name: str, after: str, read: int, written: int, count: int, **more: float
    ) -> Elementwise:
        """Return an elementwise operator; ``read`` and ``written`` are elements per token."""
        return self.layer_operator(
            Elementwise, name, after, count, read=read, written=written, **more
        )

    def norm(self, name: str, after: str, count: int) -> Elementwise:
        """Return the addition of the residual stream and the norm after it, as one operator."""
        hidden = self.shape.hidden
        return self.elementwise(name, after, 2 * hidden, 2 * hidden, count, memory=hidden * 2.0)

    def all_reduce(self, name: str, after: str, count: int) -> Collective:
        """Return an all-reduce over the tensor parallel GPUs; its count is 0 with a single GPU."""
        tp = self.arrangement.tp
        return self.collective(name, after, "all_reduce", tp, self.shape.hidden, count * (tp > 1))

    def collective(
        self, name: str, after: str, kind: CollectiveKind, gpus: int, width: float, count: int,
        **more: Any,
    ) -> Collective:  # fmt: skip
        """Return communication between ``gpus``; ``width`` are the elements of a token."""
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
            operators += self.latent_attention() if shape.kv_lora_rank else self.softmax_attention()
        outputs = "output_projection window_output_projection linear_output"
        operators.append(self.all_reduce("attention_all_reduce", outputs, self.layers))
        with_feed_forward = self.moe_layers + self.dense_layers
        operators.append(
            self.norm("post_norm", f"attention_all_reduce {outputs}", with_feed_forward)
        )
        return operators

    def attention_kernels(
        self,
        axis: Axis,
        after: str,
        layers: tuple[int, int],
        kv_heads: int,
        widths: tuple[int, int],
        token_bytes: float,
        latent: bool = False,
    ) -> list[Operator]:
        """Return two attention kernels of ``axis``, prefill or decodes: over all keys, in a window.

        ``layers`` are the numbers of layers (full, window). ``widths`` are those of (a query or key
        head, a value head). ``token_bytes`` are the bytes of a token in the KV cache of a layer.
        With ``latent``, keys and values are one compressed vector.
        """
        full_layers, window_layers = layers
        qk_dim, v_dim = widths
        shape = self.shape
        name = f"attention_{'decode' if axis == 'decodes' else 'prefill'}"
        # In an encoder each token attends to all tokens, and not to half of them on average.
        more_keys = 1.0 if shape.causal or axis == "decodes" else 2.0
        full = self.layer_operator(
            Attention,
            name,
            after,
            full_layers,
            axis=axis,
            heads=self.heads,
            kv_heads=kv_heads,
            qk_dim=qk_dim,
            v_dim=v_dim,
            kv_row_bytes=token_bytes,
            kv_cache=self.arrangement.kv_cache,
            window=shape.sparse_top_k,
            compression=shape.kv_compression / more_keys,
            latent=latent,
        )
        window = replace(
            full,
            name=f"window_{name}",
            count=window_layers,
            window=shape.window,
            compression=1.0 / more_keys,
        )
        return [full, window]

    def softmax_attention(self) -> list[Operator]:
        """Return the operators of multi-head, grouped-query or multi-query attention.

        Window layers get separate projections if their heads differ from those of the other layers.
        """
        shape, full, window = self.shape, self.full_layers, self.shape.window_layers
        heads, heads_in_window = (shape.kv_heads, shape.head_dim), window_heads(shape)
        if heads == heads_in_window or not window:
            return self.projected_attention("", full, window, *heads)
        return [
            *self.projected_attention("", full, 0, *heads),
            *self.projected_attention("window_", 0, window, *heads_in_window),
        ]

    def projected_attention(
        self, prefix: str, full_layers: int, window_layers: int, kv_heads: int, dim: int
    ) -> list[Operator]:
        """Return the projections and attention kernels of layers with the same heads.

        ``dim`` is the width of a query or key head. ``prefix`` starts the names of the projections.
        """
        shape, kv_heads = self.shape, per_gpu(kv_heads, self.arrangement.tp)
        v_dim, count = shape.v_head_dim or dim, full_layers + window_layers
        # Elements of a token on one GPU. A gate doubles the projected queries.
        keys_values = kv_heads * (dim + v_dim)
        queries = self.heads * dim * (2 if shape.attention_gate else 1)
        width, rotated = queries + keys_values, self.heads * dim + keys_values
        token_bytes = keys_values * BYTES[self.arrangement.kv_cache]
        projection, rope = f"{prefix}qkv_projection", f"{prefix}rope"
        operators: list[Operator] = [
            self.gemm(projection, "input_norm", width, shape.hidden, count),
            self.elementwise(
                rope, projection, rotated, self.heads * dim, count, kv_row_bytes=token_bytes
            ),
            *(self.indexer("input_norm") if full_layers else []),
        ]
        axes: tuple[Axis, ...] = ("prefill", "decodes")
        before = f"{rope} indexer indexer_prefill"
        layers, widths = (full_layers, window_layers), (dim, v_dim)
        for axis in axes:
            kernels = self.attention_kernels(axis, before, layers, kv_heads, widths, token_bytes)
            operators += [kernel for kernel in kernels if kernel.count]
        names = " ".join(operator.name for operator in operators if "attention" in operator.name)
        attended = self.heads * v_dim
        output = self.gemm(f"{prefix}output_projection", names, shape.hidden, attended, count)
        return [*operators, output]

    def latent_attention(self) -> list[Operator]:
        """Return the operators of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

        Prefill projects latent vectors up to keys and values. Decode absorbs the projections into
        queries and outputs, so its kernels have one KV head: the latent vector of a token.
        """
        shape, heads, count = self.shape, self.heads, self.softmax_layers
        # Elements of the latent vector, and of a head: rotated and other elements of a key, a value
        latent, rope = shape.kv_lora_rank, shape.rope_head_dim
        nope = shape.nope_head_dim or shape.head_dim - rope
        v = shape.v_head_dim or nope
        qk = nope + rope
        token_bytes = (latent + rope) * BYTES[self.arrangement.kv_cache]
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
        # Names of the operators before others, then elements of a token over all heads
        projected = "query_up kv_down"
        expanded = heads * (nope + v)  # a key without its rotated part, and a value, of every head
        rotated = heads * rope
        prefill_token_bytes = (expanded + rope) * 2.0
        layers = (self.full_layers, shape.window_layers)
        decoded = "attention_decode window_attention_decode"
        outputs = "attention_prefill window_attention_prefill value_absorb"
        return [
            *operators,
            self.elementwise(
                "rope", projected, rotated + rope, rotated, count, kv_row_bytes=token_bytes
            ),
            *self.indexer("latent_norm input_norm"),
            self.gemm("kv_up", projected, expanded, latent, count, axis="prefill"),
            *self.attention_kernels(
                "prefill", "rope kv_up indexer_prefill", layers, heads, (qk, v), prefill_token_bytes
            ),
            self.absorbed_product("query_absorb", "rope", latent, nope),
            *self.attention_kernels(
                "decodes",
                "query_absorb indexer",
                layers,
                1,
                (latent + rope, latent),
                token_bytes,
                latent=True,
            ),
            self.absorbed_product("value_absorb", decoded, v, latent),
            self.gemm("output_projection", outputs, shape.hidden, heads * v, count),
        ]

    def absorbed_product(self, name: str, after: str, n: int, k: int) -> Gemm:
        """Return a matrix product of decode, with the weights of latent attention's up-projection.

        It is rows x k times k x n for each head.
        """
        product = self.gemm(name, after, n, k, self.softmax_layers, "bf16", "decodes")
        return replace(product, matrices=self.heads, absorbed=True)

    def indexer(self, after: str) -> list[Operator]:
        """Return the indexer of sparse attention, which scores the whole context to select keys.

        It is empty for models without sparse attention.
        """
        shape = self.shape
        if not shape.sparse_top_k:
            return []
        dim, inputs = shape.index_head_dim or INDEX_DIM, shape.q_lora_rank or shape.hidden
        projection = self.gemm(
            "indexer_projection", after, INDEX_HEADS * dim, inputs, self.full_layers
        )
        score = self.layer_operator(
            Attention,
            "indexer",
            "indexer_projection",
            self.full_layers,
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
        """Return the operators of linear attention, which has a state instead of a KV cache.

        Models with it (gated delta network) are Qwen3-Next and Qwen3.5.
        """
        shape, tp, count = self.shape, self.arrangement.tp, self.shape.linear_layers
        keys, values = linear_widths(shape)
        width = per_gpu(2 * keys + 2 * values, tp)  # queries, keys, values, output gate
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
            self.gemm("linear_output", attended, shape.hidden, per_gpu(values, tp), count),
        ]
