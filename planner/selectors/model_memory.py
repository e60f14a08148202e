"""Compute the GPU memory that a model needs, and what fits, for the model pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulation.errors import SimulationError
from simulation.performance import memory
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelSpec

PRECISIONS = ("bf16", "fp8", "fp4")
CONTEXT = 4096  # tokens per sequence, for the batch that fits


@dataclass(frozen=True, slots=True)
class Fit:
    """The smallest tensor parallelism with which a model fits on a GPU type.

    ``tp`` is None if it never fits. ``context`` is the length in tokens of the longest single
    sequence. ``batch`` is how many sequences of CONTEXT tokens (or of the model's own limit) fit
    together.
    """

    gpu: str
    precision: str
    tp: int | None
    context: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a model needs."""

    weight_bytes: Mapping[str, float]  # by precision
    kv_bytes_per_token: float
    fit: Fit  # as released, on the chosen GPU type


def model_memory(spec: ModelSpec, gpu: GpuSpec, precision: str = "bf16") -> Memory:
    """Return the memory of a model; ``precision`` is that of the published weights."""
    return Memory(weight_bytes(spec), spec.kv_bytes_per_token, fit_on_gpu(spec, gpu, precision))


def fits_by_gpu(spec: ModelSpec, gpus: Sequence[GpuSpec]) -> list[tuple[GpuSpec, list[Fit]]]:
    """Return a Fit per precision for every GPU type."""
    return [(gpu, [fit_on_gpu(spec, gpu, precision) for precision in PRECISIONS]) for gpu in gpus]


def weight_bytes(spec: ModelSpec) -> dict[str, float]:
    """Return the bytes of the weights by precision.

    If only the model's memory is known, all weights are assumed to shrink with the precision.
    """
    if spec.shape is not None:
        return {name: memory.weight_bytes(spec.shape, name) for name in PRECISIONS}
    return {name: spec.weight_bytes * BYTES[name] / BYTES["bf16"] for name in PRECISIONS}


def fit_on_gpu(spec: ModelSpec, gpu: GpuSpec, precision: str) -> Fit:
    """Return how a model fits on a GPU type; the KV cache has 16 bits at every precision."""
    length = min(CONTEXT, spec.max_context)
    if spec.shape is None:
        return _fit_by_memory(spec, gpu, precision, length)
    try:
        tp = memory.minimum_tp(spec.shape, gpu, precision, length)
    except SimulationError:
        return Fit(gpu.name, precision, tp=None)
    arrangement = Arrangement(tp=tp, moe_tp=tp, weights=precision)
    return Fit(
        gpu.name,
        precision,
        tp,
        memory.largest_context(spec.shape, gpu, arrangement),
        memory.largest_batch(spec.shape, gpu, arrangement, length),
    )


def _fit_by_memory(spec: ModelSpec, gpu: GpuSpec, precision: str, length: int) -> Fit:
    """Return how a model fits if only its memory is known, not its shape."""
    in_precision = replace(spec, weight_bytes=weight_bytes(spec)[precision])
    for tp in memory.TP_CHOICES:
        try:
            tokens = memory.kv_capacity_tokens(in_precision, gpu, tp)
        except SimulationError:
            continue
        if tokens >= length:
            return Fit(gpu.name, precision, tp, min(tokens, spec.max_context), tokens // length)
    return Fit(gpu.name, precision, tp=None)
