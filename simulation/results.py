"""What a simulation hands over: one row per request, one per minute, and the totals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import Int32Array
from simulation.fleet import Fleet
from simulation.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Codes of RequestLog.outcome; the last: neither done nor late when the simulation ended.
COMPLETED, REJECTED, UNFINISHED, NOT_DUE = 0, 1, 2, 3

# Why a request was rejected: before the simulation ran, and given up while it did.
NO_POOL = "no pool serves the model"
NO_TIER = "no pool of the model takes the tier"
BEYOND_CONTEXT = "input and output exceed the model's maximum context"
TOO_LONG = "input and output exceed the KV capacity of every pool of the model"
INSTANCE_FAILED = "its instance failed, and it had no retry left"
OUT_OF_MEMORY = "KV memory ran out while decoding"
NO_WAY = "no way is open from its region to a pool of the model"
REASONS = (NO_POOL, NO_TIER, BEYOND_CONTEXT, TOO_LONG, INSTANCE_FAILED, OUT_OF_MEMORY, NO_WAY)
# Where starts took their instance from, in the order of PoolTotals.starts.
SOURCES = ("spot", "other model", "local weights", "remote weights")


@dataclass(frozen=True, slots=True, eq=False)
class RequestLog:
    """Per request, shape ``[requests]``, in the order of the trace; NaN where it did not happen."""

    outcome: npt.NDArray[np.int8]
    reason: npt.NDArray[np.int8]  # why it was rejected, a place in REASONS; -1: it was not
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
    lent: FloatArray  # out as spot
    busy: FloatArray  # time-weighted mean instances running an iteration
    utilisation: FloatArray  # time-weighted mean effective memory utilisation
    waiting: FloatArray  # at its instances, at the end of the interval
    held: FloatArray  # likewise for it, at the router (no instance ready) and in the NIW queue
    batch: FloatArray  # time-weighted mean sequences in the batch of a busy instance
    # SM-activity proxy (modelled): share of the time of serving instances that the interval's
    # tokens take at the pace of a full iteration of prompts, in which computing binds.
    sm_activity: FloatArray
    iterations: FloatArray  # ended in the interval
    arrived_tokens: FloatArray  # input tokens of requests that reached an instance
    input_tokens: FloatArray  # prefilled in the interval
    output_tokens: FloatArray
    hit_rate: FloatArray  # of prompt tokens admitted, what the prefix cache held; NaN without any


@dataclass(frozen=True, slots=True, eq=False)
class PoolTotals:
    """Shape ``[pools]``: instance-seconds of the window, and counts of the whole simulation."""

    before_s: FloatArray  # starting before the window, of what is ready as it begins: wasted
    starting_s: FloatArray  # asked for and not serving yet: wasted
    idle_s: FloatArray  # ready or draining, no iteration running
    prefill_s: FloatArray  # in iterations with prefill tokens
    decode_s: FloatArray  # in iterations without
    donated_s: FloatArray  # lent out as spot
    iterations: IntArray
    preemptions: IntArray
    outside: IntArray  # iterations outside what the pool's profile was measured on
    starts: IntArray  # [pools, sources]: asked for in the window, or before it, by SOURCES
    reinstated: IntArray  # draining instances taken back
    failures: IntArray  # instances lost
    failed_starts: IntArray
    retried: IntArray  # requests that began again elsewhere as an instance was lost
    hit_tokens: IntArray  # of prompts admitted, found in the prefix cache and not computed
    looked_up_tokens: IntArray  # of prompts admitted where there is one
    evicted_tokens: IntArray  # dropped from prefix caches to make room


@dataclass(frozen=True, slots=True, eq=False)
class AfterWindow:
    """What was done after the window, per pool, shape ``[pools]``: an instance that still has work
    then is kept, and paid, to its last; what it waits between is part of that."""

    until_s: float  # when the simulation ended
    kept_s: FloatArray  # instance-seconds, of which in iterations ...
    prefill_s: FloatArray  # ... with prefill tokens
    decode_s: FloatArray  # ... without
    iterations: FloatArray
    input_tokens: FloatArray  # prefilled
    output_tokens: FloatArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replay(ABC):
    """One policy replayed on one trace: what is known of it but for its requests."""

    policy: str
    seed: int
    fleet: Fleet
    duration_s: float  # of the window; series and totals are of it, stragglers finish after it
    series: PoolSeries
    totals: PoolTotals
    after: AfterWindow
    reject_reasons: dict[str, int]
    wall_seconds: float
    cells: int = 1  # that each request stands for (simulation.cells)

    @property
    @abstractmethod
    def start_s(self) -> float:
        """UTC epoch seconds of the window's start."""

    @abstractmethod
    def attention(self, p: int) -> FloatArray:
        """Sums of ``attention_terms`` over the requests that pool ``p`` served, of all of its model
        where it served none to the end (a pool that only prefills)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SimulationResult(Replay):
    """With every request. ``metrics.summarise`` turns it into the figures of X1."""

    trace: Trace
    requests: RequestLog

    @property
    def start_s(self) -> float:
        return self.trace.start_s

    def attention(self, p: int) -> FloatArray:
        trace = self.trace
        served = np.flatnonzero(self.requests.pool == p)
        if not len(served):
            model = trace.models.index(self.fleet.pools[p].model)
            served = np.flatnonzero(trace.model == model)
        terms = attention_terms(trace.input_tokens[served], trace.output_tokens[served])
        return np.asarray(terms.sum(axis=1))


ANSWER_TOKENS, PROMPT_TOKENS = 1, 3  # among the terms


def attention_terms(inputs: Int32Array, outputs: Int32Array) -> FloatArray:
    """Of each request, ``[4, requests]``: contexts that its output tokens attend to and how many
    those are, pairs in the attention of its prompt and prompt tokens."""
    isl, osl = inputs.astype(np.float64), outputs.astype(np.float64)
    return np.stack([osl * (isl + osl / 2), osl, isl**2 / 2, isl])
