"""The operator graph (methods.md A1) of a model under an arrangement of GPUs.

``operator_graph`` returns the operators in an order in which they can run. The names in ``after``
make it a directed graph. The vision encoder is a separate branch. Attention of prefill and of
decode are branches of one layer. Layers of one kind are one operator with a count.

The sequences and tokens of an iteration are those of the whole instance. They spread evenly over
``attention_dp`` copies of attention, and over ``pp`` stages with ``pp`` micro-batches in flight. So
an iteration lasts as long as one micro-batch takes through all stages. A lone prompt cannot be
split in this way and takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.graph_attention import AttentionParts, split
from simulation.performance.specs import BYTES, WIDTHS, Arrangement, ModelShape
from simulation.performance.work import (
    Collective,
    CollectiveKind,
    Experts,
    Gemm,
    Iteration,
    LowRank,
    Operator,
)

# Linear layers without an adapter in the default settings of engines.
WITHOUT = ("router", "output_head", "expert_narrowing", "expert_widening", "indexer_projection")
# Number of projections in a fused linear layer.
PROJECTIONS = {"qkv_projection": 3, "qkv_down": 2}
GATED = ("gate_up_projection", "shared_gate_up_projection")


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """The operators of one model on one arrangement, as one GPU runs them."""

    shape: ModelShape
    arrangement: Arrangement
    operators: tuple[Operator, ...]

    def __getitem__(self, name: str) -> Operator:
        for operator in self.operators:
            if operator.name == name:
                return operator
        raise SimulationError(f"{self.shape.name} has no operator {name}.")

    def total(self, quantity: str, iteration: Iteration) -> FloatArray:
        """Return the sum of the amount ``quantity`` of ``Work`` over all operators and layers."""
        total = np.zeros_like(iteration.decodes)
        for operator in self.operators:
            total = total + operator.count * getattr(operator.work(iteration), quantity)
        return total

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of weights that one GPU keeps, as the mean over pipeline stages."""
        weights = sum(operator.count * operator.memory_bytes for operator in self.operators)
        return weights / self.arrangement.pp


def operator_graph(shape: ModelShape, arrangement: Arrangement) -> OperatorGraph:
    """Build the graph of ``shape`` on ``arrangement``.

    In a mixture of experts only the experts have 4-bit weights. The published checkpoints leave
    attention in 16 bits (hf_quant_config.json of nvidia/DeepSeek-R1-NVFP4, config.json of
    moonshotai/Kimi-K2.5: quantisation ignores self_attn). Embedding, router and output head always
    have 16 bits.

    Raises SimulationError if the arrangement is invalid for the model.
    """
    where = _checked_arrangement(shape, arrangement)
    builder = _Builder(shape, where)
    operators: list[Operator] = []
    if shape.encoder:
        operators += _encoder(shape.encoder, shape.hidden, where)
    operators += builder.start()
    operators += builder.attention()
    operators += builder.feed_forward()
    operators += builder.end()
    present = _with_adapters([o for o in operators if o.count], shape)
    names = {o.name for o in present}
    present = [replace(o, after=tuple(a for a in o.after if a in names)) for o in present]
    return OperatorGraph(shape, where, tuple(present))


def _with_adapters(operators: Sequence[Operator], shape: ModelShape) -> list[Operator]:
    """Return the operators with two products after each linear layer that has adapters (LoRA).

    They are down to the adapters' rank, and up from it. Experts, the encoder and the absorbed
    projections of latent attention have no adapters.
    """
    if shape.adapters is None:
        return list(operators)
    with_products: list[Operator] = []
    for operator in operators:
        with_products.append(operator)
        if not isinstance(operator, Gemm) or operator.absorbed:
            continue
        if operator.axis != "tokens" or operator.matrices > 1 or operator.name in WITHOUT:
            continue
        # A fused linear layer has several projections, each with a separate adapter.
        gated = operator.name in GATED and shape.gated
        projections = 2 if gated else PROJECTIONS.get(operator.name, 1)
        down, up = (f"{operator.name}_adapters_{side}" for side in ("down", "up"))
        with_products += [
            LowRank(
                name=name, after=after, count=operator.count, axis=operator.axis,
                share=operator.share, n=n, k=k, adapters=shape.adapters.active,
            )
            for name, after, n, k in (
                (down, operator.after, projections * shape.adapters.rank, operator.k),
                (up, (down,), operator.n, shape.adapters.rank),
            )
        ]  # fmt: skip
    return with_products


def _checked_arrangement(shape: ModelShape, arrangement: Arrangement) -> Arrangement:
    """Check an arrangement and fill in the default spread of experts.

    Raises SimulationError if the arrangement is invalid for the model.
    """
    for name in WIDTHS:
        if getattr(arrangement, name) < 1:
            raise SimulationError(f"Arrangement of {shape.name}: {name} must be at least 1.")
    for name in ("weights", "kv_cache"):
        if getattr(arrangement, name) not in BYTES:
            raise SimulationError(
                f"Arrangement of {shape.name}: {name} {getattr(arrangement, name)!r} is unknown. "
                f"Use one of {', '.join(BYTES)}."
            )
    if not shape.experts:
        return arrangement
    group = arrangement.tp * arrangement.attention_dp
    if arrangement.moe_tp * arrangement.moe_ep == group:
        return arrangement
    if arrangement.moe_tp == arrangement.moe_ep == 1:  # the defaults mean "not specified"
        return replace(arrangement, moe_tp=arrangement.tp, moe_ep=arrangement.attention_dp)
    raise SimulationError(
        f"Arrangement of {shape.name}: moe_tp * moe_ep is "
        f"{arrangement.moe_tp * arrangement.moe_ep}, but experts run on the tp * attention_dp = "
        f"{group} GPUs of attention. Make the two equal."
    )


class _Builder(AttentionParts):
    """Builds all operators of a model on one arrangement, each linked to the one before."""

    def start(self) -> list[Operator]:
        """Return the embedding and the norm before attention."""
        shape, tp = self.shape, self.where.tp
        table = split(shape.vocab, tp) * shape.hidden * 2.0
        return [
            self.elementwise(
                "embedding", "encoder_projector", shape.hidden, shape.hidden, 1, memory=table
            ),
            self.all_reduce("embedding_all_reduce", "embedding", 1),
            self.norm("input_norm", "embedding embedding_all_reduce", self.layers),
        ]

    def feed_forward(self) -> list[Operator]:
        """Return the dense feed-forward layers and the mixtures of experts."""
        operators: list[Operator] = []
        dense = self.dense_layers
        if dense:
            operators += self.dense("", dense, self.shape.intermediate, self.where.weights)
            operators.append(self.all_reduce("feed_forward_all_reduce", "down_projection", dense))
        if self.moe_layers:
            operators += self.mixture()
        return operators

    def dense(self, prefix: str, count: int, intermediate: int, precision: str) -> list[Operator]:
        """Return ``count`` dense feed-forward layers, divided over the tensor parallel GPUs."""
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
        """Return the operators of layers with experts: router, experts and transfers."""
        shape, where, count = self.shape, self.where, self.moe_layers
        operators: list[Operator] = [
            self.gemm("router", "post_norm", shape.experts, shape.hidden, count, precision="bf16")
        ]
        if shape.shared_intermediate:
            precision = self.attention_precision if where.weights == "int4" else where.weights
            operators += self.dense("shared_", count, shape.shared_intermediate, precision)
        # With one copy of attention every GPU has all tokens, and partial sums are reduced. With
        # several copies, tokens are sent to the experts and back. They go to the ranks with one of
        # their experts (expert parallel), or to all ranks (tensor parallel).
        spread = where.attention_dp > 1
        sparse = spread and where.moe_ep > 1
        width = shape.expert_hidden or shape.hidden
        narrow = count if shape.expert_hidden else 0  # layers with experts of another width
        dispatch = self.dispatch(width, count if spread else 0, sparse)
        combine = replace(
            dispatch,
            name="combine",
            after=("experts", "shared_down_projection"),
            kind="all_to_all" if sparse else "reduce_scatter",
            bytes_each=2.0,
        )
        outputs = "experts shared_down_projection combine expert_widening"
        return [
            *operators,
            self.gemm("expert_narrowing", "post_norm", width, shape.hidden, narrow),
            dispatch,
            self.experts(width, count, sparse),
            combine,
            self.gemm("expert_widening", "experts combine", shape.hidden, width, narrow),
            self.all_reduce("experts_all_reduce", outputs, 0 if spread else count),
        ]

    def dispatch(self, width: int, count: int, sparse: bool) -> Collective:
        """Return the transfer of tokens to the experts of ``count`` layers.

        A token has ``width`` elements. ``sparse``: it goes only to ranks with one of its experts.
        """
        shape, where, ep = self.shape, self.where, self.where.moe_ep
        # Expected number of ranks with at least one of a token's experts
        ranks = ep * (1.0 - (1.0 - 1.0 / ep) ** shape.experts_per_token)
        kind: CollectiveKind = "all_to_all" if sparse else "all_gather"
        elements = width * (ranks / where.tp if sparse else where.attention_dp)
        gpus = where.tp * where.attention_dp
        return self.collective(
            "dispatch", "router expert_narrowing", kind, gpus, elements, count,
            bytes_each=min(ACTIVATION_OF[where.weights], 2.0),
            copy=width / where.tp,
            chosen=shape.experts_per_token if sparse else 0,
        )  # fmt: skip

    def experts(self, width: int, count: int, sparse: bool) -> Experts:
        """Return the experts of ``count`` layers, which read and write ``width`` elements."""
        shape, where = self.shape, self.where
        placed = self.layer_operator(
            Experts,
            "experts",
            "router expert_narrowing dispatch",
            count,
            hidden=width,
            intermediate=split(shape.expert_intermediate, where.moe_tp),
            experts=shape.experts,
            top_k=shape.experts_per_token,
            tp=where.moe_tp,
            ep=where.moe_ep,
            dispatched=sparse,
            gated=shape.gated,
            precision=where.weights,
        )
        return replace(placed, share=1.0 / where.pp)

    def end(self) -> list[Operator]:
        """Return the last norm, the output head, and transfers between GPUs and stages."""
        shape, where, tp = self.shape, self.where, self.where.tp
        last = (
            "down_projection feed_forward_all_reduce experts combine experts_all_reduce"
            " shared_down_projection expert_widening"
        )
        vocab, several = split(shape.vocab, tp), int(tp > 1)
        head = self.gemm(
            "output_head", "final_norm", vocab, shape.hidden, 1, precision="bf16", axis="logits"
        )
        if shape.tied_embeddings:  # the embedding already counts the memory of these weights
            head = replace(head, absorbed=True)
        return [
            self.elementwise("final_norm", last, 2 * shape.hidden, shape.hidden, 1),
            head,
            self.collective(
                "logits_all_gather",
                "output_head",
                "all_gather",
                tp,
                shape.vocab,
                several,
                axis="logits",
            ),
            self.collective("stage_send", "final_norm", "send", 2, shape.hidden, where.pp - 1),
        ]


# Bytes per element of an activation sent to an expert. It is quantised before it is sent; 4-bit
# floating point models send 8 bits.
ACTIVATION_OF = {"bf16": 2.0, "fp8": 1.0, "fp4": 1.0, "int8": 1.0, "int4": 2.0}


def _encoder(encoder: ModelShape, hidden: int, arrangement: Arrangement) -> list[Operator]:
    """Return the operators of the vision encoder.

    It is a dense model over image patches that attend to the patches of their image. A projection
    then maps merged patches to the ``hidden`` width of the language model.
    """
    plain = replace(arrangement, attention_dp=1, pp=1, weights="bf16", kv_cache="bf16")
    tower = _Builder(encoder, plain)
    tower.share = 1.0 / (arrangement.attention_dp * arrangement.pp)
    operators: list[Operator] = []
    skipped = {"embedding", "embedding_all_reduce", "attention_decode"}
    for operator in tower.start() + tower.attention() + tower.feed_forward():
        if operator.name in skipped:
            continue
        after = tuple(f"encoder_{name}" for name in operator.after)
        moved = replace(operator, name=f"encoder_{operator.name}", after=after, axis="encoder")
        operators.append(moved)
    merged = 4 * encoder.hidden  # 2 x 2 patches become one token of the language model
    tower.share /= 4
    last = "encoder_down_projection encoder_feed_forward_all_reduce"
    return [
        *operators,
        tower.gemm("encoder_merger", last, merged, merged, 1, axis="encoder"),
        tower.gemm("encoder_projector", "encoder_merger", hidden, merged, 1, axis="encoder"),
    ]
