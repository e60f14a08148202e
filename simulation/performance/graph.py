"""The operator graph (methods.md A1) of a model under an arrangement of GPUs.

``operator_graph`` gives operators in an order in which they can run; ``after`` names make it a
directed graph (the vision encoder is a branch of its own, attention of prefill and of decode are
branches of one layer). Layers of one kind are one operator with a count.

The sequences and tokens of an iteration are those of the whole instance. They are spread evenly
over ``attention_dp`` copies of attention and over ``pp`` stages with as many micro-batches in
flight, so an iteration lasts as long as one micro-batch takes through all stages; a lone prompt,
which cannot be split that way, takes longer.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.performance.specs import BYTES, Arrangement, ModelShape
from simulation.performance.work import (
    Absorbed,
    Attention,
    Axis,
    Collective,
    Elementwise,
    Experts,
    Gemm,
    Iteration,
    Operator,
    Recurrence,
)

FloatArray = npt.NDArray[np.float64]
# The lightning indexer of DeepSeek-V3.2 (arXiv 2512.02556, section 2.1; config.json): heads, their
# dimension, and bytes of a cached key (8 bits and a scale per 128).
INDEX_HEADS, INDEX_DIM, INDEX_KEY_BYTES = 64, 128, 132.0


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Operators of one model on one arrangement, per GPU."""

    shape: ModelShape
    arrangement: Arrangement
    operators: tuple[Operator, ...]

    def __getitem__(self, name: str) -> Operator:
        for operator in self.operators:
            if operator.name == name:
                return operator
        raise SimulationError(f"{self.shape.name} has no operator {name}.")

    def total(self, quantity: str, it: Iteration) -> FloatArray:
        """Sum over operators and layers of an amount of ``Work``, one GPU passing all stages."""
        total = np.zeros_like(it.decodes)
        for operator in self.operators:
            total = total + operator.count * getattr(operator.work(it), quantity)
        return total

    @property
    def weight_bytes(self) -> float:
        """Weights that one GPU keeps, the mean over pipeline stages."""
        kept = sum(operator.count * operator.memory_bytes for operator in self.operators)
        return kept / self.arrangement.pp


def operator_graph(shape: ModelShape, arrangement: Arrangement) -> OperatorGraph:
    """The graph of ``shape`` on ``arrangement``; raises where the two do not go together.

    4-bit weights of a mixture of experts are those of its experts: the published checkpoints leave
    attention in 16 bits (hf_quant_config.json of nvidia/DeepSeek-R1-NVFP4, config.json of
    moonshotai/Kimi-K2.5: quantisation ignores self_attn). Embedding, router and output head are 16
    bits in all of them.
    """
    where = _checked(shape, arrangement)
    builder = _Builder(shape, where)
    operators: list[Operator] = []
    if shape.encoder:
        operators += _encoder(shape.encoder, shape.hidden, where)
    operators += builder.start()
    operators += builder.attention()
    operators += builder.feed_forward()
    operators += builder.end()
    kept = [o for o in operators if o.count]
    names = {o.name for o in kept}
    kept = [replace(o, after=tuple(a for a in o.after if a in names)) for o in kept]
    return OperatorGraph(shape, where, tuple(kept))


def _checked(shape: ModelShape, arrangement: Arrangement) -> Arrangement:
    for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep"):
        if getattr(arrangement, name) < 1:
            raise SimulationError(f"Arrangement of {shape.name}: {name} must be at least 1.")
    for name in ("weights", "kv_cache"):
        if getattr(arrangement, name) not in BYTES:
            raise SimulationError(
                f"Arrangement of {shape.name}: {name} {getattr(arrangement, name)!r} is unknown; "
                f"use one of {', '.join(BYTES)}."
            )
    if not shape.experts:
        return arrangement
    group = arrangement.tp * arrangement.attention_dp
    if arrangement.moe_tp * arrangement.moe_ep == group:
        return arrangement
    if arrangement.moe_tp == arrangement.moe_ep == 1:  # not said
        return replace(arrangement, moe_tp=arrangement.tp, moe_ep=arrangement.attention_dp)
    raise SimulationError(
        f"Arrangement of {shape.name}: moe_tp * moe_ep is "
        f"{arrangement.moe_tp * arrangement.moe_ep}, but experts run on the tp * attention_dp = "
        f"{group} GPUs of attention; make the two equal."
    )


def split(amount: int, parts: int) -> int:
    """What the busiest of ``parts`` GPUs holds; at least one (heads are replicated)."""
    return max(1, math.ceil(amount / parts))


class _Builder:
    def __init__(self, shape: ModelShape, where: Arrangement) -> None:
        self.shape, self.where = shape, where
        self.share = 1.0 / (where.attention_dp * where.pp)
        self.heads = split(shape.heads, where.tp)
        self.kv_heads = split(shape.kv_heads, where.tp)
        four_bit_experts = bool(shape.experts) and BYTES[where.weights] == 0.5
        self.attention_precision = "bf16" if four_bit_experts else where.weights
        self.layers = shape.layers
        self.moe_layers = shape.layers - shape.dense_layers if shape.experts else 0
        self.softmax_layers = shape.layers - shape.linear_layers

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
        return Gemm(
            name=name,
            after=tuple(after.split()),
            count=count,
            axis=axis,
            share=self.share,
            n=n,
            k=k,
            precision=precision or self.attention_precision,
        )

    def elementwise(
        self,
        name: str,
        after: str,
        read: int,
        written: int,
        count: int,
        memory: float = 0.0,
        kv_row_bytes: float = 0.0,
    ) -> Elementwise:
        return Elementwise(
            name=name,
            after=tuple(after.split()),
            count=count,
            share=self.share,
            read=read,
            written=written,
            memory=memory,
            kv_row_bytes=kv_row_bytes,
        )

    def all_reduce(self, name: str, after: str, count: int) -> Collective:
        return Collective(
            name=name,
            after=tuple(after.split()),
            kind="all_reduce",
            gpus=self.where.tp,
            width=self.shape.hidden,
            count=count if self.where.tp > 1 else 0,
            share=self.share,
        )

    def start(self) -> list[Operator]:
        shape, tp = self.shape, self.where.tp
        table = split(shape.vocab, tp) * shape.hidden * 2.0
        return [
            self.elementwise(
                "embedding", "encoder_projector", shape.hidden, shape.hidden, 1, memory=table
            ),
            self.all_reduce("embedding_all_reduce", "embedding", 1),
            self.elementwise(
                "input_norm",
                "embedding embedding_all_reduce",
                2 * shape.hidden,
                2 * shape.hidden,
                self.layers,
                memory=shape.hidden * 2.0,
            ),
        ]

    def attention(self) -> list[Operator]:
        shape = self.shape
        operators: list[Operator] = []
        if shape.linear_layers:
            operators += self.linear_attention()
        if self.softmax_layers:
            operators += self.latent() if shape.kv_lora_rank else self.grouped()
        operators.append(
            self.all_reduce("attention_all_reduce", "output_projection linear_output", self.layers)
        )
        operators.append(
            self.elementwise(
                "post_norm",
                "attention_all_reduce output_projection linear_output",
                2 * shape.hidden,
                2 * shape.hidden,
                self.layers,
                memory=shape.hidden * 2.0,
            )
        )
        return operators

    def kernels(
        self, axis: Axis, after: str, heads: int, kv_heads: int, qk: int, v: int, row: float
    ) -> list[Operator]:
        """Attention of one axis, apart for layers with all keys and with a window."""
        shape = self.shape
        name = f"attention_{'decode' if axis == 'decodes' else 'prefill'}"
        full = Attention(
            name=name,
            after=tuple(after.split()),
            count=self.softmax_layers - shape.window_layers,
            axis=axis,
            share=self.share,
            heads=heads,
            kv_heads=kv_heads,
            qk_dim=qk,
            v_dim=v,
            kv_row_bytes=row,
            kv_cache=self.where.kv_cache,
            window=shape.sparse_top_k,
        )
        return [
            full,
            replace(full, name=f"window_{name}", count=shape.window_layers, window=shape.window),
        ]

    def grouped(self) -> list[Operator]:
        """Multi-head, grouped-query or multi-query attention."""
        shape, dim = self.shape, self.shape.head_dim
        gate = 2 if shape.attention_gate else 1
        qkv = (gate * self.heads + 2 * self.kv_heads) * dim
        row = 2.0 * self.kv_heads * dim * BYTES[self.where.kv_cache]
        turned = (self.heads + 2 * self.kv_heads) * dim
        count = self.softmax_layers
        inner = (
            "attention_prefill window_attention_prefill attention_decode window_attention_decode"
        )
        operators: list[Operator] = [
            self.gemm("qkv_projection", "input_norm", qkv, shape.hidden, count),
            self.elementwise(
                "rope", "qkv_projection", turned, self.heads * dim, count, kv_row_bytes=row
            ),
            *self.indexer("input_norm"),
        ]
        axes: tuple[Axis, ...] = ("prefill", "decodes")
        for axis in axes:
            operators += self.kernels(
                axis, "rope indexer", self.heads, self.kv_heads, dim, dim, row
            )
        operators.append(
            self.gemm("output_projection", inner, shape.hidden, self.heads * dim, count)
        )
        return operators

    def latent(self) -> list[Operator]:
        """Multi-head latent attention: projected up in prefill, absorbed in decode.

        DeepSeek-V2, arXiv 2405.04434, section 2.1.2.
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
        kv_up = self.gemm(
            "kv_up", "query_up kv_down", heads * (nope + v), latent, count, axis="prefill"
        )
        read = heads * (nope + v) + rope  # a key and a value of every head
        operators += [
            self.elementwise(
                "rope",
                "query_up kv_down",
                heads * rope + rope,
                heads * rope,
                count,
                kv_row_bytes=row,
            ),
            *self.indexer("latent_norm input_norm"),
            kv_up,
            *self.kernels("prefill", "rope kv_up indexer", heads, heads, qk, v, read * 2.0),
            self.absorbed("query_absorb", "rope", latent, nope),
            *self.kernels("decodes", "query_absorb indexer", heads, 1, latent + rope, latent, row),
            self.absorbed("value_absorb", "attention_decode window_attention_decode", v, latent),
            self.gemm(
                "output_projection",
                "attention_prefill window_attention_prefill value_absorb",
                shape.hidden,
                heads * v,
                count,
            ),
        ]
        return operators

    def absorbed(self, name: str, after: str, n: int, k: int) -> Absorbed:
        return Absorbed(
            name=name,
            after=tuple(after.split()),
            count=self.softmax_layers,
            axis="decodes",
            share=self.share,
            n=n,
            k=k,
            matrices=self.heads,
            precision="bf16",
        )

    def indexer(self, after: str) -> list[Operator]:
        """What chooses the keys of sparse attention: scores over the whole context."""
        shape = self.shape
        if not shape.sparse_top_k:
            return []
        count = self.softmax_layers - shape.window_layers
        width = INDEX_HEADS * INDEX_DIM
        projection = self.gemm(
            "indexer_projection", after, width, shape.q_lora_rank or shape.hidden, count
        )
        score = Attention(
            name="indexer",
            after=("indexer_projection",),
            count=count,
            axis="decodes",
            share=self.share,
            heads=INDEX_HEADS,
            kv_heads=1,
            qk_dim=INDEX_DIM,
            v_dim=0,
            kv_row_bytes=INDEX_KEY_BYTES,
            kv_cache="fp8",
        )
        return [projection, score, replace(score, name="indexer_prefill", axis="prefill")]

    def linear_attention(self) -> list[Operator]:
        """Gated delta network (Qwen3-Next, Qwen3.5): state instead of a KV cache."""
        shape, tp, count = self.shape, self.where.tp, self.shape.linear_layers
        keys = shape.linear_key_width or shape.heads * shape.head_dim
        values = shape.linear_value_width or shape.heads * shape.head_dim
        width = split(2 * keys + 2 * values, tp)  # queries, keys, values, output gate
        state = Recurrence(
            name="linear_prefill",
            after=("linear_input",),
            count=count,
            axis="prefill",
            share=self.share,
            state_elements=shape.linear_state_bytes / 4 / tp,  # 32 bits each
            state_bytes=shape.linear_state_bytes / tp,
            width=width,
        )
        return [
            self.gemm("linear_input", "input_norm", width, shape.hidden, count),
            state,
            replace(state, name="linear_decode", axis="decodes"),
            self.gemm(
                "linear_output",
                "linear_prefill linear_decode",
                shape.hidden,
                split(values, tp),
                count,
            ),
        ]

    def feed_forward(self) -> list[Operator]:
        operators: list[Operator] = []
        dense = self.layers - self.moe_layers
        if dense:
            operators += self.dense("", dense, self.shape.intermediate, self.where.weights)
            operators.append(self.all_reduce("feed_forward_all_reduce", "down_projection", dense))
        if self.moe_layers:
            operators += self.mixture()
        return operators

    def dense(self, prefix: str, count: int, intermediate: int, precision: str) -> list[Operator]:
        shape = self.shape
        wide = split(intermediate, self.where.tp)
        up = (2 if shape.gated else 1) * wide
        names = [f"{prefix}{n}" for n in ("gate_up_projection", "activation", "down_projection")]
        return [
            self.gemm(names[0], "post_norm", up, shape.hidden, count, precision=precision),
            self.elementwise(names[1], names[0], up, wide, count),
            self.gemm(names[2], names[1], shape.hidden, wide, count, precision=precision),
        ]

    def mixture(self) -> list[Operator]:
        shape, where, count = self.shape, self.where, self.moe_layers
        operators: list[Operator] = [
            self.gemm("router", "post_norm", shape.experts, shape.hidden, count, precision="bf16")
        ]
        if shape.shared_intermediate:
            precision = self.attention_precision if where.weights == "int4" else where.weights
            operators += self.dense("shared_", count, shape.shared_intermediate, precision)
        group = where.tp * where.attention_dp
        spread = where.attention_dp > 1
        # With one copy of attention every GPU has all tokens and partial sums are reduced; with
        # several, tokens travel to the experts and back: to the ranks that hold one of their
        # experts (expert parallel), or to all of them (tensor parallel).
        ep = where.moe_ep
        ranks = ep * (1.0 - (1.0 - 1.0 / ep) ** shape.experts_per_token)
        sparse = spread and ep > 1
        tokens = Collective(
            name="dispatch",
            after=("router",),
            count=count if spread else 0,
            share=self.share,
            kind="all_to_all" if sparse else "all_gather",
            gpus=group,
            width=shape.hidden * (ranks / where.tp if sparse else where.attention_dp),
            bytes_each=min(ACTIVATION_OF[where.weights], 2.0),
        )
        operators += [
            tokens,
            Experts(
                name="experts",
                after=("router", "dispatch"),
                count=count,
                share=1.0 / where.pp,
                hidden=shape.hidden,
                intermediate=split(shape.expert_intermediate, where.moe_tp),
                experts=shape.experts,
                top_k=shape.experts_per_token,
                tp=where.moe_tp,
                ep=where.moe_ep,
                dispatched=sparse,
                gated=shape.gated,
                precision=where.weights,
            ),
            replace(
                tokens,
                name="combine",
                after=("experts", "shared_down_projection"),
                kind="all_to_all" if sparse else "reduce_scatter",
                bytes_each=2.0,
            ),
        ]
        reduce = self.all_reduce("experts_all_reduce", "experts shared_down_projection", count)
        operators.append(replace(reduce, count=0) if spread else reduce)
        return operators

    def end(self) -> list[Operator]:
        shape, where = self.shape, self.where
        last = (
            "down_projection feed_forward_all_reduce experts combine experts_all_reduce"
            " shared_down_projection"
        )
        vocab = split(shape.vocab, where.tp)
        head = self.gemm(
            "output_head", "final_norm", vocab, shape.hidden, 1, precision="bf16", axis="logits"
        )
        if shape.tied_embeddings:
            head = Absorbed(**asdict(head))
        return [
            self.elementwise("final_norm", last, 2 * shape.hidden, shape.hidden, 1),
            head,
            Collective(
                name="logits_all_gather",
                after=("output_head",),
                kind="all_gather",
                gpus=where.tp,
                width=shape.vocab,
                count=1 if where.tp > 1 else 0,
                axis="logits",
                share=self.share,
            ),
            Collective(
                name="stage_send",
                after=("final_norm",),
                kind="send",
                gpus=2,
                width=shape.hidden,
                count=where.pp - 1,
                share=self.share,
            ),
        ]


# Bytes of an activation on its way to an expert: quantised before it is sent, 4-bit ones in 8.
ACTIVATION_OF = {"bf16": 2.0, "fp8": 1.0, "fp4": 1.0, "int8": 1.0, "int4": 2.0}


def _encoder(encoder: ModelShape, hidden: int, where: Arrangement) -> list[Operator]:
    """The vision encoder: a dense model over image tokens, then a projection to the language
    model's width. Every image token attends to those of its image."""
    tower = _Builder(encoder, replace(where, attention_dp=1, pp=1, kv_cache="bf16"))
    tower.share = 1.0 / (where.attention_dp * where.pp)
    operators: list[Operator] = []
    skipped = {"embedding", "embedding_all_reduce", "attention_decode", "window_attention_decode"}
    for operator in tower.start() + tower.attention() + tower.feed_forward():
        if operator.name in skipped:
            continue
        after = tuple(f"encoder_{name}" for name in operator.after)
        moved = replace(operator, name=f"encoder_{operator.name}", after=after, axis="encoder")
        operators.append(moved)
    last = tower.gemm("encoder_projector", "", hidden, encoder.hidden, 1, axis="encoder")
    return [*operators, replace(last, after=("encoder_down_projection",))]
