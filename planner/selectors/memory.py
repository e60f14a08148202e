"""What a model takes of a GPU's memory, and what fits: the figures of the model pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulation.performance.linear import MEMORY_SHARE
from simulation.performance.specs import BYTES, GpuSpec, ModelSpec

PRECISIONS = ("bf16", "fp8", "fp4")
MAX_TP = 64
CONTEXT = 4096  # tokens per sequence, for the batch that fits


@dataclass(frozen=True, slots=True)
class Fit:
    """The least tensor parallelism at which a model fits a GPU type, and what fits then.

    ``tp`` is None where not even MAX_TP GPUs hold it; ``context`` is the longest one sequence,
    ``batch`` how many sequences of CONTEXT tokens (or the model's own limit) fit together.
    """

    gpu: str
    precision: str
    tp: int | None
    context: int
    batch: int


@dataclass(frozen=True, slots=True)
class Memory:
    weight_bytes: Mapping[str, float]  # by precision
    kv_bytes_per_token: float
    fit: Fit  # in 16 bits on the chosen GPU type


def memory_of(spec: ModelSpec, gpu: GpuSpec) -> Memory:
    return Memory(weights(spec), spec.kv_bytes_per_token, place(spec, gpu, "bf16"))


def placements(spec: ModelSpec, gpus: Sequence[GpuSpec]) -> list[tuple[GpuSpec, list[Fit]]]:
    """Every GPU type with a Fit per precision."""
    return [(gpu, [place(spec, gpu, precision) for precision in PRECISIONS]) for gpu in gpus]


def weights(spec: ModelSpec) -> dict[str, float]:
    """Bytes of the weights by precision, from those of 16 bits."""
    return {name: spec.weight_bytes * BYTES[name] / BYTES["bf16"] for name in PRECISIONS}


def place(spec: ModelSpec, gpu: GpuSpec, precision: str) -> Fit:
    """The KV cache stays in 16 bits whatever the weights."""
    needed = weights(spec)[precision]
    tp = 1
    while tp <= MAX_TP:
        room = tp * gpu.memory_bytes * MEMORY_SHARE - needed
        tokens = int(room // spec.kv_bytes_per_token) if room > 0 else 0
        if tokens > 0:
            length = min(CONTEXT, spec.max_context)
            return Fit(gpu.name, precision, tp, min(tokens, spec.max_context), tokens // length)
        tp *= 2
    return Fit(gpu.name, precision, None, 0, 0)
