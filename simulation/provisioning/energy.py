"""Compute power and energy of a provisioning plan (eq. 9, A7)."""

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.performance.efficiency import bandwidth_of, peak_flops
from simulation.performance.power import Load, PowerModel
from simulation.performance.power import watts as power_by_load
from simulation.performance.specs import GpuSpec
from simulation.performance.work import Experts, Iteration, Operator
from simulation.provisioning.problem import OperatorPlan, OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class PhasePower:
    """Watts of one GPU: idle, the floor while any kernel runs, and those that an operator adds."""

    idle_w: float
    floor_w: float  # while any kernel runs
    above_w: FloatArray  # [V, B, P] additional watts while the operator runs


def dynamic_w(gpu: GpuSpec, phase: str) -> float:
    """Return the watts above idle of a GPU busy in a phase (eq. 9), measured or published."""
    active = gpu.prefill_w if phase == "prefill" else gpu.decode_w
    return max(active - gpu.idle_w, 0.0)


def operator_watts(
    model: PowerModel, gpu: GpuSpec, operator: Operator, iteration: Iteration, seconds: FloatArray
) -> FloatArray:
    """Return the watts of one GPU while it runs ``operator``, ``seconds`` per call.

    They depend on the bytes and operations of the call. The model was fitted to whole iterations;
    here it is applied to their parts.
    """
    work = operator.work(iteration)
    none, full = np.zeros_like(seconds), np.ones_like(seconds)
    routed = isinstance(operator, Experts)
    prompt = iteration.prefill_tokens + iteration.encoder_tokens > 0
    load = Load(
        seconds=seconds,
        weight_bytes=none if routed else work.weight_bytes,
        expert_bytes=work.weight_bytes if routed else none,
        cache_bytes=work.kv_bytes,
        decode_flops=np.where(prompt, 0.0, work.flops),
        prefill_flops=np.where(prompt, work.flops, 0.0),
        balance=full,
        bandwidth_bytes_s=full * bandwidth_of(gpu),
        peak_flops=full * peak_flops(operator, gpu),
        experts=full * routed,
        block_experts=full * (routed and getattr(operator, "precision", "") == "fp8"),
        attention_dp=none,
        linked=none,  # unknown for a single operator: it belongs to the group of GPUs
    )
    # No gap between kernels while one runs.
    return power_by_load(replace(model, gap=0.0), gpu, load)


def energy_of_pass(problem: OperatorProblem, power: PhasePower, plan: OperatorPlan) -> FloatArray:
    """Return the joules of each operator while a batch waits and runs, ``[V]`` (equation 9).

    alpha is the idle power of a GPU. All GPUs of the operator draw it for the wait and the service.
    beta is the power above idle of the GPUs that run the batch.
    """
    chosen = problem.indices_of(plan.batch, plan.parallel)
    held_s = plan.sojourn_s - problem.transfer_s[chosen]
    beta_w = plan.parallel * (power.floor_w - power.idle_w + power.above_w[chosen])
    return np.asarray(
        power.idle_w * plan.slots_of * held_s + beta_w * problem.latency_s[chosen], np.float64
    )


def fleet_watts(
    problem: OperatorProblem,
    power: PhasePower,
    devices: int,
    batch: IntArray | int,
    parallel: IntArray | int,
) -> float:
    """Return the watts of ``devices`` GPUs under the load of ``problem``, without servers.

    This is eq. 9 if devices are paid for and not slots. A device always draws ``idle_w``, and
    ``floor_w`` while anything runs on it. Each running operator adds its own watts above the floor.
    Concurrent operators share the floor.
    """
    chosen = problem.indices_of(batch, parallel)
    busy = problem.rate / batch * problem.latency_s[chosen] * parallel  # busy GPUs
    running = min(float(busy.sum()), float(devices))
    return float(
        devices * power.idle_w
        + running * (power.floor_w - power.idle_w)
        + (busy * power.above_w[chosen]).sum()
    )
