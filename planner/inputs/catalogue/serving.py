"""Define defaults of profiles made from a model's shape: limits, memory, host time."""

from collections.abc import Sequence
from dataclasses import replace

from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.catalogue.hardware import TYPICAL_CONTEXT
from simulation.performance.estimate.estimate import starts_s
from simulation.performance.memory import capacity_tokens
from simulation.performance.specs import Arrangement, EngineSettings, GpuSpec, ModelShape

MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # vLLM's defaults
ENGINE = "vllm"  # default, the same as in estimates


def serving_limits(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    *,
    engine: str = ENGINE,
    recv_interval: float | None = None,
    **limits: int | None,
) -> EngineSettings:
    """Return batch limits and host times for ``roofline_profile`` and ``operator_profile``.

    ``limits`` are a user's values for ``batch_limits``. The KV cache gets the memory that remains.
    Host times are those that the estimates use for ``engine``. ``recv_interval`` is SGLang's
    option, default 1. Raises SimulationError if the model does not fit or its memory is not known.
    """
    (start_s,) = start_seconds(shape, gpu, arrangement, (engine,), recv_interval or 1.0)
    return replace(
        batch_limits(shape, gpu, arrangement, **limits),
        overhead_s=estimate_fit().calibration.iteration_s,
        sequence_s=estimate_fit().calibration.sequence_s,
        start_s=start_s,
    )


def batch_limits(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    max_batch: int | None = None,
    max_batch_tokens: int | None = None,
    kv_capacity_tokens: int | None = None,
) -> EngineSettings:
    """Return batch limits and KV capacity; by default vLLM's limits, and what fits in memory."""
    tokens = max_batch_tokens or MAX_BATCH_TOKENS
    capacity = kv_capacity_tokens or capacity_tokens(
        shape, gpu, arrangement, typical_context(shape.max_context), tokens
    )
    return EngineSettings(max_batch or MAX_BATCH, tokens, capacity)


def start_seconds(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    engines: Sequence[str],
    recv_interval: float = 1.0,
) -> list[float]:
    """Return the seconds that each of ``engines`` adds to the prefill of a request served alone."""
    calibration = estimate_fit().calibration
    return starts_s(shape, gpu, arrangement, engines, calibration, efficiencies(), recv_interval)


def typical_context(max_context: int) -> int:
    """Return the context length, in tokens, for the mean KV cache per token."""
    return min(TYPICAL_CONTEXT, max_context)
