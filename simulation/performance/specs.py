"""Facts about GPUs and models, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a number comes from. ``kind`` is measured, published, modelled or assumed."""

    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU type. Power is per GPU at the board, by what the instance is doing."""

    name: str
    memory_bytes: float
    idle_w: float
    prefill_w: float
    decode_w: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model at one weight precision."""

    name: str
    weight_bytes: float
    kv_bytes_per_token: float
    max_context: int  # tokens, input + output
    provenance: Provenance
