"""Power and energy of a provisioning plan (eq. 9, A7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.performance.specs import GpuSpec
from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorPlan, OperatorProblem

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Watts:
    """A GPU in one phase: what it draws without work, and how much more when busy."""

    idle_w: float
    dynamic_w: float


def watts(gpu: GpuSpec, phase: str) -> Watts:
    """The two coefficients of eq. 9 from the GPU's measured or published power."""
    active = gpu.prefill_w if phase == "prefill" else gpu.decode_w
    return Watts(gpu.idle_w, max(active - gpu.idle_w, 0.0))


def request_energy_j(problem: OperatorProblem, plan: OperatorPlan, power: Watts) -> float:
    """E of eq. 9, summed over operators, per request: idle power of P x R GPUs for W + T, dynamic
    power of the P GPUs that work for T, both shared by the batch."""
    v = np.arange(len(problem.names))
    b = np.searchsorted(problem.batches, plan.batch)
    p = np.searchsorted(problem.parallel, plan.parallel)
    busy_s = problem.latency_s[v, b, p]
    stays_s = plan.sojourn_s - problem.transfer_s[v, b, p]
    idle = power.idle_w * plan.parallel * plan.replicas * stays_s
    return float(((idle + power.dynamic_w * plan.parallel * busy_s) / plan.batch).sum())


def steady_w(devices: int, loaded_gpus: float, power: Watts) -> float:
    """Watts of ``devices`` GPUs that do the work of ``loaded_gpus`` fully used ones: what eq. 9
    comes to when devices, not slots, are paid for."""
    return devices * power.idle_w + loaded_gpus * power.dynamic_w


def loaded_gpus(
    problem: OperatorProblem, demand: Demand, batch: IntArray, parallel: IntArray
) -> float:
    """GPUs' worth of arithmetic or memory traffic, whichever is more of each operator: the sum of
    rate / b x T x P x max(compute, bandwidth). Small batches read weights more often and cost."""
    at = (
        np.arange(len(problem.names)),
        np.searchsorted(problem.batches, batch),
        np.searchsorted(problem.parallel, parallel),
    )
    used = np.maximum(demand.compute[at], demand.bandwidth[at])
    return float((problem.rate / batch * problem.latency_s[at] * parallel * used).sum())
