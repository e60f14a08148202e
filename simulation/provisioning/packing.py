"""Shards on devices, compiled: what devices hold and do, how that slows operators, Algorithm 2.

A shard is one GPU's part of a replica; arrays over shards come replica by replica. ``where`` is the
device of a shard, -1 while it has none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulation.compiled import cached_kernel, kernel
from simulation.provisioning.sojourns import Graph, longest_path, sojourn

FULL = 1.0 - 1e-9  # of a device: beyond it nothing gets anywhere
TRIES = 16  # devices with most slack on which the limit is looked at before a new one is opened
KEPT = 16  # sojourns of an operator


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
    apart: bool  # arithmetic is kept by whoever it is given to, running or not


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
    its_busy = plan.busy[v]
    arithmetic = min(devices.compute[d] - its_busy * plan.compute[v], FULL)
    traffic = min(devices.bandwidth[d] - its_busy * plan.bandwidth[v], FULL)
    if not plan.beside.shape[0]:
        slower = _slower(plan.compute[v], arithmetic, devices.all_compute[d])
        return float(
            1.0 + max(slower, _slower(plan.bandwidth[v], traffic, devices.all_bandwidth[d]))
        )
    more = -plan.beside[v, v] * its_busy
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
    if plan.apart and devices.all_compute[d] + plan.compute[v] > 1.0 + 1e-9:
        return False
    return bool(
        devices.memory[d] + plan.memory[v] <= capacity
        and devices.board[d] + plan.busy[v] * plan.board[v] <= 1.0
        and devices.compute[d] + plan.busy[v] * plan.compute[v] <= 1.0
        and devices.bandwidth[d] + plan.busy[v] * plan.bandwidth[v] <= 1.0
    )


@cached_kernel
def judge(plan: Plan, where: Any, count: int) -> Any:
    """What ``count`` devices hold and do, slowdowns ``[V]``, and the latency of the plan."""
    devices, room = no_devices(count, plan), scratch(plan.rate.size)
    for i in range(where.size):
        put(devices, where[i], plan.operator[i], plan, 1.0)
    latency = placed_latency(plan, where, devices, room)
    return devices, room.slowdown, latency


class Standing(NamedTuple):
    """Shards where they stand, how slow that makes them, and operators ``[V]`` with them. What the
    last ``_join`` changed is kept for ``_leave``."""

    where: Any  # [S] device; -1: none yet
    begins: Any  # [S] first shard of its replica ...
    ends: Any  # ... and after its last
    top: Any  # [D] the shard that came last, -1: none ...
    under: Any  # [S] ... and the one that came before a shard
    slow: Any  # [S] times as long as alone
    total: Any  # [V] of the replicas, each as slow as its slowest shard
    sojourn_s: Any  # [V]
    was_slow: Any  # [S]
    was_total: Any
    was_sojourn_s: Any
    slow_here: Any  # [V]; 0: not looked at
    finish: Any  # [V]
    known_total: Any  # [V, KEPT] totals whose sojourns are known already, the oldest goes first ...
    known_s: Any  # [V, KEPT] ... and those sojourns
    oldest: Any  # [V]


@kernel
def _nowhere(plan: Plan, replicas: Replicas, where: Any) -> Standing:
    shards, count = where.size, plan.rate.size
    begins, ends = np.empty(shards, np.int64), np.empty(shards, np.int64)
    for q in range(replicas.first.size):
        first, end = replicas.first[q], replicas.first[q] + replicas.parallel[q]
        begins[first:end] = first
        ends[first:end] = end
    total, sojourn_s = np.empty(count), np.empty(count)
    for v in range(count):
        total[v] = plan.replicas[v]
        sojourn_s[v] = _sojourn_of(plan, v, total[v])
    return Standing(
        where, begins, ends, np.full(shards, -1, np.int64), np.full(shards, -1, np.int64),
        np.ones(shards), total, sojourn_s,
        np.ones(shards), np.empty(count), np.empty(count), np.empty(count), np.empty(count),
        np.full((count, KEPT), np.nan), np.empty((count, KEPT)), np.zeros(count, np.int64),
    )  # fmt: skip


@kernel
def _sojourn_of(plan: Plan, v: int, slow: float) -> float:
    """Of operator ``v``, whose replicas are ``slow`` in all; inf: unstable."""
    service = plan.latency_s[v] * (slow / plan.replicas[v])
    return sojourn(plan.rate[v] * service, plan.replicas[v], service, plan.transfer_s[v])  # type: ignore[no-any-return]


@kernel
def _known_sojourn(plan: Plan, on: Standing, v: int) -> float:
    """``_sojourn_of`` operator ``v`` as slow as it is, which takes its replicas' number of steps:
    devices that are tried one after the other often hold the same and slow it as much."""
    total = on.total[v]
    for k in range(KEPT):
        if on.known_total[v, k] == total:
            return on.known_s[v, k]  # type: ignore[no-any-return]
    k = on.oldest[v]
    on.oldest[v] = (k + 1) % KEPT
    on.known_total[v, k], on.known_s[v, k] = total, _sojourn_of(plan, v, total)
    return on.known_s[v, k]  # type: ignore[no-any-return]


@kernel
def _slowest(on: Standing, i: int) -> float:
    """Shard of the replica of ``i``."""
    worst = 1.0
    for j in range(on.begins[i], on.ends[i]):
        worst = max(worst, on.slow[j])
    return worst


@kernel
def _join(plan: Plan, devices: Devices, on: Standing, d: int, i: int, slo: float) -> bool:
    """Shard ``i`` joins device ``d``; whether the critical path with it keeps the limit. Only what
    stands there, and the operators of it, are looked at."""
    put(devices, d, plan.operator[i], plan, 1.0)
    on.where[i] = d
    on.under[i] = on.top[d]
    on.top[d] = i
    on.was_total[:] = on.total
    on.was_sojourn_s[:] = on.sojourn_s
    on.slow_here[:] = 0.0
    while i >= 0:
        v = plan.operator[i]
        if on.slow_here[v] == 0.0:
            on.slow_here[v] = slowdown_at(devices, d, v, plan)
        before = _slowest(on, i)
        on.was_slow[i] = on.slow[i]
        on.slow[i] = on.slow_here[v]
        on.total[v] += _slowest(on, i) - before
        i = on.under[i]
    # Without waiting first: where that is too long already, nobody has to know how long they wait.
    changed = False
    for v in range(on.total.size):
        if on.total[v] != on.was_total[v]:
            changed = True
            service = plan.latency_s[v] * (on.total[v] / plan.replicas[v])
            on.sojourn_s[v] = service + plan.transfer_s[v]
    if changed and longest_path(on.sojourn_s, plan.graph, on.finish) > slo:
        return False
    for v in range(on.total.size):
        if on.total[v] != on.was_total[v]:
            on.sojourn_s[v] = _known_sojourn(plan, on, v)
    return bool(longest_path(on.sojourn_s, plan.graph, on.finish) <= slo)


@kernel
def _leave(plan: Plan, devices: Devices, on: Standing, d: int) -> None:
    """The shard that joined device ``d`` last goes, and all is as before."""
    i = on.top[d]
    put(devices, d, plan.operator[i], plan, -1.0)
    on.where[i] = -1
    on.top[d] = on.under[i]
    while i >= 0:
        on.slow[i] = on.was_slow[i]
        i = on.under[i]
    on.total[:] = on.was_total
    on.sojourn_s[:] = on.was_sojourn_s


@kernel
def _roomiest(
    plan: Plan, devices: Devices, on: Standing, i: int, owner: Any, instance: int, used: int,
    capacity: float, which: Any, slack: Any,
) -> int:  # fmt: skip
    """How many devices of ``instance`` (-1: of all there are) could take shard ``i``, up to
    ``TRIES``, and ``which``: that with most ``slack`` left after it first, of equals the older."""
    v, roomy = plan.operator[i], 0
    for e in range(used):
        if instance >= 0 and owner[e] != instance:
            continue
        twice = False
        for j in range(on.begins[i], i):
            twice = twice or on.where[j] == e
        if twice or not fits(devices, e, v, plan, capacity):
            continue
        busiest = max(
            devices.compute[e] + plan.busy[v] * plan.compute[v],
            devices.bandwidth[e] + plan.busy[v] * plan.bandwidth[v],
        )
        held = devices.memory[e] + plan.memory[v]
        left = (1.0 - held / capacity) + (1.0 - busiest)
        if roomy < TRIES:
            roomy += 1
        elif left <= slack[TRIES - 1]:
            continue
        k = roomy - 1
        while k > 0 and slack[k - 1] < left:
            which[k], slack[k] = which[k - 1], slack[k - 1]
            k -= 1
        which[k], slack[k] = e, left
    return roomy


@cached_kernel
def place_greedily(
    plan: Plan, replicas: Replicas, capacity: float, slo: float, shared: bool, where: Any
) -> int:
    """Algorithm 2: devices used, or -1 when a replica cannot stand even on devices of its own.

    A replica of a whole model instance looks at the devices of its instance, an extra one at all of
    them.
    """
    shards = where.size
    devices, on = no_devices(shards, plan), _nowhere(plan, replicas, where)
    owner = np.full(shards, -1, np.int64)
    which, slack = np.empty(TRIES, np.int64), np.empty(TRIES)
    used = 0
    for q in replicas.sequence:
        first, instance = replicas.first[q], replicas.base[q]
        for i in range(first, first + replicas.parallel[q]):
            roomy, stands = 0, False
            if instance >= 0 or shared:
                roomy = _roomiest(
                    plan, devices, on, i, owner, instance, used, capacity, which, slack
                )
            for k in range(roomy):
                stands = _join(plan, devices, on, which[k], i, slo)
                if stands:
                    break
                _leave(plan, devices, on, which[k])
            if not stands:
                owner[used] = instance
                if not fits(devices, used, plan.operator[i], plan, capacity):
                    return -1
                _join(plan, devices, on, used, i, np.inf)
                used += 1
    return used
