"""The result of a simulation: one row per request, one per interval, and totals."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.trace import Trace

# Codes of RequestLog.outcome. NOT_DUE: neither done nor late when the simulation ended.
COMPLETED, REJECTED, UNFINISHED, NOT_DUE = 0, 1, 2, 3

# Reasons of a rejection, before the simulation or during it.
NO_POOL = "no pool serves the model"
NO_TIER = "no pool of the model serves the tier"
BEYOND_CONTEXT = "input and output exceed the model's maximum context"
TOO_LONG = "input and output exceed the KV capacity of every pool of the model"
INSTANCE_FAILED = "its replica failed, and it had no retry left"
OUT_OF_MEMORY = "KV memory ran out while decoding"
NO_WAY = "no pool of the model is reachable from its region"
REASONS = (NO_POOL, NO_TIER, BEYOND_CONTEXT, TOO_LONG, INSTANCE_FAILED, OUT_OF_MEMORY, NO_WAY)
# Sources of starts, in the order of PoolTotals.starts.
SOURCES = ("spot", "other model", "local weights", "remote weights")


@dataclass(frozen=True, slots=True, eq=False)
class RequestLog:
    """Outcome and times of every request, ``[requests]``, in the order of the trace.

    NaN: the event did not happen.
    """

    outcome: npt.NDArray[np.int8]
    reason: npt.NDArray[np.int8]  # reason of the rejection, index into REASONS; -1: not rejected
    pool: npt.NDArray[np.int16]  # pool that served it; -1: none
    first_token_s: FloatArray  # seconds since the start of the simulation
    last_token_s: FloatArray
    ttft_s: FloatArray  # from arrival at the router, network latency included
    tbt_s: FloatArray  # mean gap between tokens; NaN for a single output token
    e2e_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PoolSeries:
    """Series per pool and interval, ``[pools, intervals]``.

    Interval ``i`` covers ``[i, i + 1) * interval_s``.
    """

    interval_s: float
    ready: FloatArray  # time-weighted mean of ready instances
    starting: FloatArray
    draining: FloatArray
    lent: FloatArray  # lent out as spot
    busy: FloatArray  # time-weighted mean of instances running an iteration
    utilisation: FloatArray  # time-weighted mean of KV memory utilization
    waiting: FloatArray  # requests waiting at its instances at the end of the interval
    # requests for it at the router (no instance ready) and in the NIW queue, at the same time
    held: FloatArray
    batch: FloatArray  # time-weighted mean of sequences in the batch of a busy instance
    # SM-activity proxy (modelled): share of the time of ready and draining instances that the
    # tokens take at the rate of a full prefill iteration, in which computing binds.
    sm_activity: FloatArray
    iterations: FloatArray  # ended in the interval
    arrived_tokens: FloatArray  # input tokens of requests that reached an instance
    input_tokens: FloatArray  # prompt tokens computed in the interval
    output_tokens: FloatArray
    # share of admitted prompt tokens found in the prefix cache; NaN without one
    hit_rate: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PoolTotals:
    """Totals per pool, ``[pools]``: instance-seconds of the window, and counts of the whole run."""

    # starts before the window of instances that are ready at its beginning: wasted
    before_s: FloatArray
    starting_s: FloatArray  # requested and not ready yet: wasted
    idle_s: FloatArray  # ready or draining, no iteration running
    prefill_s: FloatArray  # in iterations with prefill tokens
    decode_s: FloatArray  # in iterations without prefill tokens
    donated_s: FloatArray  # lent out as spot
    iterations: IntArray
    preemptions: IntArray
    outside: IntArray  # iterations outside the measured range of the pool's profile
    starts: IntArray  # [pools, sources]: starts requested in the window or before it, by SOURCES
    reinstated: IntArray  # draining instances that became ready again
    failures: IntArray  # lost instances
    failed_starts: IntArray
    retried: IntArray  # requests that restarted after the loss of their instance
    hit_tokens: IntArray  # admitted prompt tokens found in the prefix cache, so not computed
    looked_up_tokens: IntArray  # admitted prompt tokens in pools with a prefix cache
    evicted_tokens: IntArray  # evicted from prefix caches
    switches: IntArray  # instances that switched to the pool from another role
    diverted: IntArray  # prompts that decode instances took over from a prefill pool


@dataclass(frozen=True, slots=True, eq=False)
class AfterWindow:
    """Work after the window, per pool, ``[pools]``.

    An instance that still has work costs money to the end of its last iteration, waits included.
    """

    until_s: float  # end of the simulation
    kept_s: FloatArray  # paid instance-seconds, with or without a running iteration
    prefill_s: FloatArray  # part of them in iterations with prefill tokens
    decode_s: FloatArray  # part of them in iterations without
    iterations: FloatArray
    input_tokens: FloatArray  # prompt tokens computed
    output_tokens: FloatArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replay(ABC):
    """The replay of one policy on one trace: all that does not need single requests."""

    policy: str
    seed: int
    fleet: Fleet
    # length of the window; series and totals end with it, unfinished requests continue
    duration_s: float
    series: PoolSeries
    totals: PoolTotals
    after: AfterWindow
    reject_reasons: dict[str, int]
    wall_seconds: float
    cells: int = 1  # cells that each request represents (simulation.cells)

    @property
    @abstractmethod
    def start_s(self) -> float:
        """Return the start of the window in UTC epoch seconds."""

    @abstractmethod
    def attention(self, p: int) -> FloatArray:
        """Return four sums over the requests that pool ``p`` served, for the work of attention.

        They are the KV tokens that output tokens attend to, output tokens, query-key pairs of
        prompts, and prompt tokens. If the pool completed no request, as a prefill pool, the sums
        are over all requests of its model.
        """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SimulationResult(Replay):
    """A replay with every request; ``metrics.summarise`` computes its figures."""

    trace: Trace
    requests: RequestLog

    @property
    def start_s(self) -> float:
        return self.trace.start_s

    def attention(self, p: int) -> FloatArray:
        """Return the four sums of ``Replay.attention`` over the requests that pool ``p`` served."""
        trace = self.trace
        served = self.requests.pool == p
        if not served.any():
            served = trace.model == trace.models.index(self.fleet.pools[p].model)
        # Products of whole numbers need no array of terms, and add up without rounding.
        isl, osl = (
            tokens[served].astype(np.int64) for tokens in (trace.input_tokens, trace.output_tokens)
        )
        return np.array([osl @ isl + (osl @ osl) / 2, osl.sum(), (isl @ isl) / 2, isl.sum()])


ANSWER_TOKENS, PROMPT_TOKENS = 1, 3  # indices of the sums of ``Replay.attention``
