"""Compute how operators respond to length, batch, rate and GPU share (figures 2 to 8)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.sm_shares import slowdown_at_share
from simulation.provisioning.workload import PhaseLoad, PhaseProblem
from simulation.sizing.queueing import mmc_mean_wait

SM_SHARES = np.linspace(0.1, 1.0, 10)


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """Figures of V operators of a phase over length, batch, rate and share of the GPU.

    Each operator is on one GPU, at batch 1 unless stated otherwise. Latencies are relative to the
    first length, to batch 1, or to the whole GPU.
    """

    names: tuple[str, ...]
    lengths: FloatArray  # [L] tokens: prompt (prefill) or context (decode)
    latency_by_length: FloatArray  # [V, L]
    memory_by_length: FloatArray  # [V, L] bytes of transient memory and KV cache of one request
    data_by_length: FloatArray  # [V, L] bytes passed to the next operator
    transfer_by_length: FloatArray  # [V, L] transfer time over compute time
    batches: IntArray  # [B]
    latency_by_batch: FloatArray  # [V, B]
    rates: FloatArray  # [K] requests/s
    replicas_by_rate: IntArray  # [V, K] fewest stable replicas
    shares: FloatArray  # [S] share of the SMs
    latency_by_share: FloatArray  # [V, S]
    # [V, L] share of the GPU's arithmetic in use, 0 to 1 (figure 5)
    arithmetic_by_length: FloatArray
    bandwidth_by_length: FloatArray  # [V, L] share of its memory bandwidth in use (figure 5)
    # [V, K] mean wait in seconds with the fewest stable replicas (figure 6)
    wait_by_rate: FloatArray
    wait_by_length: FloatArray  # [V, L] the same, at the service's rate
    sm_use_by_share: FloatArray  # [V, S] share of the given SMs that compute (figure 8b)


def sensitivity(
    service: PhaseLoad,
    problem_of: Callable[[PhaseLoad], PhaseProblem],
    *,
    lengths: npt.ArrayLike,
    rates: npt.ArrayLike,
) -> Sensitivity:
    """Return how the operators of ``service`` react to length, batch, rate and GPU share.

    ``problem_of`` builds the problem of a load, in which batch 1 and parallelism 1 come first.
    ``lengths [L]`` are in tokens, ``rates [K]`` in requests/s.
    """
    length_tokens, requests_s = np.asarray(lengths, np.float64), np.asarray(rates, np.float64)
    alone = problem_of(service)
    at_length = [problem_of(replace(service, isl=float(n))) for n in length_tokens]

    def by_length(values_of: Callable[[PhaseProblem], FloatArray]) -> FloatArray:
        """Return ``values_of`` operators, the first batch and parallelism of each, ``[V, L]``."""
        return np.stack([values_of(phase)[:, 0, 0] for phase in at_length], axis=1)

    latency_s = by_length(lambda phase: phase.problem.latency_s)
    transfer_s = by_length(lambda phase: phase.problem.transfer_s)
    memory_bytes = by_length(lambda phase: phase.demand.memory_bytes)
    least_bytes = np.minimum(memory_bytes.min(axis=1), alone.demand.memory_bytes[:, 0, 0])
    # [V, L] KV cache of one request: that of all in flight, divided by their number
    kv_bytes = np.stack([phase.demand.kv_bytes[:, 0] for phase in at_length], axis=1)
    kv_bytes /= service.rate * service.time_budget_s
    # Memory above the least of all lengths is transient, since weights do not depend on length.
    memory_by_length = memory_bytes - least_bytes[:, None] + kv_bytes
    alone_s = alone.problem.latency_s[:, 0, 0]  # [V] at the mean length of the service
    # [K] passes per second: one for each prompt, or one for each output token
    arrivals = requests_s * (1.0 if service.phase == "prefill" else service.osl)
    # [V, shares of the SMs]
    slowdown = np.stack([slowdown_at_share(alone.demand, s)[:, 0, 0] for s in SM_SHARES], axis=1)
    compute = alone.demand.compute[:, :1, 0]  # [V, 1]
    return Sensitivity(
        names=alone.problem.names,
        lengths=length_tokens,
        latency_by_length=latency_s / latency_s[:, :1],
        memory_by_length=memory_by_length,
        data_by_length=transfer_s * (service.gpu.link_bytes_s or 0.0),
        transfer_by_length=transfer_s / latency_s,
        batches=alone.problem.batches,
        latency_by_batch=alone.problem.latency_s[:, :, 0] / alone_s[:, None],
        rates=requests_s,
        replicas_by_rate=np.floor(arrivals * alone_s[:, None]).astype(np.int64) + 1,
        shares=SM_SHARES,
        latency_by_share=slowdown,
        arithmetic_by_length=by_length(lambda phase: phase.demand.compute),
        bandwidth_by_length=by_length(lambda phase: phase.demand.bandwidth),
        wait_by_rate=_waits(arrivals[None], alone_s[:, None]),
        wait_by_length=_waits(np.full((1, 1), service.rate), latency_s),
        sm_use_by_share=np.minimum(compute / slowdown / SM_SHARES, 1.0),
    )


def _waits(rates: FloatArray, service_s: FloatArray) -> FloatArray:
    """Return mean waits in seconds of M/M/R (equations 1, 2) with the fewest stable replicas.

    ``rates`` are arrivals/s, ``service_s`` the service times; the two broadcast.
    """

    def wait(rate: float, seconds: float) -> float:
        """Return the mean wait of one queue with service time ``seconds``."""
        fewest_stable = int(rate * seconds) + 1
        return mmc_mean_wait(fewest_stable, rate, seconds)

    return np.asarray(np.vectorize(wait, otypes=[np.float64])(rates, service_s))
