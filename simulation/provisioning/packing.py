"""Place shards on devices, compiled: device loads, slowdowns and Algorithm 2.

A shard is the part of a replica on one GPU. Arrays over shards are ordered by replica. ``where`` is
the device of a shard, -1 if it has none. V operators, S shards, D devices.
"""

from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel, kernel
from simulation.provisioning.sojourns import Graph, longest_path, sojourn

FULL = 1.0 - 1e-9  # share of a device; a queue is unstable beyond it
MAX_DEVICES_TRIED = 16  # devices with most slack to try before a new one is opened
CACHED = 16  # cached sojourns per operator


class Plan(NamedTuple):
    """A plan of operators as arrays for compiled code, ``[V]`` unless stated otherwise."""

    operator: Any  # [S] operator of each shard
    replica: Any  # [S]
    latency_s: Any
    transfer_s: Any
    compute: Any  # share of a GPU's arithmetic while the operator runs
    bandwidth: Any  # share of its memory bandwidth while the operator runs
    board: Any  # share of the board power above its floor while the operator runs
    memory: Any  # bytes per shard
    busy: Any  # share of time that a replica works
    rate: Any  # batches/s
    replicas: Any
    interference: Any  # [V, V] extra time of v if u always runs; empty: the physical model
    graph: Graph
    apart: bool  # arithmetic is reserved for each shard, running or not


class Devices(NamedTuple):
    """Loads of devices, ``[D]``: memory in bytes, mean use of arithmetic, traffic and power."""

    memory: Any
    compute: Any
    bandwidth: Any
    board: Any
    all_compute: Any  # sum of all shards on the device, as if all ran at once
    all_bandwidth: Any
    busy: Any  # [D, V] busy time of each operator; empty without ``Plan.interference``


class Replicas(NamedTuple):
    """Replicas by number ``q``; ``sequence`` is the placement order."""

    sequence: Any
    first: Any  # first shard
    parallel: Any  # number of shards
    base: Any  # the base instance that it belongs to; -1: an extra replica


@kernel
def no_devices(count: int, plan: Plan) -> Devices:
    """Return ``count`` empty devices."""
    none = np.zeros(count)
    return Devices(
        none, none.copy(), none.copy(), none.copy(), none.copy(), none.copy(),
        np.zeros((count, plan.interference.shape[0])),
    )  # fmt: skip


@kernel
def add_shard(devices: Devices, d: int, v: int, plan: Plan, sign: float) -> None:
    """Add the load of a shard of operator ``v`` to device ``d``; with ``sign`` -1, remove it."""
    devices.memory[d] += sign * plan.memory[v]
    devices.compute[d] += sign * (plan.busy[v] * plan.compute[v])
    devices.bandwidth[d] += sign * (plan.busy[v] * plan.bandwidth[v])
    devices.board[d] += sign * (plan.busy[v] * plan.board[v])
    devices.all_compute[d] += sign * plan.compute[v]
    devices.all_bandwidth[d] += sign * plan.bandwidth[v]
    if plan.interference.shape[0]:
        devices.busy[d, v] += sign * plan.busy[v]


@kernel
def _extra_time(share: float, others: float, all_at_once: float) -> float:
    """Return the extra time of a shard by one resource, relative to its time alone.

    ``share`` is its own use of the resource while it runs. ``others`` is the mean use of the other
    shards, below 1. ``all_at_once`` is the use if all shards of the device ran at once, which
    bounds the result.
    """
    return float(max(0.0, min(share * others / (1.0 - others), all_at_once - 1.0)))


@kernel
def slowdown_at(devices: Devices, d: int, v: int, plan: Plan) -> float:
    """Return the slowdown factor of a shard of operator ``v`` that is already on device ``d``.

    It follows ``plan.interference``, or the physical model if that is empty.
    """
    busy_share = plan.busy[v]
    others_compute = min(devices.compute[d] - busy_share * plan.compute[v], FULL)
    others_bandwidth = min(devices.bandwidth[d] - busy_share * plan.bandwidth[v], FULL)
    if not plan.interference.shape[0]:
        by_compute = _extra_time(plan.compute[v], others_compute, devices.all_compute[d])
        by_bandwidth = _extra_time(plan.bandwidth[v], others_bandwidth, devices.all_bandwidth[d])
        return float(1.0 + max(by_compute, by_bandwidth))
    extra = -plan.interference[v, v] * busy_share  # the sum below contains the shard itself
    for u in range(plan.interference.shape[0]):
        extra += plan.interference[v, u] * devices.busy[d, u]
    others_load = max(0.0, others_compute, others_bandwidth)
    return float(1.0 + max(0.0, extra) / (1.0 - others_load))


@kernel
def mean_slowdowns(plan: Plan, where: Any, devices: Devices) -> Any:
    """Return the mean slowdown factor of each operator's replicas, ``[V]``.

    A replica is as slow as its slowest shard. ``where [S]`` is the device of each shard.
    """
    slowdown = np.zeros(plan.rate.size)
    shards, i = where.size, 0
    while i < shards:
        v, k = plan.operator[i], plan.replica[i]
        worst = 1.0
        while i < shards and plan.operator[i] == v and plan.replica[i] == k:
            if where[i] >= 0:
                worst = max(worst, slowdown_at(devices, where[i], v, plan))
            i += 1
        slowdown[v] += worst
    return slowdown / plan.replicas


@kernel
def placed_latency(plan: Plan, slowdown: Any) -> float:
    """Return the seconds of the critical path with operators slowed by ``slowdown [V]``.

    The slowdowns are factors. inf if an operator is unstable.
    """
    count = plan.rate.size
    sojourn_s, ends = np.empty(count), np.empty(count)
    for v in range(count):
        service = plan.latency_s[v] * slowdown[v]
        load = plan.rate[v] * service
        if load >= plan.replicas[v]:
            return float(np.inf)
        sojourn_s[v] = sojourn(load, plan.replicas[v], service, plan.transfer_s[v])
    return float(longest_path(sojourn_s, plan.graph, ends))


@kernel
def fits(devices: Devices, d: int, v: int, plan: Plan, capacity: float) -> bool:
    """Return whether one more shard of operator ``v`` fits on device ``d``: memory, load and power.

    ``capacity`` is the memory of a device in bytes. With ``plan.apart``, operators have reserved
    parts of the multiprocessors, so that their compute adds up even while they are idle.
    """
    if plan.apart and devices.all_compute[d] + plan.compute[v] > 1.0 + 1e-9:
        return False
    return bool(
        devices.memory[d] + plan.memory[v] <= capacity
        and devices.board[d] + plan.busy[v] * plan.board[v] <= 1.0
        and devices.compute[d] + plan.busy[v] * plan.compute[v] <= 1.0
        and devices.bandwidth[d] + plan.busy[v] * plan.bandwidth[v] <= 1.0
    )


@cached_kernel
def evaluate_placement(plan: Plan, where: Any, count: int) -> Any:
    """Return the loads of ``count`` devices, slowdown factors ``[V]`` and latency of a placed plan.

    ``where [S]`` is the device of each shard. The latency is in seconds; inf: unstable.
    """
    devices = no_devices(count, plan)
    for i in range(where.size):
        add_shard(devices, where[i], plan.operator[i], plan, 1.0)
    slowdown = mean_slowdowns(plan, where, devices)
    return devices, slowdown, placed_latency(plan, slowdown)


class PackingState(NamedTuple):
    """State of Algorithm 2: placed shards, their slowdowns, and the resulting operator times.

    ``was_...`` are the values before the last ``_add_to_device``, so that ``_remove_from_device``
    can undo it. ``top`` and ``under`` link the shards of a device, the last one added first.
    """

    where: Any  # [S] device; -1: none yet
    begins: Any  # [S] first shard of the same replica
    ends: Any  # [S] one past the last shard of the same replica
    top: Any  # [D] last shard added; -1: none
    under: Any  # [S] shard added to the same device before this one
    slow: Any  # [S] slowdown factor
    total: Any  # [V] sum over replicas of the slowdown of their slowest shard
    sojourn_s: Any  # [V]
    was_slow: Any  # [S]
    was_total: Any
    was_sojourn_s: Any
    slow_here: Any  # [V] slowdown on the device in question; 0: not yet computed
    finish: Any  # [V]
    known_total: Any  # [V, CACHED] totals with a cached sojourn; the oldest is overwritten
    known_s: Any  # [V, CACHED] cached sojourns
    oldest: Any  # [V] index of the oldest


@kernel
def _empty_state(plan: Plan, replicas: Replicas, where: Any) -> PackingState:
    """Return the state before any shard is placed."""
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
    # Nothing is placed (-1) or slowed (1), and no value is stored yet.
    return PackingState(
        where, begins, ends, np.full(shards, -1, np.int64), np.full(shards, -1, np.int64),
        np.ones(shards), total, sojourn_s,
        np.ones(shards), np.empty(count), np.empty(count), np.empty(count), np.empty(count),
        np.full((count, CACHED), np.nan), np.empty((count, CACHED)), np.zeros(count, np.int64),
    )  # fmt: skip


@kernel
def _sojourn_of(plan: Plan, v: int, total_slowdown: float) -> float:
    """Return the sojourn of operator ``v`` in seconds; inf: unstable.

    ``total_slowdown`` is the sum of its replicas' slowdown factors.
    """
    service = plan.latency_s[v] * (total_slowdown / plan.replicas[v])
    return sojourn(plan.rate[v] * service, plan.replicas[v], service, plan.transfer_s[v])  # type: ignore[no-any-return]


@kernel
def _cached_sojourn(plan: Plan, state: PackingState, v: int) -> float:
    """Return the sojourn of operator ``v`` in seconds at its present slowdown, cached if possible.

    The Erlang recursion takes one step per replica. Devices tried in a row often have the same
    shards, so the same slowdown occurs again.
    """
    total = state.total[v]
    for k in range(CACHED):
        if state.known_total[v, k] == total:
            return state.known_s[v, k]  # type: ignore[no-any-return]
    k = state.oldest[v]
    state.oldest[v] = (k + 1) % CACHED
    state.known_total[v, k], state.known_s[v, k] = total, _sojourn_of(plan, v, total)
    return state.known_s[v, k]  # type: ignore[no-any-return]


@kernel
def _slowest(state: PackingState, i: int) -> float:
    """Return the slowdown of the slowest shard in the replica of shard ``i``."""
    worst = 1.0
    for j in range(state.begins[i], state.ends[i]):
        worst = max(worst, state.slow[j])
    return worst


@kernel
def _add_to_device(
    plan: Plan, devices: Devices, state: PackingState, d: int, i: int, slo: float
) -> bool:
    """Add shard ``i`` to device ``d``; return whether the critical path still keeps the limit.

    Only the operators on that device are updated.
    """
    add_shard(devices, d, plan.operator[i], plan, 1.0)
    state.where[i] = d
    state.under[i] = state.top[d]
    state.top[d] = i
    state.was_total[:] = state.total
    state.was_sojourn_s[:] = state.sojourn_s
    state.slow_here[:] = 0.0
    while i >= 0:
        v = plan.operator[i]
        if state.slow_here[v] == 0.0:
            state.slow_here[v] = slowdown_at(devices, d, v, plan)
        before = _slowest(state, i)
        state.was_slow[i] = state.slow[i]
        state.slow[i] = state.slow_here[v]
        state.total[v] += _slowest(state, i) - before
        i = state.under[i]
    # First without waits, which is cheap: if that misses the limit, waits need no computation.
    changed = False
    for v in range(state.total.size):
        if state.total[v] != state.was_total[v]:
            changed = True
            service = plan.latency_s[v] * (state.total[v] / plan.replicas[v])
            state.sojourn_s[v] = service + plan.transfer_s[v]
    if changed and longest_path(state.sojourn_s, plan.graph, state.finish) > slo:
        return False
    for v in range(state.total.size):
        if state.total[v] != state.was_total[v]:
            state.sojourn_s[v] = _cached_sojourn(plan, state, v)
    return bool(longest_path(state.sojourn_s, plan.graph, state.finish) <= slo)


@kernel
def _remove_from_device(plan: Plan, devices: Devices, state: PackingState, d: int) -> None:
    """Remove the shard that joined device ``d`` last, and restore the previous state."""
    i = state.top[d]
    add_shard(devices, d, plan.operator[i], plan, -1.0)
    state.where[i] = -1
    state.top[d] = state.under[i]
    while i >= 0:
        state.slow[i] = state.was_slow[i]
        i = state.under[i]
    state.total[:] = state.was_total
    state.sojourn_s[:] = state.was_sojourn_s


@kernel
def _devices_with_most_slack(
    plan: Plan, devices: Devices, state: PackingState, i: int, allowed: Any, capacity: float,
    found: Any,
) -> int:  # fmt: skip
    """Find up to ``MAX_DEVICES_TRIED`` devices on which shard ``i`` fits; return their number.

    ``allowed`` is a mask of the devices in use that may be chosen. The devices and their slack are
    written to the two arrays ``found``, most slack first, older devices first among equals. Slack
    is the free share of memory (``capacity`` bytes) plus that of the busier of arithmetic and
    bandwidth.
    """
    (which, slack), v, count = found, plan.operator[i], 0
    for e in range(allowed.size):
        if not allowed[e]:
            continue
        # Shards of one replica run at once, so each needs a device of its own.
        has_shard = False
        for j in range(state.begins[i], i):
            has_shard = has_shard or state.where[j] == e
        if has_shard or not fits(devices, e, v, plan, capacity):
            continue
        busiest = max(
            devices.compute[e] + plan.busy[v] * plan.compute[v],
            devices.bandwidth[e] + plan.busy[v] * plan.bandwidth[v],
        )
        memory_share = (devices.memory[e] + plan.memory[v]) / capacity
        free = (1.0 - memory_share) + (1.0 - busiest)
        if count < MAX_DEVICES_TRIED:
            count += 1
        elif free <= slack[MAX_DEVICES_TRIED - 1]:
            continue
        # Insert the device among those found, which are sorted by slack.
        k = count - 1
        while k > 0 and slack[k - 1] < free:
            which[k], slack[k] = which[k - 1], slack[k - 1]
            k -= 1
        which[k], slack[k] = e, free
    return count


@cached_kernel
def place_greedily(
    plan: Plan, replicas: Replicas, capacity: float, slo: float, shared: bool, where: Any
) -> int:
    """Place all shards by Algorithm 2 of the source; write their devices to ``where``.

    Returns the number of devices used, or -1 if a replica does not fit on empty devices. A base
    instance is a whole model; its replicas are placed on its own devices. Extra replicas may use
    all devices if they are ``shared``. Devices have ``capacity`` bytes. ``slo`` is the latency
    limit in seconds.
    """
    shards = where.size
    devices, state = no_devices(shards, plan), _empty_state(plan, replicas, where)
    owner = np.full(shards, -1, np.int64)  # base instance of each device; -1: extra replicas only
    which, slack = np.empty(MAX_DEVICES_TRIED, np.int64), np.empty(MAX_DEVICES_TRIED)
    used = 0
    for q in replicas.sequence:
        first, instance = replicas.first[q], replicas.base[q]
        for i in range(first, first + replicas.parallel[q]):
            candidates, placed = 0, False
            if instance >= 0 or shared:
                # Without an instance (-1), all devices may be used.
                allowed = (owner[:used] == instance) | (instance < 0)
                candidates = _devices_with_most_slack(
                    plan, devices, state, i, allowed, capacity, (which, slack)
                )
            for k in range(candidates):
                placed = _add_to_device(plan, devices, state, which[k], i, slo)
                if placed:
                    break
                _remove_from_device(plan, devices, state, which[k])
            if not placed:
                owner[used] = instance
                if not fits(devices, used, plan.operator[i], plan, capacity):
                    return -1
                # A new device is the last resort, so the limit is not checked here.
                _add_to_device(plan, devices, state, used, i, np.inf)
                used += 1
    return used
