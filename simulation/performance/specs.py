"""Facts about GPUs and models, with their provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.errors import SimulationError

BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a number; ``kind`` is one of ``KINDS``."""

    kind: str
    source: str


KINDS = ("measured", "published", "modelled", "assumed")  # from most to least certain
PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Phase:
    """The origin of the times of one phase (prefill or decode) in a profile."""

    provenance: Provenance
    most: float = math.inf  # largest measured iteration: prompt tokens in prefill, or sequences


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The limits of an engine's batches, and its time outside the operators in seconds."""

    max_batch: int  # sequences
    max_batch_tokens: int
    kv_capacity_tokens: int
    overhead_s: float = 0.0  # of every iteration: scheduling, sampling
    sequence_s: float = 0.0  # of each sequence that one copy of attention decodes
    start_s: float = 0.0  # of every request before its first iteration


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU type. Power is board power per GPU in each phase of the instance.

    The fields after the provenance describe its speed, and are None if unknown. They are not needed
    for profiles that were measured on the GPU.
    """

    name: str
    memory_bytes: float
    idle_w: float
    prefill_w: float
    decode_w: float
    provenance: Provenance
    bandwidth_bytes_s: float | None = None  # of its memory, the vendor's peak
    peak_flops: Mapping[str, float] = field(default_factory=dict)  # dense FLOP/s by precision
    tdp_w: float | None = None
    link_bytes_s: float | None = None  # to its neighbours in a node, one direction, per GPU
    network_bytes_s: float | None = None  # to another node, one direction, per GPU
    gpus_per_node: int = 8
    family: str = ""  # ampere, ada, hopper, blackwell, cdna3, gaudi ...
    vendor: str = ""  # NVIDIA, AMD, Intel, Google, AWS; "" if unknown
    year: int = 0  # in which the family first shipped; 0 if unknown


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685) of a model's linear layers."""

    rank: int
    active: int  # different adapters among the requests in flight, all in memory

    def __post_init__(self) -> None:
        for name, maximum in (("rank", 1024), ("active", 4096)):
            if not 1 <= getattr(self, name) <= maximum:
                raise SimulationError(
                    f"LoRA adapters: {name} is {getattr(self, name)}. Give 1 to {maximum:,}."
                )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers and sizes of a model, from its Hugging Face ``config.json``.

    ``layers`` = full attention + ``window_layers`` + ``linear_layers``. A feed-forward layer is
    dense (``intermediate``) in the first ``dense_layers`` and if ``experts`` is 0. The others have
    a router over ``experts``. Latent attention (MLA) has ``kv_lora_rank`` > 0. It caches one
    compressed vector of ``kv_lora_rank + rope_head_dim`` per token and layer on every GPU.
    """

    name: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of a dense feed-forward layer
    max_context: int  # tokens, input + output
    gated: bool = True  # feed-forward of three projections (SwiGLU), else two
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # of all shared experts together
    dense_layers: int = 0  # leading dense feed-forward layers of a mixture of experts
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    nope_head_dim: int = 0
    v_head_dim: int = 0
    window_layers: int = 0  # layers that attend to the last ``window`` tokens only
    window: int = 0
    linear_layers: int = 0  # layers with a fixed-size state instead of a KV cache
    linear_state_bytes: int = 0  # of that state, per sequence and layer
    linear_key_width: int = 0  # heads * dimension of a linear layer's keys; 0: heads * head_dim
    linear_value_width: int = 0  # heads * dimension of its values; 0: heads * head_dim
    attention_gate: bool = False  # queries come with an output gate of the same size
    sparse_top_k: int = 0  # tokens that a sparse attention layer attends to; 0: all
    encoder: ModelShape | None = None  # of a vision-language model
    ffn_layers: int | None = None  # layers with a feed-forward part; None: all (Nemotron-H: fewer)
    expert_hidden: int = 0  # width that experts read and write; 0: ``hidden``
    window_kv_heads: int = 0  # of window layers; 0: ``kv_heads``
    window_head_dim: int = 0  # of window layers; 0: ``head_dim``
    kv_compression: float = 1.0  # tokens per cached entry, mean over full attention layers
    index_head_dim: int = 0  # of the keys that the indexer of a sparse attention layer caches
    causal: bool = True  # tokens attend to earlier ones only; False for an encoder of text
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "vocab", "heads", "kv_heads", "head_dim", "max_context"):
            if getattr(self, name) < 1:
                raise SimulationError(f"Model {self.name}: {name} must be at least 1.")
        if self.window_layers + self.linear_layers > self.layers:
            raise SimulationError(f"Model {self.name}: more window and linear layers than layers.")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise SimulationError(
                f"Model {self.name}: experts_per_token must be 1 to {self.experts}."
            )


WIDTHS = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")  # the whole numbers of an arrangement


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Parallelism and precision of one instance.

    A stage has ``tp * attention_dp`` GPUs: ``attention_dp`` copies of attention on ``tp`` GPUs
    each. Experts use the same GPUs, so ``moe_tp * moe_ep`` must equal that number. If both are 1,
    ``operator_graph`` sets them to ``tp`` and ``attention_dp``. There are ``pp`` pipeline stages.
    """

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    weights: str = "bf16"  # of the linear layers
    kv_cache: str = "bf16"

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.attention_dp


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Memory of one model at one weight precision."""

    name: str
    weight_bytes: float
    kv_bytes_per_token: float
    max_context: int  # tokens, input + output
    provenance: Provenance
    shape: ModelShape | None = None  # None: only the memory is known
