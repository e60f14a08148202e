"""Shards on devices, compiled: what devices hold and do, how that slows operators, Algorithm 2.

A shard is one GPU's part of a replica; arrays over shards come replica by replica. ``where`` is the
device of a shard, -1 while it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from simulation.compiled import cached_kernel, kernel, source_stamp
from simulation.provisioning.sojourns import Graph, longest_path, sojourn

FULL = 1.0 - 1e-9  # of a device: beyond it nothing gets anywhere
TRIES = 16  # devices with most slack on which the limit is looked at before a new one is opened


class Plan(NamedTuple):
    """A plan of operators as compiled code reads it, ``[V]`` unless said."""

    operator: Any  # [S] of each shard
    replica: Any  # [S]
    latency_s: Any
    transfer_s: Any
    compute: Any  # share of a GPU's arithmetic while it runs
    bandwidth: Any  # share of its memory bandwidth while it runs
    board: Any  # share of its board's watts above the floor while it runs
    memory: Any  # bytes per shard
    busy: Any  # share of time that a replica works
    rate: Any  # batches/s
    replicas: Any
    beside: Any  # [V, V] what all of u's time adds to v's; empty: the physical model
    graph: Graph


class Devices(NamedTuple):
    """What stands on devices: memory, expected arithmetic, traffic and watts, ``[D]``."""

    memory: Any
    compute: Any
    bandwidth: Any
    board: Any
    all_compute: Any  # of everything that stands there, if it ran at once
    all_bandwidth: Any
    busy: Any  # [D, V] time that each operator keeps it busy; empty without ``Plan.beside``


class Replicas(NamedTuple):
    """Replicas by number ``q``: ``sequence`` is the order in which they are placed."""

    sequence: Any
    first: Any  # shard
    parallel: Any  # shards
    base: Any  # the whole model instance it belongs to; -1: it is extra


class Scratch(NamedTuple):
    """Room for numbers of ``[V]`` operators."""

    slowdown: Any
    sojourn_s: Any
    ends: Any


@kernel
def no_devices(count: int, plan: Plan) -> Devices:
    none = np.zeros(count)
    return Devices(
        none, none.copy(), none.copy(), none.copy(), none.copy(), none.copy(),
        np.zeros((count, plan.beside.shape[0])),
    )  # fmt: skip


@kernel
def scratch(count: int) -> Scratch:
    return Scratch(np.empty(count), np.empty(count), np.empty(count))


@kernel
def put(devices: Devices, d: int, v: int, plan: Plan, sign: float) -> None:
    """A shard of ``v`` joins device ``d``, or leaves it (``sign`` -1)."""
    devices.memory[d] += sign * plan.memory[v]
    devices.compute[d] += sign * (plan.busy[v] * plan.compute[v])
    devices.bandwidth[d] += sign * (plan.busy[v] * plan.bandwidth[v])
    devices.board[d] += sign * (plan.busy[v] * plan.board[v])
    devices.all_compute[d] += sign * plan.compute[v]
    devices.all_bandwidth[d] += sign * plan.bandwidth[v]
    if plan.beside.shape[0]:
        devices.busy[d, v] += sign * plan.busy[v]


@kernel
def _slower(share: float, others: float, all_at_once: float) -> float:
    """How much longer what takes ``share`` of something runs beside others that take ``others`` of
    it on average, never more than with all of them at once."""
    return float(max(0.0, min(share * others / (1.0 - others), all_at_once - 1.0)))


@kernel
def slowdown_at(devices: Devices, d: int, v: int, plan: Plan) -> float:
    """How many times as long a shard of ``v`` takes on ``d``, where it is counted already: by
    ``plan.beside``, or where that is empty by the physical model."""
    own = plan.busy[v]
    arithmetic = min(devices.compute[d] - own * plan.compute[v], FULL)
    traffic = min(devices.bandwidth[d] - own * plan.bandwidth[v], FULL)
    if not plan.beside.shape[0]:
        slower = _slower(plan.compute[v], arithmetic, devices.all_compute[d])
        return float(
            1.0 + max(slower, _slower(plan.bandwidth[v], traffic, devices.all_bandwidth[d]))
        )
    more = -plan.beside[v, v] * own
    for u in range(plan.beside.shape[0]):
        more += plan.beside[v, u] * devices.busy[d, u]
    return float(1.0 + max(0.0, more) / (1.0 - max(0.0, arithmetic, traffic)))


@kernel
def placed_latency(plan: Plan, where: Any, devices: Devices, room: Scratch) -> float:
    """Critical path with every placed replica slowed by what shares its devices; inf: unstable.

    A replica is as slow as its slowest shard, an operator as the mean of its replicas, which
    ``room.slowdown`` becomes.
    """
    room.slowdown[:] = 0.0
    shards, i = where.size, 0
    while i < shards:
        v, k = plan.operator[i], plan.replica[i]
        worst = 1.0
        while i < shards and plan.operator[i] == v and plan.replica[i] == k:
            if where[i] >= 0:
                worst = max(worst, slowdown_at(devices, where[i], v, plan))
            i += 1
        room.slowdown[v] += worst
    for v in range(plan.rate.size):
        room.slowdown[v] /= plan.replicas[v]
        service = plan.latency_s[v] * room.slowdown[v]
        load = plan.rate[v] * service
        if load >= plan.replicas[v]:
            return float(np.inf)
        room.sojourn_s[v] = sojourn(load, plan.replicas[v], service, plan.transfer_s[v])
    return float(longest_path(room.sojourn_s, plan.graph, room.ends))


@kernel
def fits(devices: Devices, d: int, v: int, plan: Plan, capacity: float) -> bool:
    """Whether a shard of ``v`` can join device ``d``: memory, load it can keep up with, watts."""
    return bool(
        devices.memory[d] + plan.memory[v] <= capacity
        and devices.board[d] + plan.busy[v] * plan.board[v] <= 1.0
        and devices.compute[d] + plan.busy[v] * plan.compute[v] <= 1.0
        and devices.bandwidth[d] + plan.busy[v] * plan.bandwidth[v] <= 1.0
    )


@kernel
def _judge(plan: Plan, where: Any, count: int) -> Any:
    """What ``count`` devices hold and do, slowdowns ``[V]``, and the latency of the plan."""
    devices, room = no_devices(count, plan), scratch(plan.rate.size)
    for i in range(where.size):
        put(devices, where[i], plan.operator[i], plan, 1.0)
    latency = placed_latency(plan, where, devices, room)
    return devices, room.slowdown, latency


@kernel
def _place_greedily(
    plan: Plan, replicas: Replicas, capacity: float, slo: float, shared: bool, where: Any
) -> int:
    """Algorithm 2: devices used, or -1 when a replica cannot stand even on devices of its own.

    A replica of a whole model instance looks at the devices of its instance, an extra one at all of
    them.
    """
    shards = where.size
    devices, room = no_devices(shards, plan), scratch(plan.rate.size)
    owner = np.full(shards, -1, np.int64)
    tried = np.zeros(shards, np.bool_)
    used = 0
    for q in replicas.sequence:
        first, instance = replicas.first[q], replicas.base[q]
        v = plan.operator[first]
        for i in range(first, first + replicas.parallel[q]):
            best, tries = -1, 0
            tried[:used] = False
            while best < 0 and tries < TRIES:
                # The device with most slack left after taking the shard, of those not tried yet.
                d, most = -1, -1.0
                for e in range(used):
                    if tried[e] or (instance >= 0 and owner[e] != instance):
                        continue
                    if instance < 0 and not shared:
                        continue
                    twice = False
                    for j in range(first, i):
                        twice = twice or where[j] == e
                    if twice or not fits(devices, e, v, plan, capacity):
                        continue
                    busiest = max(
                        devices.compute[e] + plan.busy[v] * plan.compute[v],
                        devices.bandwidth[e] + plan.busy[v] * plan.bandwidth[v],
                    )
                    held = devices.memory[e] + plan.memory[v]
                    slack = (1.0 - held / capacity) + (1.0 - busiest)
                    if slack > most:
                        d, most = e, slack
                if d < 0:
                    break
                tried[d] = True
                tries += 1
                where[i] = d
                put(devices, d, v, plan, 1.0)
                if placed_latency(plan, where, devices, room) <= slo:
                    best = d
                where[i] = -1
                put(devices, d, v, plan, -1.0)
            if best < 0:
                best = used
                used += 1
                owner[best] = instance
                if not fits(devices, best, v, plan, capacity):
                    return -1
            where[i] = best
            put(devices, best, v, plan, 1.0)
    return used


def _entries(stamp: int) -> tuple[Callable[..., Any], ...]:
    """Kept on disk under the ``stamp`` of what they call elsewhere."""

    @cached_kernel
    def judge(plan: Plan, where: Any, count: int) -> Any:
        assert stamp
        return _judge(plan, where, count)

    @cached_kernel
    def place_greedily(
        plan: Plan, replicas: Replicas, capacity: float, slo: float, shared: bool, where: Any
    ) -> Any:
        assert stamp
        return _place_greedily(plan, replicas, capacity, slo, shared, where)

    return judge, place_greedily


judge, place_greedily = _entries(source_stamp("compiled.py", "provisioning/*.py"))
