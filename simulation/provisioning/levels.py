"""One service provisioned by whole replicas and by operators, on the same devices (A8).

What is compared is devices after placement. Operators can always stand as whole replicas do, so the
operator level falls back to them where nothing smaller is found, and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.provisioning.energy import Watts, loaded_gpus, steady_w
from simulation.provisioning.exact import exact
from simulation.provisioning.frontier import Frontier, frontiers, priced
from simulation.provisioning.greedy import algorithm1, from_frontiers
from simulation.provisioning.placement import Placement, algorithm2
from simulation.provisioning.problem import OperatorPlan, sojourns
from simulation.provisioning.replicas import ReplicaPlan, loaded_by, whole_replicas
from simulation.provisioning.workload import PhaseProblem

FloatArray = npt.NDArray[np.float64]
MEMORY_PRICES = (0.0, 0.25, 1.0, 4.0)
"""Weights of memory against load in the price of a choice; the best placed plan is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What one granularity needs. ``gap`` is to the optimum in slots, where that was proven."""

    level: str  # operator or model
    method: str
    devices: int
    power_w: float
    memory_bytes: float
    latency_s: float
    slo_s: float
    seconds: float  # that planning took
    gap: float | None
    plan: OperatorPlan | None = None
    placement: Placement | None = None
    replicas: ReplicaPlan | None = None


def model_level(phase: PhaseProblem, device_bytes: float, power: Watts) -> Level | None:
    """Whole replicas, each on devices of its own; None when no number of them meets the limit."""
    begun = time.perf_counter()
    plan = whole_replicas(phase, device_bytes)
    if plan is None:
        return None
    return Level(
        level="model",
        method="whole replicas",
        devices=plan.devices,
        power_w=steady_w(plan.devices, loaded_by(phase, plan), power),
        memory_bytes=plan.memory_bytes,
        latency_s=plan.latency_s,
        slo_s=phase.problem.slo_s,
        seconds=time.perf_counter() - begun,
        gap=None,
        replicas=plan,
    )


def operator_level(
    phase: PhaseProblem,
    device_bytes: float,
    power: Watts,
    *,
    method: str = "greedy",
    shared: bool = True,
    whole: Level | None = None,
) -> Level | None:
    """Operators scaled one by one and placed by Algorithm 2; None when no plan meets the limit.

    ``greedy``: our greedy at several prices of memory, the plan of fewest devices after placement.
    ``exact``: the fewest slots, proven, then placed. ``printed`` and ``algorithm 1``: the source's.
    ``whole``, the model level, is returned where it needs fewer devices: operators may stand so.
    """
    begun = time.perf_counter()
    problem = phase.problem
    table = _that_fit(phase, device_bytes)
    options = frontiers(problem, table)
    if any(not option.slots.size for option in options):
        return None
    plans: list[OperatorPlan | None]
    if method == "greedy":
        plans = [from_frontiers(problem, table, options)]
        plans += [
            from_frontiers(problem, table, _by_share(phase, table, device_bytes, weight))
            for weight in MEMORY_PRICES
        ]
    elif method == "exact":
        plans = [exact(problem, table)]
    else:
        plans = [algorithm1(problem, printed=method == "printed", table=table)]
    best: Level | None = None
    for plan in plans:
        if plan is None or not plan.feasible:
            continue
        placed = algorithm2(problem, phase.demand, plan, device_bytes, shared=shared)
        loaded = loaded_gpus(problem, phase.demand, plan.batch, plan.parallel)
        level = Level(
            level="operator",
            method=f"{plan.method}, by devices" if method == "greedy" else plan.method,
            devices=placed.devices,
            power_w=steady_w(placed.devices, loaded, power),
            memory_bytes=float(placed.memory_bytes.sum()),
            latency_s=placed.latency_s,
            slo_s=problem.slo_s,
            seconds=0.0,
            gap=plan.gap,
            plan=plan,
            placement=placed,
        )
        if best is None or (level.devices, level.power_w) < (best.devices, best.power_w):
            best = level
    if whole is not None and (best is None or whole.devices < best.devices):
        best = replace(whole, level="operator", method="as whole replicas: nothing finer is less")
    return None if best is None else replace(best, seconds=time.perf_counter() - begun)


def _that_fit(phase: PhaseProblem, device_bytes: float) -> FloatArray:
    """The table of sojourns without the choices whose replica is too big for a device."""
    demand = phase.demand
    replicas = np.arange(1, phase.problem.max_replicas + 1)
    memory = demand.memory_bytes[..., None]
    if demand.kept_bytes is not None:
        memory = memory + demand.kept_bytes[:, None, :, None] / replicas
    return np.where(memory <= device_bytes, sojourns(phase.problem), np.inf)


def _by_share(
    phase: PhaseProblem, table: FloatArray, device_bytes: float, memory_price: float
) -> tuple[Frontier, ...]:
    """Frontiers whose price is the share of a GPU that a choice keeps busy, and of its memory."""
    problem, demand = phase.problem, phase.demand
    replicas = np.arange(1, problem.max_replicas + 1)
    busy = np.maximum(demand.compute, demand.bandwidth) * problem.latency_s
    load = busy * problem.rate / problem.batches[:, None] * problem.parallel
    memory = demand.memory_bytes * problem.parallel / device_bytes
    return tuple(
        priced(table[v], load[v][..., None] + memory_price * memory[v][..., None] * replicas)
        for v in range(len(problem.names))
    )


def savings(model: Level, fine: Level) -> dict[str, float]:
    """Shares saved by ``fine`` against ``model``: devices, power and memory; negative: it costs."""
    return {
        "gpus": 1.0 - fine.devices / model.devices,
        "energy": 1.0 - fine.power_w / model.power_w,
        "memory": 1.0 - fine.memory_bytes / model.memory_bytes,
    }
