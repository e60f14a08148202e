"""Profiles of instances with separate GPUs for attention and for feed-forward layers.

This is for mixtures of experts (methods.md D6; MegaScale-Infer, arXiv 2504.02263, sections 3 and
4). ``attention`` GPUs keep the KV cache and run all operators outside the feed-forward layers, in
copies of ``tp`` GPUs. The experts are divided over the ``ffn`` GPUs. Each of these also keeps the
dense and shared feed-forward layers whole. These two groups of GPUs are the sides.

A batch is split into m micro-batches. In each layer a micro-batch passes four stations: attention
(A), transfer to the experts (S), feed-forward (F) and transfer back (R). A station serves one
micro-batch at a time. While one is at the experts, another is at attention (ping-pong). So in each
layer m micro-batches take

    P(m) = max(m max(A, S, F, R), A + S + F + R).

seconds. The first term is the busiest station without gaps. The second is one micro-batch alone. An
iteration takes the sum over the layers, and the operators before the first and after the last
layer. It uses the fastest m up to ``micro_batches``.

Operators and efficiency factors are those of the roofline. Transfers use the published rate of the
GPUs' link or network, with the share and the start-up time of measured collectives. All layers
count as alike, with the attention of the mean layer.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile
from simulation.performance.compiled_graph import (
    CHUNKS,
    SEQUENCES,
    TOKENS,
    Timing,
    keys_knots,
    total_s,
)
from simulation.performance.curves import Curve, Part, grid
from simulation.performance.efficiency import Efficiencies
from simulation.performance.graph import ACTIVATION_OF, OperatorGraph, operator_graph
from simulation.performance.memory import (
    MEMORY_SHARE,
    OVERHEAD_BYTES,
    activation_bytes,
    bytes_per_weight,
    gpu_kv_bytes,
    gpu_weight_bytes,
)
from simulation.performance.parameters import feed_forward_layers, parameters
from simulation.performance.roofline import OperatorTiming, expected_spread
from simulation.performance.specs import (
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Provenance,
)
from simulation.performance.work import ACTIVATION, Iteration, iteration

MICRO_BATCHES = 3  # MegaScale-Infer 4.1: three hide transfers of up to half a station's time
EXPERT_PREFIXES = ("expert", "shared_")  # prefixes of the operators of layers with experts
# Operators of the feed-forward part of dense layers
DENSE_OPERATORS = ("gate_up_projection", "activation", "down_projection")
# Run on the attention GPUs, since narrower tokens make the transfer smaller.
ATTENTION_OPERATORS = ("expert_narrowing", "expert_widening")
# Collectives of an ordinary instance, which the transfer between the sides replaces.
REPLACED_COLLECTIVES = ("dispatch", "combine", "experts_all_reduce", "feed_forward_all_reduce")
# Operators that run once, before the first layer and after the last
END_OPERATORS = (
    "embedding",
    "embedding_all_reduce",
    "final_norm",
    "output_head",
    "logits_all_gather",
)


@dataclass(frozen=True, slots=True)
class AttentionFfn:
    """How an instance is split: numbers of attention and feed-forward GPUs, and their transfer."""

    attention: int
    ffn: int
    micro_batches: int = MICRO_BATCHES
    bytes_s: float | None = None  # of one GPU in one direction; None: see the module's docstring
    latency_s: float | None = None  # of one message; None: likewise

    @property
    def gpus(self) -> int:
        return self.attention + self.ffn


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFfnProfile(AdjustedProfile):
    """A profile of an instance with separate attention and feed-forward GPUs; see ``Profile``.

    ``tp`` counts the GPUs of both kinds.
    """

    split: AttentionFfn
    attention: OperatorGraph = field(repr=False)
    ffn: OperatorGraph = field(repr=False)


def attention_ffn_profile(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    split: AttentionFfn,
    efficiencies: Efficiencies,
    engine: EngineSettings,
) -> AttentionFfnProfile:
    """Build the profile of ``shape`` on ``split.gpus`` GPUs.

    ``arrangement`` gives the GPUs of one copy of attention (``tp``) and the precisions. The KV
    capacity in ``engine`` comes from ``kv_tokens``. Raises SimulationError if the split is invalid
    for the model.
    """
    _check_split(shape, arrangement, split)
    attention_gpus, ffn_gpus = _arrangements_of_sides(arrangement, split)
    attention = _graph_of_side(shape, attention_gpus, feed_forward=False)
    ffn = _graph_of_side(shape, ffn_gpus, feed_forward=True)
    timing = OperatorTiming(gpu, efficiencies)
    transfer = _transfer(shape, gpu, arrangement, split, efficiencies)
    stations = _Stations(shape, attention, ffn, timing, transfer, split.micro_batches)
    spreads = [expected_spread(graph, gpu, efficiencies, timing) for graph in (attention, ffn)]
    return AttentionFfnProfile(
        kind="attention-ffn",
        model=shape.name,
        gpu=gpu.name,
        tp=split.gpus,
        max_batch=engine.max_batch,
        max_batch_tokens=engine.max_batch_tokens,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        provenance=Provenance(
            "modelled",
            f"Roofline of {shape.name}: published peaks of {gpu.name}, attention on "
            f"{split.attention} GPUs and experts on {split.ffn}, up to {split.micro_batches} "
            "alternating micro-batches",
        ),
        curve=_curve(stations, attention_gpus, engine.overhead_s),
        start_s=engine.start_s,
        split=split,
        attention=attention,
        ffn=ffn,
        spread=float(np.average(spreads, weights=(split.attention, split.ffn))),
        checks=efficiencies.checks,
    )


def kv_tokens(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    split: AttentionFfn,
    context: int,
    max_batch_tokens: int,
) -> int:
    """Return the tokens of KV cache that fit on all attention GPUs, in sequences of ``context``.

    Raises SimulationError if the model and the split do not fit together, or if the weights of
    attention or of the experts do not fit.
    """
    _check_split(shape, arrangement, split)
    attention_gpus, _ = _arrangements_of_sides(arrangement, split)
    attention_bytes, ffn_bytes = side_bytes(shape, arrangement, split)
    reserved_bytes = OVERHEAD_BYTES + activation_bytes(shape, attention_gpus, max_batch_tokens)
    usable_bytes = gpu.memory_bytes * MEMORY_SHARE
    cache_bytes = max(usable_bytes - reserved_bytes - attention_bytes, 0.0)  # on an attention GPU
    token_bytes = gpu_kv_bytes(shape, context, attention_gpus) / context
    tokens = attention_gpus.attention_dp * int(cache_bytes // token_bytes)  # 0 if none fits
    for name, weight_bytes in (("attention", attention_bytes), ("ffn", ffn_bytes)):
        if usable_bytes - reserved_bytes - weight_bytes < 0 or not tokens:
            raise SimulationError(
                f"{shape.name} does not fit with {getattr(split, name)} x {gpu.name} for {name}: "
                f"each keeps {weight_bytes / 1e9:.0f} GB of weights and gives "
                f"{usable_bytes / 1e9:.0f} GB. Use more of them, or a smaller precision."
            )
    return tokens


def side_bytes(
    shape: ModelShape, arrangement: Arrangement, split: AttentionFfn
) -> tuple[float, float]:
    """Return the bytes of weights on each attention GPU, and on each feed-forward GPU."""
    attention_gpus, ffn_gpus = _arrangements_of_sides(arrangement, split)
    moe_layers, dense_layers = feed_forward_layers(shape)
    matrices = 3 if shape.gated else 2  # gate, up and down
    bytes_per_expert_weight, bytes_per_other = bytes_per_weight(shape, attention_gpus.weights)
    shared_width = dense_layers * shape.intermediate + moe_layers * shape.shared_intermediate
    shared_bytes = matrices * shape.hidden * shared_width * bytes_per_other
    experts_bytes = parameters(shape).experts * bytes_per_expert_weight
    # On an attention GPU: all weights of an ordinary instance, minus its feed-forward part.
    whole_gpu_bytes = gpu_weight_bytes(shape, attention_gpus)
    attention_bytes = (
        whole_gpu_bytes
        - shared_bytes / attention_gpus.tp
        - experts_bytes / (attention_gpus.moe_tp * attention_gpus.moe_ep)
    )
    return attention_bytes, shared_bytes + experts_bytes / ffn_gpus.moe_ep


def _check_split(shape: ModelShape, arrangement: Arrangement, split: AttentionFfn) -> None:
    """Raise SimulationError if the split is invalid for the model or the arrangement."""
    spread = max(arrangement.pp, arrangement.attention_dp, arrangement.moe_tp, arrangement.moe_ep)
    problems = (  # condition, and the end of a sentence that begins with the model
        (not shape.experts, " has no experts: attention and feed-forward GPUs apart are for "
         "mixtures of experts. Leave attention_ffn out."),
        (spread > 1, ": attention_ffn already spreads the experts. Leave out pp, attention_dp, "
         "moe_tp and moe_ep."),
        (split.attention % arrangement.tp, f": {split.attention} attention GPUs are no whole "
         f"number of copies of attention on tp {arrangement.tp}. Choose a multiple of it."),
        (split.ffn > shape.experts, f" has {shape.experts} experts, too few for {split.ffn} ffn "
         "GPUs. Choose at most one GPU per expert."),
    )  # fmt: skip
    for applies, problem in problems:
        if applies:
            raise SimulationError(f"{shape.name}{problem}")


def _arrangements_of_sides(
    arrangement: Arrangement, split: AttentionFfn
) -> tuple[Arrangement, Arrangement]:
    """Return the arrangements of the attention GPUs and of the feed-forward GPUs."""
    copies = split.attention // arrangement.tp
    attention_gpus = replace(arrangement, attention_dp=copies, moe_tp=1, moe_ep=split.attention)
    ffn_gpus = replace(arrangement, tp=1, attention_dp=split.ffn, moe_tp=1, moe_ep=split.ffn)
    return attention_gpus, ffn_gpus


def _graph_of_side(
    shape: ModelShape, arrangement: Arrangement, *, feed_forward: bool
) -> OperatorGraph:
    """Return the operators of the feed-forward GPUs, or else of the attention GPUs.

    The vision encoder is left out.
    """
    graph = operator_graph(shape, arrangement)
    chosen = []
    for operator in graph.operators:
        name = operator.name
        of_experts = name.startswith(EXPERT_PREFIXES) and name not in ATTENTION_OPERATORS
        is_feed_forward = name in DENSE_OPERATORS or of_experts
        if name in REPLACED_COLLECTIVES or operator.axis == "encoder":
            continue
        if is_feed_forward == feed_forward:
            chosen.append(operator)
    return OperatorGraph(shape, graph.arrangement, tuple(chosen))


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Network transfer between attention and FFN GPUs, in both directions.

    A direction takes ``latency_s + tokens * bytes of a token / bytes_s`` seconds.
    """

    latency_s: float
    bytes_s: float  # of all GPUs of the smaller side
    experts: tuple[float, float]  # bytes of a token to the experts, and back
    dense: tuple[float, float]  # the same in a layer without experts

    def seconds(self, tokens: FloatArray, *, routed: bool) -> tuple[FloatArray, FloatArray]:
        """Return the seconds that ``tokens`` of one layer take to the FFN GPUs, and back.

        ``routed`` is True for a layer with experts.
        """
        bytes_out, bytes_back = self.experts if routed else self.dense
        latency_s = np.where(tokens > 0, self.latency_s, 0.0)
        out_s, back_s = bytes_out * tokens / self.bytes_s, bytes_back * tokens / self.bytes_s
        return latency_s + out_s, latency_s + back_s


def _transfer(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    split: AttentionFfn,
    efficiencies: Efficiencies,
) -> _Transfer:
    """Return the network transfer between attention and FFN GPUs.

    A token goes once to each FFN GPU that has one of its experts, with the input of the shared
    experts. Each of these GPUs returns 16 bits per element.
    """
    # Expected number of FFN GPUs with at least one of a token's experts, which are chosen at random
    ffn_gpus_reached = split.ffn * (1.0 - (1.0 - 1.0 / split.ffn) ** shape.experts_per_token)
    sent_bytes = min(ACTIVATION_OF[arrangement.weights], ACTIVATION)  # per element
    elements = ffn_gpus_reached * (shape.expert_hidden or shape.hidden)  # of a token
    if shape.shared_intermediate and shape.expert_hidden:
        elements += shape.hidden
    factors = efficiencies.find("all_to_all", gpu.family, "bf16")
    link_bytes_s, reached_share = split.bytes_s, 1.0
    if link_bytes_s is None and split.gpus <= gpu.gpus_per_node:  # in one server
        link_bytes_s, reached_share = gpu.link_bytes_s, min(factors.share_of_link(split.gpus), 1.0)
    elif link_bytes_s is None:
        link_bytes_s = gpu.network_bytes_s or gpu.link_bytes_s
        reached_share = min(factors.bandwidth, 1.0)
    if not link_bytes_s:
        raise SimulationError(
            f"{gpu.name} has no published link speed, which attention_ffn needs. Give gb_s."
        )
    latency_s = split.latency_s
    if latency_s is None:
        latency_s = factors.floor_s + factors.per_unit_s * (split.gpus - 1)
    return _Transfer(
        latency_s=latency_s,
        bytes_s=link_bytes_s * reached_share * min(split.attention, split.ffn),
        experts=(elements * sent_bytes, elements * ACTIVATION),
        dense=(shape.hidden * sent_bytes, shape.hidden * ACTIVATION),
    )


@dataclass(frozen=True, slots=True)
class _Stations:
    """The four stations of a split instance: attention, FFN, and the transfer in each direction.

    ``timing`` gives the seconds of an operator in an iteration.
    """

    shape: ModelShape
    attention: OperatorGraph
    ffn: OperatorGraph
    timing: Timing
    transfer: _Transfer
    max_micro_batches: int

    def seconds(self, iteration: Iteration) -> FloatArray:
        """Return the seconds of whole iterations, with the fastest number of micro-batches.

        A micro-batch has at least one token.
        """
        tokens = iteration.decodes + iteration.prefill_tokens
        layers_s = self._layers_s(iteration, 1)
        for parts in range(2, self.max_micro_batches + 1):
            faster_s = np.minimum(layers_s, self._layers_s(iteration, parts))
            layers_s = np.where(tokens >= parts, faster_s, layers_s)
        ends_s = self._total(self.attention, iteration, END_OPERATORS, named=True)
        return np.asarray(layers_s + ends_s, np.float64)

    def _layers_s(self, batch: Iteration, parts: int) -> FloatArray:
        """Return the seconds of all layers if ``batch`` is cut into ``parts`` micro-batches.

        Micro-batches pass the stations of a layer one behind the other. The limit is the busiest
        station, or the time of one micro-batch through all stations.
        """
        sizes = (getattr(batch, size.name) / parts for size in fields(Iteration))
        micro_batch = Iteration(*sizes)
        moe_layers, dense_layers = feed_forward_layers(self.shape)
        attention_s = self._total(self.attention, micro_batch, END_OPERATORS, named=False)
        attention_per_layer = attention_s / max(self.shape.layers, moe_layers + dense_layers)
        tokens = micro_batch.decodes + micro_batch.prefill_tokens
        layers_without_ffn = max(self.shape.layers - moe_layers - dense_layers, 0)
        seconds = np.asarray(parts * layers_without_ffn * attention_per_layer, np.float64)
        # ``named``: whether to add up only the operators with these names, or only the others.
        for count, routed in ((moe_layers, True), (dense_layers, False)):
            if not count:
                continue
            ffn_s = self._total(self.ffn, micro_batch, DENSE_OPERATORS, named=not routed)
            out_s, back_s = self.transfer.seconds(tokens, routed=routed)
            stations = (attention_per_layer, ffn_s / count, out_s, back_s)
            busiest_s, sum_s = np.maximum.reduce(stations), np.add.reduce(stations)
            seconds = seconds + count * np.maximum(parts * busiest_s, sum_s)
        return seconds

    def _total(
        self, graph: OperatorGraph, iteration: Iteration, names: tuple[str, ...], *, named: bool
    ) -> FloatArray:
        """Return the seconds of the operators in ``names``, or of all others if not ``named``."""
        chosen = [operator for operator in graph.operators if (operator.name in names) == named]
        return total_s(chosen, iteration, self.timing)


def _curve(stations: _Stations, attention_gpus: Arrangement, overhead_s: float) -> Curve:
    """Return the iteration times of the stations as a curve of decodes plus prompts.

    A mixed iteration takes as long as its decodes and then its prompts. On an instance of one role
    it occurs only if a preempted request is computed again. ``overhead_s`` is added to every
    iteration.
    """
    copies = attention_gpus.attention_dp
    keys = keys_knots(stations.shape.max_context)
    sequences = np.unique(np.concatenate([[1.0], SEQUENCES, SEQUENCES * copies]))
    prompt_tokens = np.unique(np.concatenate([[1.0], TOKENS, CHUNKS * copies]))
    # Iterations at all pairs of knots, ``[knots, keys]``
    decodes = iteration(decodes=sequences[:, None], decode_context=sequences[:, None] * keys)
    chunks = iteration(
        prefill_tokens=prompt_tokens[:, None], prefill_pairs=prompt_tokens[:, None] * keys
    )
    return grid(
        dense=Part(np.ones(1), np.zeros(1), np.array([[overhead_s]])),
        decode=Part(sequences, keys, stations.seconds(decodes)),
        prefill=Part(prompt_tokens, keys, stations.seconds(chunks)),
    )
