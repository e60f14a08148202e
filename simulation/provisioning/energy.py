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
    """Watts of one GPU in a phase."""

    idle_w: float
    floor_w: float  # while any kernel runs
    above_w: FloatArray  # [V, B, P] in addition to the floor while the operator runs


def operator_watts(
    model: PowerModel, gpu: GpuSpec, operator: Operator, iteration: Iteration, seconds: FloatArray
) -> FloatArray:
    """Return the watts of one GPU while it runs calls of ``operator`` that take ``seconds`` each.

    ``seconds`` has one value per batch of ``iteration``. Watts depend on the bytes and operations
    of the call. ``model`` was fitted to whole iterations, and is applied to a single operator here.
    """
    work = operator.work(iteration)
    zeros, ones = np.zeros_like(seconds), np.ones_like(seconds)
    routed = isinstance(operator, Experts)
    is_prompt = iteration.prefill_tokens + iteration.encoder_tokens > 0
    load = Load(
        seconds=seconds,
        weight_bytes=zeros if routed else work.weight_bytes,
        expert_bytes=work.weight_bytes if routed else zeros,
        cache_bytes=work.kv_bytes,
        decode_flops=np.where(is_prompt, 0.0, work.flops),
        prefill_flops=np.where(is_prompt, work.flops, 0.0),
        balance=ones,
        bandwidth_bytes_s=ones * bandwidth_of(gpu),
        peak_flops=ones * peak_flops(operator, gpu),
        experts=ones * routed,
        block_experts=ones * (routed and getattr(operator, "precision", "") == "fp8"),
        attention_dp=zeros,
        linked=zeros,  # unknown for a single operator: it belongs to the group of GPUs
    )
    # No gap between kernels while one runs.
    return power_by_load(replace(model, gap=0.0), gpu, load)


def energy_of_pass(problem: OperatorProblem, power: PhasePower, plan: OperatorPlan) -> FloatArray:
    """Return the joules of each operator while a batch waits and runs, ``[V]`` (equation 9).

    All GPUs of the operator draw idle power (alpha) for the wait and the service. The GPUs that run
    the batch draw the power above idle (beta) for the service.
    """
    chosen = problem.indices_of(plan.batch, plan.parallel)
    wait_and_service_s = plan.sojourn_s - problem.transfer_s[chosen]
    alpha_joules = power.idle_w * plan.slots_of * wait_and_service_s
    beta_w = plan.parallel * (power.floor_w - power.idle_w + power.above_w[chosen])
    return np.asarray(alpha_joules + beta_w * problem.latency_s[chosen], np.float64)


def fleet_watts(
    problem: OperatorProblem,
    power: PhasePower,
    devices: int,
    batch: IntArray | int,
    parallel: IntArray | int,
) -> float:
    """Return the watts of ``devices`` GPUs under the load of ``problem``, without their servers.

    It is equation 9 of the paper, counted by devices. A device draws ``idle_w``, or ``floor_w``
    while anything runs on it. Each running operator adds its watts above the floor. ``batch`` and
    ``parallel`` are one number, or one per operator.
    """
    chosen = problem.indices_of(batch, parallel)
    # Little's law: batches/s times seconds, on ``parallel`` GPUs each, is the mean of busy GPUs.
    busy_gpus = problem.rate / batch * problem.latency_s[chosen] * parallel  # [operators]
    # Operators that share a device run at once, so busy operators may exceed devices.
    running_devices = min(float(busy_gpus.sum()), float(devices))
    return float(
        devices * power.idle_w
        + running_devices * (power.floor_w - power.idle_w)
        + (busy_gpus * power.above_w[chosen]).sum()
    )
