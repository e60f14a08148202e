"""Sections of the scenario file on GPUs, models and the speed of a model on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.schema_types import (
    CheckedSection,
    CoefficientMs,
    Count,
    Name,
    Peak,
    PeakGb,
    Precision,
    Role,
    Section,
    Share,
    Watts,
    Width,
    missing_fields_message,
)

# Power cap of a GPU as a share of its TDP.
PowerCap = Annotated[float, Field(ge=0.2, lt=1)]


class SweepRow(Section):
    """Speed of each phase under one power cap, over its speed without a cap."""

    cap: Annotated[float, Field(ge=0.2, le=1)]  # share of TDP
    prefill: Share  # speed under the cap
    decode: Share  # speed under the cap
    # Locked clock that draws this power.
    clock_mhz: Annotated[float, Field(gt=0, le=10_000)] | None = None


class Gpu(CheckedSection):
    """A GPU type: built-in by any of its names, or your own with memory and power.

    Power is per GPU. Profiles of ``kind: roofline`` also need dense peaks and one-way bandwidths.
    """

    name: Name  # name in this scenario, or any built-in name
    memory_gb: Annotated[float, Field(gt=0, le=100_000)] | None = None  # memory of a GPU
    idle_w: Watts | None = None  # power of an idle GPU
    prefill_w: Watts | None = None  # power during prefill
    decode_w: Watts | None = None  # power during decode
    tdp_w: Watts | None = None  # largest power of the board
    bandwidth_gb_s: PeakGb | None = None  # memory bandwidth
    bf16_tflops: Peak | None = None  # dense peak
    fp8_tflops: Peak | None = None  # dense peak
    fp4_tflops: Peak | None = None  # dense peak
    int8_tops: Peak | None = None  # dense peak
    int4_tops: Peak | None = None  # dense peak
    link_gb_s: PeakGb | None = None  # bandwidth to other GPUs of the server
    network_gb_s: PeakGb | None = None  # bandwidth to other servers
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None  # GPUs of a server
    # Architecture, such as hopper, blackwell or cdna3.
    family: Annotated[str, Field(max_length=40)] | None = None
    # Your speeds under power caps. Default: published ones.
    power_sweep: Annotated[list[SweepRow], Field(max_length=20)] = []
    source: str = "scenario"  # where the values come from

    @property
    def in_full(self) -> bool:
        return self.memory_gb is not None

    def _faults(self) -> Iterator[str]:
        yield from missing_fields_message(self, ("memory_gb", "idle_w", "prefill_w", "decode_w"))
        for phase in ("cap", "prefill", "decode"):
            values = [getattr(row, phase) for row in sorted(self.power_sweep, key=lambda r: r.cap)]
            if values != sorted(values) or (phase == "cap" and len(set(values)) < len(values)):
                yield "power_sweep: give each cap once, with speeds that rise with it"
        if len({row.clock_mhz is None for row in self.power_sweep}) > 1:
            yield "power_sweep: give clock_mhz in every row or in none"
        of_any_gpu = {"name", "source", "power_sweep"}
        if not self.in_full and self.model_dump(exclude=of_any_gpu, exclude_none=True):
            yield "give memory_gb, idle_w, prefill_w and decode_w with other facts"


class Shape(Section):
    """Dimensions of a model, by the fields of its config.json.

    Other fields of ModelShape (simulation/performance/specs.py) go into ``config``.
    """

    layers: Width
    hidden: Width
    vocab: Width
    heads: Width
    kv_heads: Width
    head_dim: Width
    intermediate: Width
    max_context: Annotated[int, Field(ge=2, le=1_000_000_000)]
    gated: bool = True
    tied_embeddings: bool = False
    experts: Count = 0
    experts_per_token: Count = 0
    expert_intermediate: Count = 0
    shared_intermediate: Count = 0
    dense_layers: Count = 0
    window_layers: Count = 0
    window: Count = 0
    linear_layers: Count = 0  # with a fixed-size state instead of a KV cache, as Mamba has
    # Of a sequence in such a layer.
    linear_state_bytes: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    linear_key_width: Count = 0  # heads * dimension of its keys. Default: of attention.
    linear_value_width: Count = 0  # heads * dimension of its values. Default: of attention.
    ffn_layers: Count | None = None  # with a feed-forward part. Default: all layers.
    causal: bool = True  # tokens attend to earlier ones only; false for an encoder


class Model(CheckedSection):
    """A model: built-in by name, or your own by memory, ``shape`` or ``config``."""

    name: Name  # short name or Hugging Face id, or your own
    weight_gb: Annotated[float, Field(gt=0, le=100_000)] | None = None  # memory of the weights
    kv_bytes_per_token: Annotated[float, Field(ge=1, le=1e9)] | None = None  # KV cache of a token
    # Longest request in tokens.
    max_context: Annotated[int, Field(ge=2, le=1_000_000_000)] | None = None
    shape: Shape | None = None  # dimensions of the model
    config: dict[str, Any] | None = None  # text of its Hugging Face config.json
    # Models of the same architecture swap weights faster (fleet.starts).
    architecture: Annotated[str, Field(max_length=40)] = ""
    source: str = "scenario"  # where the values come from

    @property
    def in_full(self) -> bool:
        return self.weight_gb is not None

    def _faults(self) -> Iterator[str]:
        yield from missing_fields_message(self, ("weight_gb", "kv_bytes_per_token", "max_context"))
        if self.in_full + (self.shape is not None) + (self.config is not None) > 1:
            yield "give only one of weight_gb and the like, shape, and config"


class AttentionFfn(Section):
    """Attention and KV cache on some GPUs, and experts on others of the same type."""

    attention: Annotated[int, Field(ge=1, le=1024)]  # GPUs, in groups of tp
    ffn: Annotated[int, Field(ge=1, le=1024)]  # GPUs, each with a part of the experts
    # Largest number of micro-batches that take turns.
    micro_batches: Annotated[int, Field(ge=1, le=16)] = 3
    # Bandwidth of each GPU, one way. Default: the published link or network, at the share that
    # measured collectives reach.
    gb_s: PeakGb | None = None
    # Latency of each crossing. Default: the start latency of measured collectives.
    latency_us: Annotated[float, Field(ge=0, le=1_000_000)] | None = None


class Profile(CheckedSection):
    """Speed of a model on an arrangement of GPUs (linear, methods.md C1).

    Without ``alpha_ms`` to ``delta_ms``, it is the built-in profile of that model, GPU and tp, or
    the stored profile ``name``. ``kind: roofline`` computes the speed from the shape and the
    published peaks, on ``tp * pp * attention_dp`` GPUs.
    """

    model: Name  # a model of the scenario
    gpu: Name  # a GPU type
    # GPUs of a tensor parallel group; default with a name: the profile's own.
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    role: Role = "mixed"  # mixed: prefill and decode in one replica
    name: Name | None = None  # stored profile; default version: the newest when the run is created
    # Version of the stored profile.
    version: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    # linear: measured; roofline: computed from shape and peaks.
    kind: Literal["linear", "roofline"] = "linear"
    # Adds the overhead of this engine (roofline). Default: the engine of your measurements of the
    # model on that GPU type, else vLLM.
    engine: Literal["vllm", "sglang", "trtllm"] | None = None
    # Stored measurements of the same version correct the profile most.
    engine_version: Annotated[str, Field(max_length=60)] = ""
    precision: Precision = "bf16"  # precision of the weights of linear layers
    kv_precision: Literal["bf16", "fp8"] = "bf16"  # precision of the KV cache
    # Rank of LoRA adapters (roofline).
    lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    lora_active: Annotated[int, Field(ge=1, le=4096)] | None = None  # LoRA adapters in use at once
    # Iterations between SGLang's polls for requests (--scheduler-recv-interval).
    recv_interval: Annotated[float, Field(ge=1, le=10_000)] | None = None
    pp: Annotated[int, Field(ge=1, le=64)] = 1  # pipeline stages
    attention_dp: Annotated[int, Field(ge=1, le=1024)] = 1  # copies of attention
    # GPUs that split an expert; both 1: as attention.
    moe_tp: Annotated[int, Field(ge=1, le=1024)] = 1
    moe_ep: Annotated[int, Field(ge=1, le=1024)] = 1  # groups that share the experts
    attention_ffn: AttentionFfn | None = None  # attention and experts on separate GPUs
    # Power cap, share of TDP. Stated coefficients and named profiles were measured under it.
    power_cap: PowerCap | None = None
    # Further variants of this row under power caps.
    power_caps: Annotated[list[PowerCap], Field(max_length=5)] = []
    alpha_ms: CoefficientMs | None = None  # constant of a decode iteration
    beta_ms: CoefficientMs | None = None  # time per decoding sequence
    gamma_ms: CoefficientMs | None = None  # constant of a prefill iteration
    delta_ms: CoefficientMs | None = None  # time per prompt token
    # Sequences of a batch; default: of the built-in profile, else 256.
    max_batch: Annotated[int, Field(ge=1, le=65_536)] | None = None
    # Tokens of an iteration; default: of the built-in profile, else 2048.
    max_batch_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    source: str = "scenario"  # where the values come from

    @property
    def in_full(self) -> bool:
        return self.alpha_ms is not None

    @property
    def variants(self) -> list[Profile]:
        """Return the profile, and a copy for each of its further power caps."""
        caps = [self.power_cap, *self.power_caps]
        return [self.model_copy(update={"power_cap": cap, "power_caps": []}) for cap in caps]

    def _faults(self) -> Iterator[str]:
        if self.name is not None and self.in_full:
            yield "name refers to a stored profile. Leave out alpha_ms to delta_ms"
        if self.version is not None and self.name is None:
            yield "version needs a stored profile. Give its name too"
        yield from self._faults_of_kind()
        if self.attention_ffn is not None:
            yield from self._faults_of_attention_ffn()
        if self.power_caps and self.power_cap is not None:
            yield "power_cap and power_caps exclude each other. Give one of them"
        yield from missing_fields_message(self, ("alpha_ms", "beta_ms", "gamma_ms", "delta_ms"))
        yield from missing_fields_message(self, ("lora_rank", "lora_active"))
        for constant, slope in (("alpha_ms", "beta_ms"), ("gamma_ms", "delta_ms")):
            if getattr(self, constant) == 0 and getattr(self, slope) == 0:
                yield f"{constant} and {slope} are both 0: one must be above 0. Give one"

    @property
    def _widths_above_1(self) -> list[str]:
        """Return the fields of parallelism besides tp that are above 1."""
        return [f for f in ("pp", "attention_dp", "moe_tp", "moe_ep") if getattr(self, f) > 1]

    def _faults_of_kind(self) -> Iterator[str]:
        """Yield the faults of fields that only computed or only measured profiles may have."""
        computed = self.kind == "roofline"
        if computed and (self.name is not None or self.in_full):
            yield "kind: roofline is computed. Leave out name and alpha_ms to delta_ms"
        if self.engine is not None and not computed:
            yield "engine belongs to kind: roofline. Measured profiles have theirs"
        if self.engine_version and self.engine is None:
            yield "engine_version needs engine. Name it too"
        if self._widths_above_1 and not computed:
            yield f"{', '.join(self._widths_above_1)} above 1 needs kind: roofline"
        if self.lora_rank is not None and not computed:
            yield "lora_rank needs kind: roofline. Measured profiles include their own LoRA rank"
        if self.recv_interval is not None and self.engine != "sglang":
            yield "recv_interval exists in SGLang only. Give kind: roofline and engine: sglang"

    def _faults_of_attention_ffn(self) -> Iterator[str]:
        """Yield the faults of a profile with attention and FFN on separate GPUs."""
        if self.kind != "roofline":
            yield "attention_ffn is computed. Give kind: roofline with it"
        if self.role == "mixed":
            yield "attention_ffn needs role: prefill or decode"
        if self.engine is not None:
            yield "attention_ffn does not depend on an engine. Leave out engine"
        if self.lora_rank is not None:
            yield "attention_ffn is computed without LoRA adapters. Leave out lora_rank"
        if self._widths_above_1:
            yield f"attention_ffn defines how GPUs are shared. Leave out {self._widths_above_1[0]}"
        if self.power_caps or self.power_cap is not None:
            yield "attention_ffn: power caps are not supported. Remove power_cap and power_caps"
