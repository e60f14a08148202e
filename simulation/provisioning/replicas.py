"""Plan whole replicas with one arrangement for all, the baseline of section 4.2.3.

Prefill: a replica processes one batch of prompts at a time, and batches queue for R replicas
(M/M/R). Decode and chunked: a replica iterates over its sequences. Its batch is the number in
flight by Little's law, b = (rate / R) x T(b), and a token takes T(b).

With pipeline stages, a replica processes one batch per stage, each for an equal part of the pass. A
batch crosses the link between stages. Every replica has its own devices. The KV cache is that of
requests in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.sojourns import fewest_servers
from simulation.provisioning.workload import PhaseProblem
from simulation.sizing.queueing import mmc_mean_wait

MAX_REPLICAS_TRIED = 100_000  # most replicas to try
STAGE_COUNTS = (1, 2, 4, 8)
EVEN = 0.02  # relative power difference below which plans on equal devices count as equal


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """A plan of whole replicas, all with one batch size and one arrangement of GPUs."""

    replicas: int
    batch: int  # largest number of requests in process at once on a replica
    parallel: int
    stages: int
    devices: int
    memory_bytes: float  # all devices
    latency_s: float
    busy: float  # share of time that a replica works
    in_flight: float  # mean batch of a busy replica


def plan_whole_replicas(phase: PhaseProblem, device_bytes: float) -> ReplicaPlan | None:
    """Return the plan with the fewest devices over all batches, arrangements and counts.

    Of several such plans, it is the fastest among those whose power exceeds the least by at most
    the share ``EVEN``. None if no plan meets the limit and fits in memory.
    """
    search = _prefill_plans if phase.queues else _decode_plans
    plans = search(phase, device_bytes)
    if not plans:
        return None
    fewest = min(plan.devices for plan in plans)
    candidates = [(plan, watts_of(phase, plan)) for plan in plans if plan.devices == fewest]
    max_watts = (1.0 + EVEN) * min(watts for _, watts in candidates)
    return min(
        (plan for plan, watts in candidates if watts <= max_watts), key=lambda plan: plan.latency_s
    )


def _arrangements(phase: PhaseProblem) -> Iterator[tuple[int, int, int]]:
    """Yield the arrangements in a node: index of the parallelism, GPUs per stage, and stages."""
    for parallel_index, gpus_per_stage in enumerate(phase.problem.parallel):
        for stages in STAGE_COUNTS:
            if stages == 1 or stages * gpus_per_stage <= phase.service.gpu.gpus_per_node:
                yield parallel_index, int(gpus_per_stage), stages


def _prefill_plans(phase: PhaseProblem, device_bytes: float) -> list[ReplicaPlan]:
    """Return the plan with the fewest replicas for each feasible batch and arrangement."""
    problem = phase.problem
    plans = []
    for parallel_index, gpus_per_stage, stages in _arrangements(phase):
        for b, batch in enumerate(problem.batches.tolist()):
            replica_s = float(phase.replica_s[b, parallel_index])
            pass_s = replica_s + (stages - 1) * float(phase.crossing_s[b, parallel_index])
            weight_bytes = float(phase.replica_bytes[b, parallel_index]) / stages  # per GPU
            free_bytes = device_bytes - weight_bytes
            if not pass_s < problem.slo_s or free_bytes <= 0:
                continue
            # The first stages of all replicas are servers of one queue of batches.
            stage_s = pass_s / stages
            busy_stages = problem.rate / batch * stage_s
            kv_bytes_per_s = phase.kv_bytes_per_request[parallel_index] / stages * problem.rate
            count = fewest_servers(
                busy_stages, stage_s, pass_s - stage_s, problem.slo_s,
                kv_bytes_per_s, free_bytes, MAX_REPLICAS_TRIED,
            )  # fmt: skip
            if not count:
                continue
            plan = _replica_plan(phase, int(count), batch, gpus_per_stage, stages)
            if plan is not None:
                plans.append(plan)
    return plans


def _decode_plans(phase: PhaseProblem, device_bytes: float) -> list[ReplicaPlan]:
    """Return the plan with the fewest replicas for each arrangement.

    Each replica has as many sequences as the limit and the memory allow.
    """
    problem = phase.problem
    plans = []
    for parallel_index, gpus_per_stage, stages in _arrangements(phase):
        sequences, pass_s, weight_bytes = _pass_by_sequences(phase, parallel_index, stages)
        memory_bytes = weight_bytes + sequences * phase.kv_bytes_per_request[parallel_index]
        feasible = (pass_s <= problem.slo_s) & (memory_bytes <= device_bytes)
        if not feasible.any():
            continue
        max_tokens_s = float((stages * sequences / pass_s)[feasible].max())  # of one replica
        count = max(1, int(np.ceil(problem.rate / max_tokens_s - 1e-9)))
        plan = _replica_plan(phase, count, int(problem.batches[-1]), gpus_per_stage, stages)
        if plan is not None:
            plans.append(plan)
    return plans


def _pass_by_sequences(
    phase: PhaseProblem, parallel_index: int, stages: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return three arrays for a decoding replica with 1, 2, 3, ... sequences per stage.

    They are the number of sequences, the seconds of a pass through all ``stages``, and the bytes
    per GPU without KV cache. ``parallel_index`` is the index of the parallelism.
    """
    batches = phase.problem.batches
    sizes = np.arange(1, int(batches[-1]) + 1)
    pass_s = phase.replica_s[:, parallel_index] + (stages - 1) * phase.crossing_s[:, parallel_index]
    weight_bytes = np.interp(sizes, batches, phase.replica_bytes[:, parallel_index]) / stages
    return sizes, np.interp(sizes, batches, pass_s), weight_bytes


def _replica_plan(
    phase: PhaseProblem, replicas: int, batch: int, parallel: int, stages: int
) -> ReplicaPlan | None:
    """Return the plan of ``replicas`` replicas; None if they are unstable at this load.

    ``parallel`` is the number of GPUs per stage. ``batch`` is the batch size in prefill. In decode
    it is ignored: the batch of a replica follows from its load.
    """
    problem = phase.problem
    parallel_index = int(np.searchsorted(problem.parallel, parallel))
    load_of_replica = _prefill_load if phase.queues else _decode_load
    load = load_of_replica(phase, replicas, batch, parallel_index, stages)
    if load is None:
        return None
    if not phase.queues:  # the smallest batch size for the mean batch
        batch_index = int(np.searchsorted(problem.batches, load.batch - 1e-9))
        batch = int(problem.batches[min(batch_index, problem.batches.size - 1)])
    devices = replicas * parallel * stages
    return ReplicaPlan(
        replicas=replicas,
        batch=batch,
        parallel=parallel,
        stages=stages,
        devices=devices,
        memory_bytes=load.gpu_bytes * replicas * parallel * stages,
        latency_s=load.latency_s,
        busy=load.busy,
        in_flight=load.batch,
    )


class _ReplicaLoad(NamedTuple):
    """What a replica does under its share of the load."""

    latency_s: float
    batch: float  # mean requests or sequences of a batch
    gpu_bytes: float
    busy: float  # share of time that it works


def _prefill_load(
    phase: PhaseProblem, replicas: int, batch: int, parallel_index: int, stages: int
) -> _ReplicaLoad | None:
    """Return the load of a replica that computes prompts in batches of ``batch``; None: unstable.

    ``parallel_index`` is the index of the parallelism.
    """
    problem = phase.problem
    batch_index, rate = int(np.searchsorted(problem.batches, batch)), problem.rate / replicas
    crossing_s = float(phase.crossing_s[batch_index, parallel_index])
    pass_s = float(phase.replica_s[batch_index, parallel_index]) + (stages - 1) * crossing_s
    wait_s = mmc_mean_wait(replicas, problem.rate / batch, pass_s / stages)
    if not np.isfinite(wait_s):
        return None
    in_flight = rate * (wait_s + pass_s)  # requests, by Little's law
    kv_bytes = float(phase.kv_bytes_per_request[parallel_index]) / stages * in_flight
    gpu_bytes = float(phase.replica_bytes[batch_index, parallel_index]) / stages + kv_bytes
    return _ReplicaLoad(wait_s + pass_s, float(batch), gpu_bytes, rate / batch * pass_s / stages)


def _decode_load(
    phase: PhaseProblem, replicas: int, _batch: int, parallel_index: int, stages: int
) -> _ReplicaLoad | None:
    """Return the load of a replica that decodes; None: unstable.

    ``parallel_index`` is the index of the parallelism. The batch is the number of sequences in
    flight by Little's law.
    """
    rate = phase.problem.rate / replicas / stages  # sequence iterations/s of one batch
    sequences, seconds, weight_bytes = _pass_by_sequences(phase, parallel_index, stages)
    fast_enough = np.flatnonzero(sequences / seconds >= rate * (1.0 - 1e-12))
    if not fast_enough.size:
        return None
    first = int(fast_enough[0])  # index of the smallest number of sequences that keeps up
    if first == 0:
        batch, pass_s = 1.0, float(seconds[0])
        busy = min(rate * pass_s, 1.0)
    else:
        # T(b) = intercept + slope b between two sizes, which solves b = rate x T(b).
        slope = seconds[first] - seconds[first - 1]
        intercept = seconds[first] - slope * sequences[first]
        batch = float(rate * intercept / (1.0 - rate * slope))
        pass_s, busy = float(intercept + slope * batch), 1.0
    kv_bytes_each = float(phase.kv_bytes_per_request[parallel_index]) / stages
    kv_bytes = stages * min(batch, rate * pass_s) * kv_bytes_each
    gpu_bytes = float(np.interp(batch, sequences, weight_bytes)) + kv_bytes
    return _ReplicaLoad(pass_s, batch, gpu_bytes, busy)


def under_load(phase: PhaseProblem, plan: ReplicaPlan) -> ReplicaPlan | None:
    """Return ``plan`` under the load of ``phase``; None if it is unstable."""
    return _replica_plan(phase, plan.replicas, plan.batch, plan.parallel, plan.stages)


def watts_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Return the watts of all devices of ``plan`` under the load of ``phase``.

    If it is overloaded, they are those of busy devices.
    """
    problem, power = phase.problem, phase.power
    loaded = under_load(phase, plan)
    if loaded is None:
        batch, busy = float(problem.batches[-1]), 1.0
    else:
        batch, busy = loaded.in_flight, min(loaded.busy, 1.0)
    parallel_index = int(np.searchsorted(problem.parallel, plan.parallel))
    seconds = problem.latency_s[:, :, parallel_index]  # [operator, batch size]
    joules = seconds * power.above_w[:, :, parallel_index]  # above the floor

    def pass_sum(values: FloatArray) -> float:
        """Return the sum over operators of ``values``, each interpolated at ``batch``."""
        at_batch = [np.interp(batch, problem.batches, of_sizes) for of_sizes in values]
        return float(np.sum(at_batch))

    above_idle_w = power.floor_w - power.idle_w + pass_sum(joules) / pass_sum(seconds)
    watts_per_device = power.idle_w + busy * above_idle_w
    return plan.devices * watts_per_device
