"""What a simulation hands over: one row per request, one per minute, and the totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.fleet import Fleet
from simulation.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

COMPLETED, REJECTED, UNFINISHED = 0, 1, 2  # codes of SimulationResult.outcome


@dataclass(frozen=True, slots=True, eq=False)
class RequestLog:
    """Per request, shape ``[requests]``, in the order of the trace; NaN where it did not happen."""

    outcome: npt.NDArray[np.int8]
    pool: npt.NDArray[np.int16]  # where it was served, -1 nowhere
    first_token_s: FloatArray  # seconds since the start of the simulation
    last_token_s: FloatArray
    ttft_s: FloatArray  # from arrival at the router, network latency included
    tbt_s: FloatArray  # mean gap between tokens; NaN for one-token answers
    e2e_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PoolSeries:
    """Per pool and interval, shape ``[pools, intervals]``; interval ``i`` covers
    ``[i, i + 1) * interval_s``."""

    interval_s: float
    ready: FloatArray  # time-weighted mean instances serving
    starting: FloatArray
    draining: FloatArray
    busy: FloatArray  # time-weighted mean instances running an iteration
    utilisation: FloatArray  # time-weighted mean effective memory utilisation
    waiting: FloatArray  # at the end of the interval
    input_tokens: FloatArray  # prefilled in the interval
    output_tokens: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PoolTotals:
    """Over the whole simulation, shape ``[pools]``, in instance-seconds unless named."""

    starting_s: FloatArray  # asked for and not serving yet: wasted
    idle_s: FloatArray  # ready or draining, no iteration running
    prefill_s: FloatArray  # in iterations with prefill tokens
    decode_s: FloatArray  # in iterations without
    iterations: IntArray
    preemptions: IntArray
    outside: IntArray  # iterations outside what the pool's profile was measured on


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult:
    """One policy replayed on one trace. ``metrics.summarise`` turns it into the figures of X1."""

    policy: str
    seed: int
    fleet: Fleet
    trace: Trace
    duration_s: float  # of the window; hours are counted in it, stragglers finish after it
    requests: RequestLog
    series: PoolSeries
    totals: PoolTotals
    reject_reasons: dict[str, int]
    wall_seconds: float
