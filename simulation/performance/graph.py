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
from simulation.performance.graph_attention import AttentionBuilder, per_gpu
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
WITHOUT_ADAPTER = (
    "router", "output_head", "expert_narrowing", "expert_widening", "indexer_projection",
)  # fmt: skip
PROJECTIONS = {"qkv_projection": 3, "qkv_down": 2}  # in a fused linear layer
GATED = ("gate_up_projection", "shared_gate_up_projection")  # two projections if gated, else one


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
        """Return the sum over all operators and layers of ``quantity``, a field of ``Work``."""
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
    arrangement = _checked_arrangement(shape, arrangement)
    builder = _Builder(shape, arrangement)
    operators: list[Operator] = []
    if shape.encoder:
        operators += _encoder(shape.encoder, shape.hidden, arrangement)
    operators += builder.first_operators()
    operators += builder.attention()
    operators += builder.feed_forward()
    operators += builder.last_operators()
    present = _with_adapters([operator for operator in operators if operator.count], shape)
    names = {operator.name for operator in present}
    linked = []
    for operator in present:
        after = tuple(name for name in operator.after if name in names)
        linked.append(replace(operator, after=after))
    return OperatorGraph(shape, arrangement, tuple(linked))


def _with_adapters(operators: Sequence[Operator], shape: ModelShape) -> list[Operator]:
    """Return ``operators`` with two matrix products after each linear layer that has LoRA adapters.

    The first projects down to the rank of the adapters, the second projects up from it. Experts,
    the encoder and the absorbed projections of latent attention have no adapters.
    """
    if shape.adapters is None:
        return list(operators)
    with_products: list[Operator] = []
    for operator in operators:
        with_products.append(operator)
        if not isinstance(operator, Gemm) or operator.absorbed:
            continue
        if operator.axis != "tokens" or operator.matrices > 1 or operator.name in WITHOUT_ADAPTER:
            continue
        # A fused linear layer has several projections, each with a separate adapter.
        projections = PROJECTIONS.get(operator.name, 1)
        if operator.name in GATED and shape.gated:
            projections = 2
        rank, prefix = shape.adapters.rank, f"{operator.name}_adapters"
        down = LowRank(
            name=f"{prefix}_down",
            after=operator.after,
            count=operator.count,
            axis=operator.axis,
            share=operator.share,
            n=projections * rank,
            k=operator.k,
            adapters=shape.adapters.active,
        )
        up = replace(down, name=f"{prefix}_up", after=(down.name,), n=operator.n, k=rank)
        with_products += [down, up]
    return with_products


def _checked_arrangement(shape: ModelShape, arrangement: Arrangement) -> Arrangement:
    """Return ``arrangement`` with its ``moe_tp`` and ``moe_ep`` filled in if both are 1.

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


class _Builder(AttentionBuilder):
    """Builds all operators of a model on one arrangement, with the names of those before each."""

    def first_operators(self) -> list[Operator]:
        """Return the embedding and the norm before attention."""
        shape, tp = self.shape, self.arrangement.tp
        table = per_gpu(shape.vocab, tp) * shape.hidden * 2.0
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
            operators += self.dense_feed_forward(
                "", dense, self.shape.intermediate, self.arrangement.weights
            )
            operators.append(self.all_reduce("feed_forward_all_reduce", "down_projection", dense))
        if self.moe_layers:
            operators += self.mixture_of_experts()
        return operators

    def dense_feed_forward(
        self, prefix: str, count: int, intermediate: int, precision: str
    ) -> list[Operator]:
        """Return ``count`` dense feed-forward layers, divided over the tensor parallel GPUs.

        ``prefix`` starts the names of the operators. ``precision`` is that of the weights.
        """
        shape = self.shape
        wide = per_gpu(intermediate, self.arrangement.tp)
        up = (2 if shape.gated else 1) * wide
        names = [f"{prefix}{n}" for n in ("gate_up_projection", "activation", "down_projection")]
        return [
            self.gemm(names[0], "post_norm", up, shape.hidden, count, precision=precision),
            self.elementwise(names[1], names[0], up, wide, count),
            self.gemm(names[2], names[1], shape.hidden, wide, count, precision=precision),
        ]

    def mixture_of_experts(self) -> list[Operator]:
        """Return the operators of layers with experts: router, experts and transfers."""
        shape, arrangement, count = self.shape, self.arrangement, self.moe_layers
        operators: list[Operator] = [
            self.gemm("router", "post_norm", shape.experts, shape.hidden, count, precision="bf16")
        ]
        if shape.shared_intermediate:
            precision = (
                self.attention_precision if arrangement.weights == "int4" else arrangement.weights
            )
            operators += self.dense_feed_forward(
                "shared_", count, shape.shared_intermediate, precision
            )
        # With one copy of attention every GPU has all tokens, and partial sums are reduced. With
        # several copies, tokens are sent to the experts and back. They go to the ranks with one of
        # their experts (expert parallel), or to all ranks (tensor parallel). Operators that an
        # arrangement does not need have a count of 0 and are removed later.
        spread = arrangement.attention_dp > 1
        sparse = spread and arrangement.moe_ep > 1
        width = shape.expert_hidden or shape.hidden
        narrow_layers = count if shape.expert_hidden else 0  # with experts of another width
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
            self.gemm("expert_narrowing", "post_norm", width, shape.hidden, narrow_layers),
            dispatch,
            self.experts(width, count, sparse),
            combine,
            self.gemm("expert_widening", "experts combine", shape.hidden, width, narrow_layers),
            self.all_reduce("experts_all_reduce", outputs, 0 if spread else count),
        ]

    def dispatch(self, width: int, count: int, sparse: bool) -> Collective:
        """Return the collective that sends the tokens to the experts of ``count`` layers.

        A token has ``width`` elements. If ``sparse``, a token goes only to the GPUs (ranks) with
        one of its experts, else to all.
        """
        shape, arrangement, ep = self.shape, self.arrangement, self.arrangement.moe_ep
        # Expected number of ranks with at least one of a token's experts
        ranks = ep * (1.0 - (1.0 - 1.0 / ep) ** shape.experts_per_token)
        kind: CollectiveKind = "all_to_all" if sparse else "all_gather"
        elements = width * (ranks / arrangement.tp if sparse else arrangement.attention_dp)
        gpus = arrangement.tp * arrangement.attention_dp
        return self.collective(
            "dispatch", "router expert_narrowing", kind, gpus, elements, count,
            bytes_each=min(ACTIVATION_OF[arrangement.weights], 2.0),
            copy=width / arrangement.tp,
            chosen=shape.experts_per_token if sparse else 0,
        )  # fmt: skip

    def experts(self, width: int, count: int, sparse: bool) -> Experts:
        """Return the operator of the experts in ``count`` layers.

        An expert reads and writes ``width`` elements per token. If ``sparse``, a GPU receives only
        the tokens of its own experts.
        """
        shape, arrangement = self.shape, self.arrangement
        operator = self.layer_operator(
            Experts,
            "experts",
            "router expert_narrowing dispatch",
            count,
            hidden=width,
            intermediate=per_gpu(shape.expert_intermediate, arrangement.moe_tp),
            experts=shape.experts,
            top_k=shape.experts_per_token,
            tp=arrangement.moe_tp,
            ep=arrangement.moe_ep,
            dispatched=sparse,
            gated=shape.gated,
            precision=arrangement.weights,
        )
        return replace(operator, share=1.0 / arrangement.pp)  # all copies of attention send tokens

    def last_operators(self) -> list[Operator]:
        """Return the last norm, the output head, and transfers between GPUs and stages."""
        shape, tp, stages = self.shape, self.arrangement.tp, self.arrangement.pp
        last = (
            "down_projection feed_forward_all_reduce experts combine experts_all_reduce"
            " shared_down_projection expert_widening"
        )
        vocab = per_gpu(shape.vocab, tp)
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
                int(tp > 1),
                axis="logits",
            ),
            self.collective("stage_send", "final_norm", "send", 2, shape.hidden, stages - 1),
        ]


# Bytes per element of an activation sent to an expert. It is quantised before it is sent; 4-bit
# floating point models send 8 bits.
ACTIVATION_OF = {"bf16": 2.0, "fp8": 1.0, "fp4": 1.0, "int8": 1.0, "int4": 2.0}


def _encoder(encoder: ModelShape, hidden: int, arrangement: Arrangement) -> list[Operator]:
    """Return the operators of the vision encoder, and its projection to the language model.

    The encoder is a dense model. Each image patch attends to the patches of its image. The
    projection maps 2 x 2 patches to one token of width ``hidden``.
    """
    own_arrangement = replace(arrangement, attention_dp=1, pp=1, weights="bf16", kv_cache="bf16")
    builder = _Builder(encoder, own_arrangement)
    builder.share = 1.0 / (arrangement.attention_dp * arrangement.pp)
    operators: list[Operator] = []
    skipped = {"embedding", "embedding_all_reduce", "attention_decode"}
    for operator in builder.first_operators() + builder.attention() + builder.feed_forward():
        if operator.name in skipped:
            continue
        name, after = f"encoder_{operator.name}", tuple(f"encoder_{a}" for a in operator.after)
        operators.append(replace(operator, name=name, after=after, axis="encoder"))
    merged = 4 * encoder.hidden  # 2 x 2 patches become one token of the language model
    builder.share /= 4  # the projection runs once for 2 x 2 patches
    last = "encoder_down_projection encoder_feed_forward_all_reduce"
    return [
        *operators,
        builder.gemm("encoder_merger", last, merged, merged, 1, axis="encoder"),
        builder.gemm("encoder_projector", "encoder_merger", hidden, merged, 1, axis="encoder"),
    ]
