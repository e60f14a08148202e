"""The baseline of section 4.2.3: whole replicas, one batch and one count for all operators.

A replica works on one batch at a time, batches queue for R of them (M/M/R), and every replica has
devices of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray
from simulation.provisioning.energy import fleet_watts
from simulation.provisioning.problem import operators_of
from simulation.provisioning.sojourns import fill_sojourns
from simulation.provisioning.workload import PhaseProblem
from simulation.sizing.queueing import mmc_mean_wait


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Whole replicas; ``busy`` is the share of time a replica works."""

    replicas: int
    batch: int
    parallel: int
    devices: int
    memory_bytes: float  # over all devices
    latency_s: float
    busy: float


def whole_replicas(phase: PhaseProblem, device_bytes: float) -> ReplicaPlan | None:
    """The fewest devices over all batches, parallelisms and counts, then the least power.

    None when no choice meets the limit within ``max_replicas`` or fits the devices' memory.
    """
    problem = phase.problem
    table = np.empty((1, *phase.replica_s.shape, problem.max_replicas))
    whole = operators_of(problem)._replace(
        latency_s=np.ascontiguousarray(phase.replica_s)[None],
        transfer_s=np.zeros((1, *phase.replica_s.shape)),
    )
    fill_sojourns(whole, table)
    sojourn = table[0]
    replicas = np.arange(1, problem.max_replicas + 1)
    kept = phase.kept_bytes[None, :, None] / replicas
    memory = phase.replica_bytes[:, :, None] + kept
    devices = np.broadcast_to(problem.parallel[None, :, None] * replicas, sojourn.shape)
    good = (sojourn <= problem.slo_s) & (memory <= device_bytes)
    if not good.any():
        return None
    fewest = devices[good].min()
    among = np.where((good & (devices == fewest)).any(axis=2), _watts(phase, int(fewest)), np.inf)
    b, p = np.unravel_index(among.argmin(), among.shape)
    r = int(fewest) // int(problem.parallel[p]) - 1
    return ReplicaPlan(
        replicas=int(replicas[r]),
        batch=int(problem.batches[b]),
        parallel=int(problem.parallel[p]),
        devices=int(fewest),
        memory_bytes=float(memory[b, p, r] * fewest),
        latency_s=float(sojourn[b, p, r]),
        busy=float(problem.rate / problem.batches[b] * phase.replica_s[b, p] / replicas[r]),
    )


def _watts(phase: PhaseProblem, devices: int) -> FloatArray:
    """Watts of ``devices`` GPUs at each uniform batch and parallelism, ``[B, P]``."""
    problem, power = phase.problem, phase.power
    per_batch = problem.rate / problem.batches[:, None] * problem.parallel
    running = np.minimum((problem.latency_s * per_batch).sum(axis=0), devices)
    above = (problem.latency_s * per_batch * power.above_w).sum(axis=0)
    return np.asarray(devices * power.idle_w + running * (power.floor_w - power.idle_w) + above)


def latency_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Sojourn of a pass through ``plan`` under the load of ``phase``; inf when unstable."""
    problem = phase.problem
    b, p = (
        np.searchsorted(problem.batches, plan.batch),
        np.searchsorted(problem.parallel, plan.parallel),
    )
    service = float(phase.replica_s[b, p])
    return mmc_mean_wait(plan.replicas, problem.rate / plan.batch, service) + service


def watts_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Watts of ``plan`` under the load of ``phase``."""
    return fleet_watts(phase.problem, phase.power, plan.devices, plan.batch, plan.parallel)
