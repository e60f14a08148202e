"""Operators and their work: floating point operations, bytes and messages of one iteration.

An operator describes one GPU and one layer. ``count`` layers run it. All amounts are arrays over
iterations. The rows of an operator are the tokens or sequences that it processes. Its ``axis``
says which they are, and on which sizes of an iteration it depends (b, c, p and a of ``profile``):
tokens (b + p), decodes (b and c / b), prefill (p and a / p), logits (sequences that get a token) or
encoder (image tokens).

A GPU processes ``share`` of the instance's rows, since attention data parallelism and pipeline
stages divide them. A GPU that works has at least one row.
"""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.performance.specs import BYTES

Axis = Literal["tokens", "decodes", "prefill", "logits", "encoder"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
ACTIVATION = 2.0  # bytes of an activation: 16 bits between operators, whatever the weights


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """Iterations of one instance, arrays of one shape."""

    decodes: FloatArray  # sequences that get one token each
    decode_context: FloatArray  # KV tokens that they attend to, in total
    prefill_tokens: FloatArray  # prompt tokens
    prefill_pairs: FloatArray  # pairs of a prompt token and a token that it attends to
    encoder_tokens: FloatArray  # image tokens that the encoder reads, with ``encoder_pairs``
    encoder_pairs: FloatArray

    def take(self, which: npt.ArrayLike) -> "Iteration":
        """Return the iterations at a mask or at indices."""
        chosen = np.asarray(which)
        return Iteration(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def rows(self, axis: Axis, share: float) -> FloatArray:
        """Return the number of tokens or sequences (``axis`` says which) that one GPU processes.

        ``share`` is the GPU's share of the instance. At least one row, if the instance has any.
        """
        instance_rows = {
            "tokens": self.decodes + self.prefill_tokens,
            "decodes": self.decodes,
            "prefill": self.prefill_tokens,
            "logits": self.decodes + np.minimum(self.prefill_tokens, 1.0),
            "encoder": self.encoder_tokens,
        }[axis]
        rows: FloatArray = np.maximum(instance_rows * share, np.minimum(instance_rows, 1.0))
        return rows

    def keys(self, axis: Axis) -> FloatArray:
        """Return the mean number of keys that a query of ``axis`` attends to; 0 without queries."""
        rows, pairs = {
            "decodes": (self.decodes, self.decode_context),
            "prefill": (self.prefill_tokens, self.prefill_pairs),
            "encoder": (self.encoder_tokens, self.encoder_pairs),
        }[axis]
        keys: FloatArray = np.divide(pairs, rows, out=np.zeros(pairs.shape), where=rows > 0)
        return keys


def iteration(
    decodes: npt.ArrayLike = 0.0,
    decode_context: npt.ArrayLike = 0.0,
    prefill_tokens: npt.ArrayLike = 0.0,
    prefill_pairs: npt.ArrayLike = 0.0,
    encoder_tokens: npt.ArrayLike = 0.0,
    encoder_pairs: npt.ArrayLike = 0.0,
) -> Iteration:
    """Return iterations from numbers or arrays that broadcast; for units see ``Iteration``."""
    sizes = (decodes, decode_context, prefill_tokens, prefill_pairs, encoder_tokens, encoder_pairs)
    return Iteration(*np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes)))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Work of one GPU for one layer: operations and bytes, one value per iteration.

    Each byte counts once, so the bytes are the least that must be moved.
    """

    flops: FloatArray
    weight_bytes: FloatArray
    activation_bytes: FloatArray  # inputs and outputs
    kv_bytes: FloatArray  # KV cache or state, read and written
    message_bytes: FloatArray  # a collective's buffer on one GPU
    output_bytes: FloatArray  # that one GPU hands to the following operators

    @property
    def memory_bytes(self) -> FloatArray:
        """Return the bytes read from and written to memory."""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes


def _work(like: FloatArray, **amounts: FloatArray) -> Work:
    """Return work with the given ``amounts``; other fields are 0 in the shape of ``like``."""
    return Work(*(amounts.get(field.name, np.zeros_like(like)) for field in fields(Work)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Base of all operators: the place in the graph, and the share of the work on one GPU."""

    name: str
    after: tuple[str, ...]  # names of the operators that must run before
    count: int  # layers
    axis: Axis = "tokens"
    share: float = 1.0

    @property
    def memory_bytes(self) -> float:
        """Return the bytes of weights that one layer keeps on one GPU."""
        return 0.0

    def rows(self, iteration: Iteration) -> FloatArray:
        """Return the tokens or sequences that one GPU processes."""
        return iteration.rows(self.axis, self.share)

    def work(self, iteration: Iteration) -> Work:
        """Return the work of one GPU for one layer."""
        raise NotImplementedError

    def transient_bytes(self, iteration: Iteration) -> FloatArray:
        """Return the bytes that a GPU needs only while a layer runs: its inputs and outputs."""
        return self.work(iteration).activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Operator):
    """A matrix product, rows x k times k x n; ``matrices`` of them at once (one per head)."""

    n: int
    k: int
    precision: str = "bf16"
    by_block: bool = False  # weights have a scale for each block
    matrices: int = 1
    absorbed: bool = False  # another operator keeps the weights in memory

    @property
    def memory_bytes(self) -> float:
        return 0.0 if self.absorbed else self.matrices * self.n * self.k * BYTES[self.precision]

    def read_bytes(self, rows: FloatArray) -> FloatArray:
        """Return the bytes of weights that an iteration reads: all of them once, 0 without rows."""
        all_bytes = self.matrices * self.n * self.k * BYTES[self.precision]
        return np.where(rows > 0, all_bytes, 0.0)

    def work(self, iteration: Iteration) -> Work:
        rows = self.rows(iteration)
        return _work(
            rows,
            flops=2.0 * rows * self.matrices * self.n * self.k,
            weight_bytes=self.read_bytes(rows),
            activation_bytes=rows * self.matrices * (self.n + self.k) * ACTIVATION,
            output_bytes=rows * self.matrices * self.n * ACTIVATION,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank(Gemm):
    """One half (down or up) of all adapters of a linear layer, in one call.

    Every row is multiplied by its own adapter, and each adapter in use is read once (Chen et al.,
    Punica, arXiv 2310.18547). Rows spread evenly over ``adapters``. Tokens of one prompt count as
    if their adapters could differ, which slightly overestimates the bytes.
    """

    adapters: int

    @property
    def memory_bytes(self) -> float:
        return self.adapters * self.n * self.k * BYTES[self.precision]

    def read_bytes(self, rows: FloatArray) -> FloatArray:
        """Return the expected bytes of the adapters that at least one row uses."""
        unused = np.power(1.0 - 1.0 / self.adapters, rows)  # probability for an adapter
        return (1.0 - unused) * self.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operator):
    """Softmax attention of prefill chunks or of decodes over their KV cache.

    ``qk_dim`` and ``v_dim`` are the elements that a head multiplies per key. ``kv_row_bytes`` are
    the bytes of a cached token in one layer on one GPU. ``window`` > 0 limits the keys of a query.
    It limits the mean number of keys, which slightly overestimates mixed lengths near the window.
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    kv_row_bytes: float
    kv_cache: str = "bf16"
    window: int = 0
    compression: float = 1.0  # tokens per cached entry
    latent: bool = False  # many heads over one compressed vector (MLA absorbed, an indexer)

    def keys(self, iteration: Iteration) -> FloatArray:
        """Return the cached entries that a query attends to, within the window."""
        keys = iteration.keys(self.axis) / self.compression
        return np.minimum(keys, self.window) if self.window else keys

    def work(self, iteration: Iteration) -> Work:
        """Return the FLOPs and bytes of one call in each iteration."""
        rows, keys = self.rows(iteration), self.keys(iteration)
        # Each decode reads all its keys. A chunk of ``rows`` prompt tokens after ``past`` tokens
        # has keys = past + rows / 2 per query, and reads past + rows tokens. Several chunks read
        # more, which is not counted.
        chunk = np.where(rows > 0, keys + rows / 2, 0.0)
        read_tokens = rows * keys if self.axis == "decodes" else chunk
        return _work(
            rows,
            flops=2.0 * rows * keys * self.heads * (self.qk_dim + self.v_dim),
            activation_bytes=rows * self.heads * (self.qk_dim + self.v_dim) * ACTIVATION,
            kv_bytes=read_tokens * self.kv_row_bytes,
            output_bytes=rows * self.heads * self.v_dim * ACTIVATION,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(Operator):
    """Linear attention with a fixed state per sequence (gated delta rule).

    A token takes about 8 operations per state element: decay, products with key and query, update.
    In decode the state is read and written once per sequence and iteration. In prefill it is read
    and written once per ``CHUNK`` tokens (chunkwise form: Yang et al., arXiv 2412.06464, section
    3.3).
    """

    state_elements: float  # on one GPU
    state_bytes: float
    width: int  # of queries, keys, values and gate together, on one GPU
    CHUNK = 64

    def work(self, iteration: Iteration) -> Work:
        rows = self.rows(iteration)
        passes = rows if self.axis == "decodes" else np.ceil(rows / self.CHUNK)
        return _work(
            rows,
            flops=8.0 * rows * self.state_elements,
            activation_bytes=rows * self.width * ACTIVATION,
            kv_bytes=2.0 * passes * self.state_bytes,
            output_bytes=rows * self.width * ACTIVATION / 4,  # one of the four parts of ``width``
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Operator):
    """Grouped feed-forward layer of a mixture of experts: gate-up, activation and down in one.

    Tokens spread evenly, so a token selects each expert with probability top_k / experts. So a
    share of 1 - (1 - top_k / experts)^tokens of the experts is read.
    """

    hidden: int
    intermediate: int  # of one expert on one GPU, after tensor parallelism
    experts: int  # of the model
    top_k: int
    tp: int
    ep: int
    dispatched: bool = False  # a GPU receives only the tokens that its experts compute
    gated: bool = True
    precision: str = "bf16"

    @property
    def expert_bytes(self) -> float:
        """Return the bytes of one expert's weights on one GPU."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate * BYTES[self.precision]

    @property
    def memory_bytes(self) -> float:
        return self.experts / self.ep * self.expert_bytes

    def distinct(self, iteration: Iteration) -> FloatArray:
        """Return the expected number of this GPU's experts that at least one token selects."""
        missed = np.power(1.0 - min(self.top_k / self.experts, 1.0), self.rows(iteration))
        return np.maximum(self.experts / self.ep * (1.0 - missed), 0.0)

    def token_expert_pairs(self, iteration: Iteration) -> FloatArray:
        """Return how many pairs of a token and one of its experts one GPU computes."""
        return self.rows(iteration) * self.top_k / self.ep

    def work(self, iteration: Iteration) -> Work:
        rows, pairs = self.rows(iteration), self.token_expert_pairs(iteration)
        matrices = 3 if self.gated else 2
        return _work(
            rows,
            flops=2.0 * pairs * matrices * self.hidden * self.intermediate,
            weight_bytes=self.distinct(iteration) * self.expert_bytes,
            activation_bytes=2.0 * pairs * self.hidden * ACTIVATION,
            output_bytes=rows * self.hidden * ACTIVATION,
        )

    def transient_bytes(self, iteration: Iteration) -> FloatArray:
        return (
            self.token_expert_pairs(iteration)
            * (2 * self.hidden + 3 * self.intermediate)
            * ACTIVATION
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Operator):
    """Norms, activations, rotary embedding and look-ups: bound by the bytes they touch per row.

    Their few operations do not count, since they do not run on tensor cores.
    """

    read: int  # elements per row
    written: int
    memory: float = 0.0  # bytes kept (an embedding table)
    kv_row_bytes: float = 0.0  # written to the KV cache per row

    @property
    def memory_bytes(self) -> float:
        return self.memory

    def work(self, iteration: Iteration) -> Work:
        rows = self.rows(iteration)
        return _work(
            rows,
            activation_bytes=rows * (self.read + self.written) * ACTIVATION,
            kv_bytes=rows * self.kv_row_bytes,
            output_bytes=rows * self.written * ACTIVATION,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Operator):
    """Communication between ``gpus``, with ``width`` elements per row in one GPU's buffer.

    The buffer is the message in NCCL's terms. For all_reduce and all_to_all it is the vector that
    each GPU holds. For all_gather it is the whole gathered vector, and for reduce_scatter the whole
    vector before it is scattered.
    """

    kind: CollectiveKind
    gpus: int
    width: float
    bytes_each: float = ACTIVATION
    copy: float = 0.0  # elements of one copy of a row, if a row goes to several GPUs
    chosen: int = 0  # experts of a row; a node with several of them gets one copy

    def work(self, iteration: Iteration) -> Work:
        rows = self.rows(iteration)
        message_bytes = rows * self.width * self.bytes_each
        return _work(rows, message_bytes=message_bytes, output_bytes=message_bytes)

    @property
    def traffic(self) -> float:
        """Return the minimum bytes that each GPU must send per byte of message."""
        if self.kind == "send":
            return 1.0
        if self.kind == "all_reduce":
            return 2.0 * (self.gpus - 1) / self.gpus
        return (self.gpus - 1) / self.gpus

    def leaving(self, gpus_per_node: int) -> float:
        """Return the bytes that each GPU must send to other nodes, per byte of message.

        A ring crosses the border of a node over the links of all its GPUs at once. In an
        all-to-all, only the data for other nodes cross. A row with several experts on one node
        crosses once (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.2).
        """
        if self.kind == "send":
            return 1.0
        nodes = self.gpus / gpus_per_node
        if self.kind != "all_to_all":
            return self.traffic / gpus_per_node
        elsewhere = 1.0 - 1.0 / nodes  # the share of a message, or of experts, on other nodes
        if not self.chosen:
            return elsewhere
        # Expected number of other nodes that have at least one of a row's experts
        receivers = (nodes - 1.0) * (1.0 - elsewhere**self.chosen)
        return min(receivers * self.copy / self.width, elsewhere)

    def transient_bytes(self, iteration: Iteration) -> FloatArray:
        return self.work(iteration).message_bytes
