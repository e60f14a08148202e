"""Place shards on devices, compiled: device loads, slowdowns and Algorithm 2.

A shard is the part of a replica on one GPU. Arrays over shards are ordered by replica. In
``device_of_shard``, -1 is a shard without a device. Axes: V operators, S shards, D devices.
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
    compute_reserved: bool  # arithmetic is reserved for each shard, running or not


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
    """The replicas to place, with ``sequence``, the order in which they are placed."""

    sequence: Any
    first_shard: Any  # first shard
    shards: Any  # number of shards
    base_instance: Any  # the base instance that it belongs to; -1: an extra replica


@kernel
def no_devices(count: int, plan: Plan) -> Devices:
    """Return ``count`` empty devices for the operators of ``plan``."""
    zeros = np.zeros(count)
    return Devices(
        zeros, zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy(),
        np.zeros((count, plan.interference.shape[0])),
    )  # fmt: skip


@kernel
def add_shard(devices: Devices, device: int, operator: int, plan: Plan, sign: float) -> None:
    """Add the load of a shard of ``operator`` to ``device``; with ``sign`` -1, remove it."""
    devices.memory[device] += sign * plan.memory[operator]
    devices.compute[device] += sign * (plan.busy[operator] * plan.compute[operator])
    devices.bandwidth[device] += sign * (plan.busy[operator] * plan.bandwidth[operator])
    devices.board[device] += sign * (plan.busy[operator] * plan.board[operator])
    devices.all_compute[device] += sign * plan.compute[operator]
    devices.all_bandwidth[device] += sign * plan.bandwidth[operator]
    if plan.interference.shape[0]:
        devices.busy[device, operator] += sign * plan.busy[operator]


@kernel
def _extra_time(share: float, others: float, all_at_once: float) -> float:
    """Return the extra time of a shard by one resource, relative to its time alone.

    ``share`` is its own use of the resource while it runs. ``others`` is the mean use of the other
    shards, below 1. ``all_at_once`` is the use if all shards of the device ran at once, which
    bounds the result.
    """
    return float(max(0.0, min(share * others / (1.0 - others), all_at_once - 1.0)))


@kernel
def slowdown_at(devices: Devices, device: int, operator: int, plan: Plan) -> float:
    """Return the slowdown factor of a shard of ``operator`` that is already on ``device``.

    It follows ``plan.interference``, or the physical model if that is empty.
    """
    busy_share = plan.busy[operator]
    others_compute = min(devices.compute[device] - busy_share * plan.compute[operator], FULL)
    others_bandwidth = min(devices.bandwidth[device] - busy_share * plan.bandwidth[operator], FULL)
    if not plan.interference.shape[0]:
        compute, bandwidth = plan.compute[operator], plan.bandwidth[operator]
        by_compute = _extra_time(compute, others_compute, devices.all_compute[device])
        by_bandwidth = _extra_time(bandwidth, others_bandwidth, devices.all_bandwidth[device])
        return float(1.0 + max(by_compute, by_bandwidth))
    # The sum over all shards of the device contains the shard itself.
    extra = -plan.interference[operator, operator] * busy_share
    for other in range(plan.interference.shape[0]):
        extra += plan.interference[operator, other] * devices.busy[device, other]
    others_load = max(0.0, others_compute, others_bandwidth)
    return float(1.0 + max(0.0, extra) / (1.0 - others_load))


@kernel
def mean_slowdowns(plan: Plan, device_of_shard: Any, devices: Devices) -> Any:
    """Return the mean slowdown factor of each operator's replicas, ``[V]``.

    A replica is as slow as its slowest shard; shards without a device (-1) do not count.
    """
    slowdown = np.zeros(plan.rate.size)
    shards, shard = device_of_shard.size, 0
    while shard < shards:
        operator, replica = plan.operator[shard], plan.replica[shard]
        worst = 1.0
        while (
            shard < shards and plan.operator[shard] == operator and plan.replica[shard] == replica
        ):
            if device_of_shard[shard] >= 0:
                worst = max(worst, slowdown_at(devices, device_of_shard[shard], operator, plan))
            shard += 1
        slowdown[operator] += worst
    return slowdown / plan.replicas


@kernel
def placed_latency(plan: Plan, slowdown: Any) -> float:
    """Return the seconds of the critical path with operators slowed by ``slowdown [V]``.

    The slowdowns are factors. inf if an operator is unstable.
    """
    count = plan.rate.size
    sojourn_s, ends = np.empty(count), np.empty(count)
    for operator in range(count):
        replicas, service_s = plan.replicas[operator], plan.latency_s[operator] * slowdown[operator]
        load = plan.rate[operator] * service_s  # busy replicas
        if load >= replicas:
            return float(np.inf)
        sojourn_s[operator] = sojourn(load, replicas, service_s, plan.transfer_s[operator])
    return float(longest_path(sojourn_s, plan.graph, ends))


@kernel
def fits(devices: Devices, device: int, operator: int, plan: Plan, device_bytes: float) -> bool:
    """Return whether one more shard of ``operator`` fits on ``device``: memory, load and power.

    ``device_bytes`` is the memory of a device. With ``plan.compute_reserved``, operators have
    reserved parts of the multiprocessors, so their compute adds up even while they are idle.
    """
    if plan.compute_reserved and devices.all_compute[device] + plan.compute[operator] > 1.0 + 1e-9:
        return False
    busy_share = plan.busy[operator]
    return bool(
        devices.memory[device] + plan.memory[operator] <= device_bytes
        and devices.board[device] + busy_share * plan.board[operator] <= 1.0
        and devices.compute[device] + busy_share * plan.compute[operator] <= 1.0
        and devices.bandwidth[device] + busy_share * plan.bandwidth[operator] <= 1.0
    )


@cached_kernel
def evaluate_placement(plan: Plan, device_of_shard: Any, count: int) -> Any:
    """Return the loads of ``count`` devices, slowdown factors ``[V]`` and latency of a placed plan.

    The latency is in seconds; inf: unstable.
    """
    devices = no_devices(count, plan)
    for shard in range(device_of_shard.size):
        add_shard(devices, device_of_shard[shard], plan.operator[shard], plan, 1.0)
    slowdown = mean_slowdowns(plan, device_of_shard, devices)
    return devices, slowdown, placed_latency(plan, slowdown)


class PackingState(NamedTuple):
    """State of Algorithm 2: placed shards, their slowdowns, and the resulting operator times.

    ``old_...`` are the values before the last ``_add_to_device``, so that ``_remove_from_device``
    can undo it. ``last_added`` and ``added_before`` link the shards of a device, the latest first.
    """

    device_of: Any  # [S] device; -1: none yet
    replica_begin: Any  # [S] first shard of the same replica
    replica_end: Any  # [S] one past the last shard of the same replica
    last_added: Any  # [D] last shard added; -1: none
    added_before: Any  # [S] shard added to the same device before this one
    slowdown: Any  # [S] slowdown factor
    total_slowdown: Any  # [V] sum over replicas of the slowdown of their slowest shard
    sojourn_s: Any  # [V]
    old_slowdown: Any  # [S]
    old_total_slowdown: Any
    old_sojourn_s: Any
    slowdown_here: Any  # [V] slowdown on the device in question; 0: not yet computed
    path_work: Any  # [V] work array of ``longest_path``
    cached_total: Any  # [V, CACHED] totals with a cached sojourn; the oldest is overwritten
    cached_s: Any  # [V, CACHED] cached sojourns
    oldest_cached: Any  # [V] index of the oldest


@kernel
def _empty_state(plan: Plan, replicas: Replicas, device_of_shard: Any) -> PackingState:
    """Return the state before any shard is placed; ``device_of_shard [S]`` is part of it."""
    shards, count = device_of_shard.size, plan.rate.size
    begins, ends = np.empty(shards, np.int64), np.empty(shards, np.int64)
    for replica in range(replicas.first_shard.size):
        first = replicas.first_shard[replica]
        end = first + replicas.shards[replica]
        begins[first:end] = first
        ends[first:end] = end
    total, sojourn_s = np.empty(count), np.empty(count)
    for operator in range(count):
        total[operator] = plan.replicas[operator]
        sojourn_s[operator] = _sojourn_of(plan, operator, total[operator])
    # By row: devices of shards, slowdowns, values to restore and work arrays, cached sojourns.
    # Nothing is placed (-1) or slowed (1), and no sojourn is cached (NaN).
    return PackingState(
        device_of_shard, begins, ends, np.full(shards, -1, np.int64), np.full(shards, -1, np.int64),
        np.ones(shards), total, sojourn_s,
        np.ones(shards), np.empty(count), np.empty(count), np.empty(count), np.empty(count),
        np.full((count, CACHED), np.nan), np.empty((count, CACHED)), np.zeros(count, np.int64),
    )  # fmt: skip


@kernel
def _sojourn_of(plan: Plan, operator: int, total_slowdown: float) -> float:
    """Return the sojourn of ``operator`` in seconds; inf: unstable.

    ``total_slowdown`` is the sum of its replicas' slowdown factors.
    """
    replicas = plan.replicas[operator]
    service_s = plan.latency_s[operator] * (total_slowdown / replicas)
    load = plan.rate[operator] * service_s
    return float(sojourn(load, replicas, service_s, plan.transfer_s[operator]))


@kernel
def _cached_sojourn(plan: Plan, state: PackingState, operator: int) -> float:
    """Return the sojourn of ``operator`` in seconds at its present slowdown, cached if possible.

    The Erlang recursion takes one step per replica. Devices tried in a row often have the same
    shards, so the same slowdown occurs again.
    """
    total = state.total_slowdown[operator]
    for entry in range(CACHED):
        if state.cached_total[operator, entry] == total:
            return float(state.cached_s[operator, entry])
    oldest = state.oldest_cached[operator]
    state.oldest_cached[operator] = (oldest + 1) % CACHED
    state.cached_total[operator, oldest] = total
    state.cached_s[operator, oldest] = _sojourn_of(plan, operator, total)
    return float(state.cached_s[operator, oldest])


@kernel
def _slowest(state: PackingState, shard: int) -> float:
    """Return the slowdown of the slowest shard in the replica of ``shard``."""
    worst = 1.0
    for part in range(state.replica_begin[shard], state.replica_end[shard]):
        worst = max(worst, state.slowdown[part])
    return worst


@kernel
def _add_to_device(
    plan: Plan, devices: Devices, state: PackingState, device: int, shard: int, limit_s: float
) -> bool:
    """Add ``shard`` to ``device``; return whether the critical path still keeps ``limit_s``.

    Only the operators on that device are updated. ``_remove_from_device`` can undo the addition.
    """
    # 1. Put the shard on the device, and keep the values that may have to be restored.
    add_shard(devices, device, plan.operator[shard], plan, 1.0)
    state.device_of[shard] = device
    state.added_before[shard] = state.last_added[device]
    state.last_added[device] = shard
    state.old_total_slowdown[:] = state.total_slowdown
    state.old_sojourn_s[:] = state.sojourn_s
    # 2. Slow every shard on the device, the latest first, and so its replica and operator.
    state.slowdown_here[:] = 0.0
    while shard >= 0:
        operator = plan.operator[shard]
        if state.slowdown_here[operator] == 0.0:
            state.slowdown_here[operator] = slowdown_at(devices, device, operator, plan)
        before = _slowest(state, shard)
        state.old_slowdown[shard] = state.slowdown[shard]
        state.slowdown[shard] = state.slowdown_here[operator]
        state.total_slowdown[operator] += _slowest(state, shard) - before
        shard = state.added_before[shard]
    # 3. Sojourns without waits are cheap: if they miss the limit, waits need no computation.
    changed = False
    for operator in range(state.total_slowdown.size):
        if state.total_slowdown[operator] != state.old_total_slowdown[operator]:
            changed = True
            mean_slowdown = state.total_slowdown[operator] / plan.replicas[operator]
            service_s = plan.latency_s[operator] * mean_slowdown
            state.sojourn_s[operator] = service_s + plan.transfer_s[operator]
    if changed and longest_path(state.sojourn_s, plan.graph, state.path_work) > limit_s:
        return False
    # 4. Sojourns with waits.
    for operator in range(state.total_slowdown.size):
        if state.total_slowdown[operator] != state.old_total_slowdown[operator]:
            state.sojourn_s[operator] = _cached_sojourn(plan, state, operator)
    return bool(longest_path(state.sojourn_s, plan.graph, state.path_work) <= limit_s)


@kernel
def _remove_from_device(plan: Plan, devices: Devices, state: PackingState, device: int) -> None:
    """Remove the shard that joined ``device`` last, and restore the previous state."""
    shard = state.last_added[device]
    add_shard(devices, device, plan.operator[shard], plan, -1.0)
    state.device_of[shard] = -1
    state.last_added[device] = state.added_before[shard]
    while shard >= 0:
        state.slowdown[shard] = state.old_slowdown[shard]
        shard = state.added_before[shard]
    state.total_slowdown[:] = state.old_total_slowdown
    state.sojourn_s[:] = state.old_sojourn_s


@kernel
def _devices_with_most_slack(
    plan: Plan, devices: Devices, state: PackingState, shard: int, allowed: Any,
    device_bytes: float, found: Any,
) -> int:  # fmt: skip
    """Find up to ``MAX_DEVICES_TRIED`` devices on which ``shard`` fits; return their number.

    ``allowed`` is a mask of the devices in use that may be chosen. The devices and their slack are
    written to the two arrays ``found``, most slack first, older devices first among equals. Slack
    is the free share of memory (of ``device_bytes``) plus that of the busier of arithmetic and
    bandwidth.
    """
    (found_devices, found_slack), operator, count = found, plan.operator[shard], 0
    for device in range(allowed.size):
        if not allowed[device]:
            continue
        # Shards of one replica run at once, so each needs a device of its own.
        has_shard = False
        for part in range(state.replica_begin[shard], shard):
            has_shard = has_shard or state.device_of[part] == device
        if has_shard or not fits(devices, device, operator, plan, device_bytes):
            continue
        busiest = max(
            devices.compute[device] + plan.busy[operator] * plan.compute[operator],
            devices.bandwidth[device] + plan.busy[operator] * plan.bandwidth[operator],
        )
        memory_share = (devices.memory[device] + plan.memory[operator]) / device_bytes
        slack = (1.0 - memory_share) + (1.0 - busiest)
        if count < MAX_DEVICES_TRIED:
            count += 1
        elif slack <= found_slack[MAX_DEVICES_TRIED - 1]:
            continue
        # Insert the device among those found, which are sorted by slack.
        place = count - 1
        while place > 0 and found_slack[place - 1] < slack:
            found_devices[place] = found_devices[place - 1]
            found_slack[place] = found_slack[place - 1]
            place -= 1
        found_devices[place], found_slack[place] = device, slack
    return count


@cached_kernel
def place_greedily(
    plan: Plan, replicas: Replicas, device_bytes: float, limit_s: float, shared: bool,
    device_of_shard: Any,
) -> int:  # fmt: skip
    """Place all shards by Algorithm 2 of the source; write their devices to ``device_of_shard``.

    Returns the number of devices used, or -1 if a replica does not fit on empty devices. A base
    instance is a whole model; its replicas are placed on its own devices. Extra replicas may use
    all devices if they are ``shared``. Devices have ``device_bytes`` of memory. ``limit_s`` is the
    latency limit.
    """
    shards = device_of_shard.size
    devices, state = no_devices(shards, plan), _empty_state(plan, replicas, device_of_shard)
    owner = np.full(shards, -1, np.int64)  # base instance of each device; -1: extra replicas only
    tried, slack = np.empty(MAX_DEVICES_TRIED, np.int64), np.empty(MAX_DEVICES_TRIED)
    used = 0
    for replica in replicas.sequence:
        first, instance = replicas.first_shard[replica], replicas.base_instance[replica]
        for shard in range(first, first + replicas.shards[replica]):
            candidates, placed = 0, False
            if instance >= 0 or shared:
                # Without an instance (-1), all devices may be used.
                allowed = (owner[:used] == instance) | (instance < 0)
                candidates = _devices_with_most_slack(
                    plan, devices, state, shard, allowed, device_bytes, (tried, slack)
                )
            for device in tried[:candidates]:
                placed = _add_to_device(plan, devices, state, device, shard, limit_s)
                if placed:
                    break
                _remove_from_device(plan, devices, state, device)
            if not placed:
                owner[used] = instance
                if not fits(devices, used, plan.operator[shard], plan, device_bytes):
                    return -1
                # A new device is the last resort, so the limit is not checked here.
                _add_to_device(plan, devices, state, used, shard, np.inf)
                used += 1
    return used
