"""Place operator replicas on devices with Algorithm 2 of the source.

Eq. 8 counts slots, but devices are paid for. Base instances are placed first. Their number k_base
is the least replica count of any operator, and each is a whole model. Extra replicas then join
existing devices, most slack first, while memory, load and the recomputed latency allow it. A GPU
that cannot run several streams (``shared=False``) takes no extra replica.

A shard is the part of a replica on one GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.interference import Demand, joint_interference
from simulation.provisioning.packing import (
    Devices,
    Plan,
    Replicas,
    evaluate_placement,
    place_greedily,
)
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, precedence_graph


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Device of every shard; shards are ordered by operator, then replica."""

    devices: int
    operator: IntArray  # [S]
    replica: IntArray  # [S]
    device: IntArray  # [S]
    memory_bytes: FloatArray  # [D]
    compute: FloatArray  # [D] expected share of the arithmetic in use
    bandwidth: FloatArray  # [D] expected share of the memory bandwidth in use
    slowdown: FloatArray  # [V] mean over the operator's replicas
    latency_s: float  # critical path, with interference
    feasible: bool


def place_plan(
    problem: OperatorProblem,
    demand: Demand,
    plan: OperatorPlan,
    device_bytes: float,
    *,
    shared: bool = True,
) -> Placement:
    """Return the placement of a plan's replicas on devices of ``device_bytes``, by Algorithm 2.

    The plan meets the latency limit of ``problem``. ``shared`` allows several operators on a GPU.
    Raises SimulationError if a replica fits on no device.
    """
    packed = packing_plan(problem, demand, plan)
    device_of_shard, used = _place_greedily(
        packed, plan.parallel, device_bytes, problem.slo_s, shared
    )
    return placement_of(problem.slo_s, packed, device_of_shard, used)


def place_services(
    services: Sequence[tuple[OperatorProblem, Demand, OperatorPlan]], device_bytes: float
) -> Placement:
    """Return the placement of several services on shared devices by Algorithm 2.

    ``services`` are the problem, demand and plan of each. The result has the operators of all
    services, one service after the other. Its ``latency_s`` is the largest latency as a share of
    the service's limit. Raises SimulationError as ``place_plan``.
    """
    merged = _merge_plans([packing_plan(*part) for part in services], services)
    parallel = np.concatenate([plan.parallel for _, _, plan in services])
    device_of_shard, used = _place_greedily(merged, parallel, device_bytes, slo_s=1.0, shared=True)
    return placement_of(1.0, merged, device_of_shard, used)


def _merge_plans(
    packed: list[Plan], services: Sequence[tuple[OperatorProblem, Demand, OperatorPlan]]
) -> Plan:
    """Return the plans of several services as one, in which the latency limit of each is 1.

    Latencies are divided by each service's limit, and rates multiplied by it. Measured slowdowns of
    pairs are used if the kinds of all operators are known.
    """
    problems = [problem for problem, _, _ in services]
    demands = [demand for _, demand, _ in services]
    # First operator of each service among all operators, and their number
    offsets = np.r_[0, np.cumsum([plan.rate.size for plan in packed])]
    edges = tuple(
        (int(first) + u, int(first) + v)
        for first, problem in zip(offsets[:-1], problems, strict=True)
        for u, v in problem.edges
    )
    scaled = [
        plan._replace(
            operator=plan.operator + first,
            latency_s=plan.latency_s / problem.slo_s,
            transfer_s=plan.transfer_s / problem.slo_s,
            rate=plan.rate * problem.slo_s,
        )
        for plan, first, problem in zip(packed, offsets[:-1], problems, strict=True)
    ]
    joined = {
        name: np.concatenate([getattr(plan, name) for plan in scaled])
        for name in Plan._fields
        if name not in ("interference", "graph", "compute_reserved")
    }
    return Plan(
        **joined,
        interference=joint_interference(demands, joined["compute"], joined["bandwidth"]),
        graph=precedence_graph(int(offsets[-1]), edges),
        compute_reserved=False,
    )


def _place_greedily(
    plan: Plan, parallel: IntArray, device_bytes: float, slo_s: float, shared: bool
) -> tuple[IntArray, int]:
    """Return the device of every shard by Algorithm 2, and the number of devices used.

    ``parallel [V]`` are the shards per replica. ``shared`` allows several operators on a GPU.
    Raises SimulationError if a replica fits on no device.
    """
    sizes = np.repeat(parallel, plan.replicas)  # shards of each replica
    first = np.r_[0, np.cumsum(sizes)][:-1].astype(np.int64)  # its first shard
    operator, number = plan.operator[first], plan.replica[first]
    # k_base: as many whole models as the operator with the fewest replicas allows. Replica k of
    # each operator belongs to base instance k; -1: an extra replica.
    base = np.where(number < plan.replicas.min(), number, -1)
    graph_position = np.argsort(plan.graph.topological)
    # Base instances one by one in graph order, then extra replicas by falling latency.
    instance_order = np.where(base >= 0, base, plan.replicas.sum())  # extra replicas after all
    order_within = np.where(base >= 0, graph_position[operator], -plan.latency_s[operator])
    sequence = np.lexsort((number, order_within, instance_order))  # the last key counts first
    device_of_shard = np.full(plan.operator.size, -1, np.int64)
    replicas = Replicas(sequence, first, sizes, base)
    # Fills ``device_of_shard``.
    used = place_greedily(plan, replicas, device_bytes, slo_s, shared, device_of_shard)
    if used < 0:
        raise SimulationError(
            f"A part of a replica takes up to {plan.memory.max() / 1e9:.1f} GB and a device has "
            f"{device_bytes / 1e9:.1f} GB. Use a smaller batch or more parallelism."
        )
    return device_of_shard, used


def packing_plan(problem: OperatorProblem, demand: Demand, plan: OperatorPlan) -> Plan:
    """Return ``plan`` under the demand of its operators as arrays for compiled code."""
    count, chosen = len(problem.names), problem.indices_of(plan.batch, plan.parallel)
    replica_numbers = [
        np.repeat(np.arange(replicas), shards)
        for replicas, shards in zip(plan.replicas, plan.parallel, strict=True)
    ]
    rate = problem.rate / plan.batch
    compute, bandwidth = demand.compute[chosen], demand.bandwidth[chosen]
    return Plan(
        operator=np.repeat(np.arange(count), plan.replicas * plan.parallel),
        replica=np.concatenate(replica_numbers),
        latency_s=problem.latency_s[chosen],
        transfer_s=problem.transfer_s[chosen],
        compute=compute,
        bandwidth=bandwidth,
        board=demand.board[chosen],
        memory=demand.shard_bytes(*chosen, plan.replicas),
        busy=rate * problem.latency_s[chosen] / plan.replicas,
        rate=rate,
        replicas=plan.replicas.astype(np.int64),
        interference=joint_interference([demand], compute, bandwidth),
        graph=problem.graph,
        compute_reserved=demand.compute_reserved,
    )


def fits_devices(
    problem: OperatorProblem, demand: Demand, plan: OperatorPlan, device_bytes: float
) -> bool:
    """Return whether every shard fits in the memory of a device."""
    chosen = problem.indices_of(plan.batch, plan.parallel)
    return bool((demand.shard_bytes(*chosen, plan.replicas) <= device_bytes).all())


def placement_of(slo_s: float, plan: Plan, device_of_shard: IntArray, used: int) -> Placement:
    """Return the placement of a plan, with loads of its devices, slowdowns and latency.

    ``device_of_shard [S]`` has numbers from 0 to ``used`` - 1. The placement is feasible if its
    latency is at most ``slo_s``.
    """
    devices, slowdown, latency = evaluate_placement(plan, device_of_shard, used)
    return Placement(
        devices=used,
        operator=plan.operator,
        replica=plan.replica,
        device=device_of_shard,
        memory_bytes=devices.memory,
        compute=devices.compute,
        bandwidth=devices.bandwidth,
        slowdown=slowdown,
        latency_s=float(latency),
        feasible=bool(latency <= slo_s),
    )


def with_memory_of(
    placement: Placement, problem: OperatorProblem, demand: Demand, plan: OperatorPlan
) -> Placement:
    """Return ``placement`` with the memory that ``plan`` uses under ``demand``."""
    shard_bytes = packing_plan(problem, demand, plan).memory[placement.operator]
    device_bytes = np.bincount(placement.device, weights=shard_bytes, minlength=placement.devices)
    return replace(placement, memory_bytes=device_bytes.astype(np.float64))


def latency_at(
    problem: OperatorProblem, demand: Demand, plan: OperatorPlan, placement: Placement
) -> float:
    """Return the seconds of the critical path of a placed plan under the load of ``problem``.

    The load may differ from the one that the plan was made for. inf if a device is overloaded.
    """
    devices: Devices
    devices, _, latency = evaluate_placement(
        packing_plan(problem, demand, plan), placement.device, placement.devices
    )
    busiest = max(devices.compute.max(), devices.bandwidth.max())
    return float("inf") if busiest > 1.0 else float(latency)
