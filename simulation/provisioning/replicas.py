"""The baseline of section 4.2.3: whole replicas, one batch and one count for all operators.

A replica works on one batch at a time, batches queue for R of them (M/M/R), and every replica has
devices of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.provisioning.energy import loaded_gpus
from simulation.provisioning.kernels import fill_sojourns
from simulation.provisioning.workload import PhaseProblem
from simulation.queueing import mmc_mean_wait


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
    """The fewest devices over all batches, parallelisms and counts, then the least latency.

    None when no choice meets the limit within ``max_replicas`` or fits the devices' memory.
    """
    problem = phase.problem
    table = np.empty((1, *phase.replica_s.shape, problem.max_replicas))
    fill_sojourns(
        phase.replica_s[None],
        np.zeros_like(phase.replica_s)[None],
        problem.batches.astype(np.float64),
        problem.rate,
        table,
    )
    sojourn = table[0]
    replicas = np.arange(1, problem.max_replicas + 1)
    kept = phase.kept_bytes[None, :, None] / replicas
    memory = phase.replica_bytes[:, :, None] + kept
    devices = np.broadcast_to(problem.parallel[None, :, None] * replicas, sojourn.shape)
    good = (sojourn <= problem.slo_s) & (memory <= device_bytes)
    if not good.any():
        return None
    fewest = devices[good].min()
    among = np.where(good & (devices == fewest), sojourn, np.inf)
    b, p, r = np.unravel_index(among.argmin(), among.shape)
    return ReplicaPlan(
        replicas=int(replicas[r]),
        batch=int(problem.batches[b]),
        parallel=int(problem.parallel[p]),
        devices=int(fewest),
        memory_bytes=float(memory[b, p, r] * fewest),
        latency_s=float(sojourn[b, p, r]),
        busy=float(problem.rate / problem.batches[b] * phase.replica_s[b, p] / replicas[r]),
    )


def latency_of(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """Sojourn of a pass through ``plan`` under the load of ``phase``; inf when unstable."""
    problem = phase.problem
    b, p = (
        np.searchsorted(problem.batches, plan.batch),
        np.searchsorted(problem.parallel, plan.parallel),
    )
    service = float(phase.replica_s[b, p])
    return mmc_mean_wait(plan.replicas, problem.rate / plan.batch, service) + service


def loaded_by(phase: PhaseProblem, plan: ReplicaPlan) -> float:
    """GPUs' worth of work that ``plan`` does under the load of ``phase``."""
    everyone = np.ones(len(phase.problem.names), np.int64)
    return loaded_gpus(phase.problem, phase.demand, plan.batch * everyone, plan.parallel * everyone)
