"""The baseline of section 4.2.3: whole replicas, one arrangement for all of them, any number.

Prefill: a replica works on one batch of prompts at a time, batches queue for R of them (M/M/R).
Decode, and iterations that do both: a replica iterates over the sequences it holds, so its batch is
what is in flight by Little's law, b = (rate / R) x T(b), and a token takes T(b). Cut into pipeline
stages a replica works on as many batches as it has stages, each for an equal part of the pass, and
a batch crosses the link between them. Every replica has devices of its own; KV cache is what is in
flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.sojourns import fewest_servers
from simulation.provisioning.workload import PhaseProblem
from simulation.sizing.queueing import mmc_mean_wait

MOST = 100_000  # replicas that are looked at
STAGES = (1, 2, 4, 8)
EVEN = 0.02  # of power: plans on as many devices that differ by no more are told apart otherwise


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Whole replicas; ``busy`` is the share of time a replica works."""

    replicas: int
    batch: int  # most that a replica works on at once
    parallel: int
    stages: int
    devices: int
    memory_bytes: float  # over all devices
    latency_s: float
    busy: float
    in_flight: float  # mean batch while it works


class _Running(NamedTuple):
    """One replica at some load: seconds of a pass, what it works on at once, memory per GPU."""

    seconds: float
    batch: float
    bytes: float
    busy: float


def whole_replicas(phase: PhaseProblem, device_bytes: float) -> ReplicaPlan | None:
    """The fewest devices over all batches, arrangements and counts, of those within ``EVEN`` of the
    least power the fastest; None when no choice meets the limit or fits the devices' memory."""
    search = _of_prompts if phase.queues else _of_sequences
    plans = search(phase, device_bytes)
    if not plans:
        return None
    fewest = min(plan.devices for plan in plans)
    able = [(plan, watts_of(phase, plan)) for plan in plans if plan.devices == fewest]
    enough = (1.0 + EVEN) * min(watts for _, watts in able)
    return min(
        (cheap for cheap, watts in able if watts <= enough), key=lambda cheap: cheap.latency_s
    )


def _arrangements(phase: PhaseProblem) -> Iterator[tuple[int, int, int]]:
    """Index of the parallelism, its GPUs, and stages: within a node."""
    for j, spread in enumerate(phase.problem.parallel):
        for stages in STAGES:
            if stages == 1 or stages * spread <= phase.service.gpu.gpus_per_node:
                yield j, int(spread), stages


def _of_prompts(phase: PhaseProblem, device_bytes: float) -> list[ReplicaPlan]:
    """Of each batch and arrangement the fewest replicas."""
    problem = phase.problem
    plans = []
    for j, spread, stages in _arrangements(phase):
        for b, size in enumerate(problem.batches):
            takes = float(phase.replica_s[b, j]) + (stages - 1) * float(phase.crossing_s[b, j])
            room = device_bytes - float(phase.replica_bytes[b, j]) / stages
            if not takes < problem.slo_s or room <= 0:
                continue
            stage_s, batches_s = takes / stages, problem.rate / float(size)
            count = fewest_servers(
                batches_s * stage_s, stage_s, takes - stage_s, problem.slo_s,
                phase.kept_each[j] / stages * problem.rate, room, MOST,
            )  # fmt: skip
            if count:
                plans.append(_plan(phase, int(count), int(size), spread, stages))
    return [plan for plan in plans if plan is not None]


def _of_sequences(phase: PhaseProblem, device_bytes: float) -> list[ReplicaPlan]:
    """Of each arrangement the fewest replicas: as many sequences on each as limit and memory let
    it hold."""
    problem = phase.problem
    plans = []
    for j, spread, stages in _arrangements(phase):
        sizes, seconds, held = _by_size(phase, j, stages)
        good = (seconds <= problem.slo_s) & (held + sizes * phase.kept_each[j] <= device_bytes)
        if not good.any():
            continue
        most = float((stages * sizes / seconds)[good].max())  # tokens/s of one replica
        count = max(1, int(np.ceil(problem.rate / most - 1e-9)))
        plan = _plan(phase, count, int(problem.batches[-1]), spread, stages)
        if plan is not None:
            plans.append(plan)
    return plans


def _by_size(phase: PhaseProblem, j: int, stages: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Sequences of a batch, seconds of its pass, bytes of weights and of its work on each GPU."""
    batches = phase.problem.batches
    sizes = np.arange(1, int(batches[-1]) + 1)
    takes = phase.replica_s[:, j] + (stages - 1) * phase.crossing_s[:, j]
    held = np.interp(sizes, batches, phase.replica_bytes[:, j]) / stages
    return sizes, np.interp(sizes, batches, takes), held


def _plan(
    phase: PhaseProblem, replicas: int, batch: int, parallel: int, stages: int
) -> ReplicaPlan | None:
    running = _running(phase, replicas, batch, parallel, stages)
    if running is None:
        return None
    return ReplicaPlan(
        replicas=replicas,
        batch=batch if phase.queues else _at_least(phase, running.batch),
        parallel=parallel,
        stages=stages,
        devices=replicas * parallel * stages,
        memory_bytes=running.bytes * replicas * parallel * stages,
        latency_s=running.seconds,
        busy=running.busy,
        in_flight=running.batch,
    )


def _at_least(phase: PhaseProblem, batch: float) -> int:
    """The smallest batch of the problem that holds so many."""
    sizes = phase.problem.batches
    return int(sizes[min(int(np.searchsorted(sizes, batch - 1e-9)), sizes.size - 1)])


def _running(
    phase: PhaseProblem, replicas: int, batch: int, parallel: int, stages: int
) -> _Running | None:
    """None where so many do not keep up."""
    problem = phase.problem
    j = int(np.searchsorted(problem.parallel, parallel))
    rate, each = problem.rate / replicas, float(phase.kept_each[j]) / stages
    if phase.queues:
        b = int(np.searchsorted(problem.batches, batch))
        takes = float(phase.replica_s[b, j]) + (stages - 1) * float(phase.crossing_s[b, j])
        wait = mmc_mean_wait(replicas, problem.rate / batch, takes / stages)
        if not np.isfinite(wait):
            return None
        held = float(phase.replica_bytes[b, j]) / stages + each * rate * (wait + takes)
        return _Running(wait + takes, float(batch), held, rate / batch * takes / stages)
    rate /= stages  # of each batch
    sizes, seconds, held_by = _by_size(phase, j, stages)
    keeps_up = np.flatnonzero(sizes / seconds >= rate * (1.0 - 1e-12))
    if not keeps_up.size:
        return None
    first = int(keeps_up[0])
    if first == 0:
        in_flight, pass_s = 1.0, float(seconds[0])
        busy = min(rate * pass_s, 1.0)
    else:
        # T is a line between two sizes: b = own x T(b) there.
        slope = seconds[first] - seconds[first - 1]
        start = seconds[first] - slope * sizes[first]
        in_flight = float(rate * start / (1.0 - rate * slope))
        pass_s, busy = float(start + slope * in_flight), 1.0
    held = float(np.interp(in_flight, sizes, held_by))
    return _Running(pass_s, in_flight, held + stages * min(in_flight, rate * pass_s) * each, busy)


def under(phase: PhaseProblem, plan: ReplicaPlan) -> ReplicaPlan | None:
    """``plan`` under the load of ``phase``; None where it does not keep up."""
    batch = plan.batch if phase.queues else int(phase.problem.batches[-1])
    return _plan(phase, plan.replicas, batch, plan.parallel, plan.stages)


def latency_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Sojourn of a pass through ``plan`` under the load of ``phase``; inf when unstable."""
    running = _running(phase, plan.replicas, plan.batch, plan.parallel, plan.stages)
    return float("inf") if running is None else running.seconds


def watts_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Watts of ``plan`` under the load of ``phase``; what it cannot keep up with draws what it
    draws when full."""
    problem, power = phase.problem, phase.power
    running = _running(phase, plan.replicas, plan.batch, plan.parallel, plan.stages)
    j = int(np.searchsorted(problem.parallel, plan.parallel))
    batch = float(problem.batches[-1]) if running is None else running.batch
    busy = 1.0 if running is None else min(running.busy, 1.0)
    above = float(_between(problem.latency_s[:, :, j] * power.above_w[:, :, j], phase, batch).sum())
    seconds = float(_between(problem.latency_s[:, :, j], phase, batch).sum())
    each = power.idle_w + busy * (power.floor_w - power.idle_w + above / seconds)
    return plan.devices * each


def _between(values: FloatArray, phase: PhaseProblem, batch: float) -> FloatArray:
    """Of each operator at a batch between those of the problem, ``[V, B]`` to ``[V]``."""
    sizes = phase.problem.batches
    return np.array([np.interp(batch, sizes, row) for row in values])
