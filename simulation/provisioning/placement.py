"""Operator replicas on devices: Algorithm 2 of the source, and the fewest devices there can be.

What eq. 8 counts are places; what is paid for are devices. Base instances stand first (k_base =
the least replicas of any operator, each a whole model), extra replicas join the devices there are
while memory, load and the recomputed latency allow, the one with most slack left first. A GPU that
cannot run several streams at once (``shared=False``) takes no extra replica beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.interference import Demand, beside
from simulation.provisioning.kernels import (
    device_loads,
    place_exactly,
    place_greedily,
    placed_latency,
)
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, order, predecessors

BUDGET = 20_000_000  # nodes that the exact placement may look at


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where every shard stands; shards come operator by operator, replica by replica."""

    method: str
    devices: int
    operator: IntArray  # [S]
    replica: IntArray  # [S]
    device: IntArray  # [S]
    memory_bytes: FloatArray  # [D]
    compute: FloatArray  # [D] expected share of the arithmetic in use
    bandwidth: FloatArray  # [D] expected share of the memory bandwidth in use
    slowdown: FloatArray  # [V] mean over the operator's replicas
    latency_s: float  # of the critical path, with interference
    feasible: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """A plan as the kernels read it."""

    operator: IntArray  # [S]
    replica: IntArray  # [S]
    memory: FloatArray  # [V] per shard
    figures: FloatArray  # [V, 7]; see ``placed_latency``
    beside: FloatArray  # [V, V] of interference by pairs; empty: the physical model
    rate: FloatArray  # [V] batches/s
    replicas: IntArray  # [V]
    graph: tuple[IntArray, IntArray, IntArray]


def algorithm2(
    problem: OperatorProblem,
    demand: Demand,
    plan: OperatorPlan,
    device_bytes: float,
    *,
    shared: bool = True,
) -> Placement:
    """Algorithm 2 for a plan that meets its limit; raises where a replica fits on no device."""
    _check(problem, plan)
    items = _items(problem, demand, plan)
    where, used = _greedily(items, plan.parallel, device_bytes, problem.slo_s, shared)
    if used < 0:
        raise SimulationError(_too_big(problem, items, device_bytes))
    return _placement("algorithm 2", problem.slo_s, items, where, used)


def together(
    parts: Sequence[tuple[OperatorProblem, Demand, OperatorPlan]], device_bytes: float
) -> Placement:
    """Algorithm 2 for several services on the same devices (A9): their operators join one graph in
    which each service's times are shares of its own limit. ``latency_s`` and the limit are such
    shares too; operators come service by service."""
    for problem, _, plan in parts:
        _check(problem, plan)
    each = [_items(*part) for part in parts]
    items = _merged(each, parts)
    parallel = np.concatenate([plan.parallel for _, _, plan in parts])
    where, used = _greedily(items, parallel, device_bytes, 1.0, True)
    if used < 0:
        for (problem, _, _), one in zip(parts, each, strict=True):
            if one.memory.max() > device_bytes:
                raise SimulationError(_too_big(problem, one, device_bytes))
        raise SimulationError(_too_big(parts[0][0], each[0], device_bytes))
    return _placement("algorithm 2, together", 1.0, items, where, used)


def _merged(
    each: list[_Items], parts: Sequence[tuple[OperatorProblem, Demand, OperatorPlan]]
) -> _Items:
    """Items of several services as those of one whose limit is 1."""
    counts = [one.rate.size for one in each]
    offsets = np.r_[0, np.cumsum(counts)][:-1]
    figures = []
    for one, (problem, _, _) in zip(each, parts, strict=True):
        scaled = one.figures.copy()
        scaled[:, :2] /= problem.slo_s
        figures.append(scaled)
    edges = tuple(
        (int(at) + u, int(at) + v)
        for at, (problem, _, _) in zip(offsets, parts, strict=True)
        for u, v in problem.edges
    )
    total = sum(counts)
    stacked = np.concatenate(figures)
    demands = [demand for _, demand, _ in parts]
    table = next((demand.table for demand in demands if demand.table is not None), None)
    kinds = [demand.kinds for demand in demands if demand.kinds is not None]
    all_known = len(kinds) == len(demands)
    return _Items(
        operator=np.concatenate([one.operator + at for one, at in zip(each, offsets, strict=True)]),
        replica=np.concatenate([one.replica for one in each]),
        memory=np.concatenate([one.memory for one in each]),
        figures=stacked,
        beside=beside(
            table, np.concatenate(kinds) if all_known else None, stacked[:, 2], stacked[:, 3]
        ),
        rate=np.concatenate(
            [one.rate * part[0].slo_s for one, part in zip(each, parts, strict=True)]
        ),
        replicas=np.concatenate([one.replicas for one in each]),
        graph=(np.array(order(total, edges), np.int64), *predecessors(total, edges)),
    )


def _greedily(
    items: _Items, parallel: IntArray, device_bytes: float, slo_s: float, shared: bool
) -> tuple[IntArray, int]:
    """Algorithm 2: the device of every shard, and how many there are; -1: a replica fits none."""
    replicas = int(items.replicas.sum())
    sizes = np.repeat(parallel, items.replicas)
    first = np.r_[0, np.cumsum(sizes)][:-1].astype(np.int64)
    op = items.operator[first]
    number = items.replica[first]
    whole = int(items.replicas.min())
    base = np.where(number < whole, number, -1)
    position = np.argsort(items.graph[0])
    extra_key = -items.figures[op, 0]
    # Instance by instance in the order of the graph, then extras by falling latency.
    sequence = np.lexsort(
        (
            number,
            np.where(base >= 0, position[op], extra_key),
            np.where(base >= 0, base, replicas),
        )
    )
    where = np.full(items.operator.size, -1, np.int64)
    used = place_greedily(
        sequence, first, sizes, base, items.operator, items.replica, items.memory, items.figures,
        items.beside, items.rate, items.replicas, *items.graph, device_bytes, slo_s, shared, where,
    )  # fmt: skip
    return where, used


def exact_placement(
    problem: OperatorProblem,
    demand: Demand,
    plan: OperatorPlan,
    device_bytes: float,
    *,
    fewer_than: int | None = None,
) -> Placement | None:
    """The fewest devices for a plan, proven; None when not below ``fewer_than``. Small cases only:
    raises when more than ``BUDGET`` partial placements would have to be looked at."""
    _check(problem, plan)
    items = _items(problem, demand, plan)
    where = np.full(items.operator.size, -1, np.int64)
    below = items.operator.size + 1 if fewer_than is None else fewer_than
    used = place_exactly(
        items.operator, items.replica, items.memory, items.figures, items.beside, items.rate,
        items.replicas, *items.graph, device_bytes, problem.slo_s, below, BUDGET, where,
    )  # fmt: skip
    if used < 0:
        raise SimulationError(
            f"{items.operator.size} replicas are too many to place exactly; use Algorithm 2."
        )
    if used == 0:
        if fewer_than is None:
            raise SimulationError(_too_big(problem, items, device_bytes))
        return None
    return _placement("exact placement", problem.slo_s, items, where, used)


def _check(problem: OperatorProblem, plan: OperatorPlan) -> None:
    if not plan.feasible:
        raise SimulationError(
            f"The plan takes {plan.latency_s * 1e3:.0f} ms before anything shares a device; the "
            f"limit is {problem.slo_s * 1e3:.0f} ms. Plan again before placing."
        )


def _too_big(problem: OperatorProblem, items: _Items, device_bytes: float) -> str:
    v = int(items.memory.argmax())
    if items.memory[v] > device_bytes:
        return (
            f"A replica of {problem.names[v]} needs {items.memory[v] / 1e9:.1f} GB and a device "
            f"has {device_bytes / 1e9:.1f} GB; use a smaller batch or more parallelism."
        )
    return "A replica keeps a device busier than it can be; add replicas."


def _items(problem: OperatorProblem, demand: Demand, plan: OperatorPlan) -> _Items:
    count = len(problem.names)
    b = np.searchsorted(problem.batches, plan.batch)
    p = np.searchsorted(problem.parallel, plan.parallel)
    at = (np.arange(count), b, p)
    rate = problem.rate / plan.batch
    busy = rate * problem.latency_s[at] / plan.replicas
    compute, bandwidth = demand.compute[at], demand.bandwidth[at]
    shards = plan.replicas * plan.parallel
    return _Items(
        operator=np.repeat(np.arange(count), shards),
        replica=np.concatenate(
            [np.repeat(np.arange(r), n) for r, n in zip(plan.replicas, plan.parallel, strict=True)]
        ),
        memory=demand.shard_bytes(*at, plan.replicas),
        figures=np.stack(
            [
                problem.latency_s[at],
                problem.transfer_s[at],
                compute,
                bandwidth,
                busy * compute,
                busy * bandwidth,
                busy,
            ],
            axis=1,
        ),
        beside=demand.beside(compute, bandwidth),
        rate=rate,
        replicas=plan.replicas.astype(np.int64),
        graph=(
            np.array(order(count, problem.edges), np.int64),
            *predecessors(count, problem.edges),
        ),
    )


def _placement(method: str, slo_s: float, items: _Items, where: IntArray, used: int) -> Placement:
    loads = np.zeros((used, 3 + items.beside.shape[0]))
    device_loads(where.size, items.operator, where, items.memory, items.figures, loads)
    count = items.rate.size
    slowdown = np.empty(count)
    latency = placed_latency(
        where.size, items.operator, items.replica, where, loads, items.figures, items.beside,
        items.rate, items.replicas, *items.graph, slowdown, np.empty(count), np.empty(count),
    )  # fmt: skip
    return Placement(
        method=method,
        devices=used,
        operator=items.operator,
        replica=items.replica,
        device=where,
        memory_bytes=loads[:, 0],
        compute=loads[:, 1],
        bandwidth=loads[:, 2],
        slowdown=slowdown,
        latency_s=float(latency),
        feasible=bool(latency <= slo_s),
    )


def latency_at(
    problem: OperatorProblem, demand: Demand, plan: OperatorPlan, placement: Placement
) -> float:
    """Critical path of a placed plan under another load or other lengths; inf when unstable."""
    items = _items(problem, demand, plan)
    loads = np.zeros((placement.devices, 3 + items.beside.shape[0]))
    device_loads(
        placement.device.size, items.operator, placement.device, items.memory, items.figures, loads
    )
    if (loads[:, 1:3] > 1.0).any():
        return float("inf")
    empty = np.empty(items.rate.size)
    return float(
        placed_latency(
            placement.device.size,
            items.operator,
            items.replica,
            placement.device,
            loads,
            items.figures,
            items.beside,
            items.rate,
            items.replicas,
            *items.graph,
            empty,
            empty.copy(),
            empty.copy(),
        )
    )
