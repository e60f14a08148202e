"""Power and energy of a provisioning plan (eq. 9, A7)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.performance.efficiency import bandwidth_of, peak_flops
from simulation.performance.power import Load, PowerModel
from simulation.performance.power import watts as power_by_load
from simulation.performance.specs import GpuSpec
from simulation.performance.work import Experts, Iteration, Operator
from simulation.provisioning.problem import OperatorPlan, OperatorProblem


@dataclass(frozen=True, slots=True)
class Watts:
    """A GPU in one phase: what it draws without work, and how much more when busy."""

    idle_w: float
    dynamic_w: float


@dataclass(frozen=True, slots=True, eq=False)
class PhasePower:
    """Watts of one GPU by what runs on it."""

    idle_w: float
    floor_w: float  # while any kernel runs
    above_w: FloatArray  # [V, B, P] more while the operator runs


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


def operator_watts(
    model: PowerModel, gpu: GpuSpec, operator: Operator, it: Iteration, seconds: FloatArray
) -> FloatArray:
    """Watts of one GPU while it runs ``operator``, ``seconds`` a call, by the bytes and operations
    of the call. The model was fitted to whole iterations and is applied to their parts here."""
    work = operator.work(it)
    none, one = np.zeros_like(seconds), np.ones_like(seconds)
    routed = isinstance(operator, Experts)
    prompt = it.prefill_tokens + it.encoder_tokens > 0
    at = Load(
        seconds=seconds,
        weight_bytes=none if routed else work.weight_bytes,
        expert_bytes=work.weight_bytes if routed else none,
        cache_bytes=work.kv_bytes,
        decode_flops=np.where(prompt, 0.0, work.flops),
        prefill_flops=np.where(prompt, work.flops, 0.0),
        balance=one,
        bandwidth_bytes_s=one * bandwidth_of(gpu),
        peak_flops=one * peak_flops(operator, gpu),
        experts=one * routed,
        block_experts=one * (routed and getattr(operator, "precision", "") == "fp8"),
        attention_dp=none,
    )
    return power_by_load(replace(model, gap=0.0), gpu, at)  # a kernel that runs leaves no gap


def fleet_watts(
    problem: OperatorProblem,
    power: PhasePower,
    devices: int,
    batch: IntArray,
    parallel: IntArray,
) -> float:
    """Watts of ``devices`` GPUs that run the load of ``problem``, servers not included: what eq. 9
    comes to when devices, not slots, are paid for.

    A device draws ``idle_w`` always, ``floor_w`` while anything runs on it, and above that what
    each operator on it adds; operators that run beside each other share the floor.
    """
    at = (
        np.arange(len(problem.names)),
        np.searchsorted(problem.batches, batch),
        np.searchsorted(problem.parallel, parallel),
    )
    busy = problem.rate / batch * problem.latency_s[at] * parallel  # GPUs' worth of time
    running = min(float(busy.sum()), float(devices))
    return float(
        devices * power.idle_w
        + running * (power.floor_w - power.idle_w)
        + (busy * power.above_w[at]).sum()
    )
