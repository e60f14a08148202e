"""Search a plan together with its placement on a given number of devices.

Algorithm 2 places a plan that was chosen before, so it often needs one device more than another
plan would. Simulated annealing changes batches, parallelisms, replicas and devices at once. It
minimizes the excess over the latency limit and over the memory, load and power of devices. A
result without excess is evaluated like any other placement.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel, kernel
from simulation.provisioning.interference import interference_matrix
from simulation.provisioning.packing import Plan, add_shard, mean_slowdowns, no_devices
from simulation.provisioning.placement import Placement, packing_plan, placement_of, with_memory_of
from simulation.provisioning.problem import OperatorPlan, evaluate
from simulation.provisioning.sojourns import Graph, longest_path, sojourn
from simulation.provisioning.workload import PhaseProblem, reserve_kv_cache

ANNEALING_STEPS = 100_000
# Random numbers from 0 to 1 per step: kind, operator, three for details, acceptance
RANDOM_NUMBERS = 6
# In units of the excess
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.3, 0.0005
MAX_STABLE_LOAD = 0.995  # largest load of a replica that is not excess
MAX_SOJOURN_LIMITS = 3.0  # largest counted sojourn, in units of the limit
SHARDS_PER_DEVICE = 3  # an operator has at most this times the devices as shards, ...
MIN_SHARD_PLACES = 16  # ... but this many on few devices
UNSTABLE_WEIGHT, DEVICE_WEIGHT = 2.0, 5.0  # of excess load, and of excess on devices
# Kinds of steps: upper ends of their shares of all steps. The rest change a parallelism.
CHANGE_BATCH, ADD_REPLICA, REMOVE_REPLICA, MOVE_SHARD, SWAP_SHARDS = 0.2, 0.35, 0.5, 0.75, 0.93


class SearchSpace(NamedTuple):
    """All choices of the operators as arrays for compiled code.

    They are ``[V, B, P]`` (operators, batch sizes, parallelisms) unless stated otherwise, in the
    units of ``Demand`` and ``OperatorProblem``.
    """

    latency_s: Any
    transfer_s: Any
    compute: Any
    bandwidth: Any
    board: Any
    memory: Any  # of a shard without KV cache, as a share of a device's memory
    kv_per_s: Any  # [V, P] KV cache of all replicas per shard and second of a pass, the same unit
    batches: Any  # [B] as floats
    parallel: Any  # [P]
    interference: Any  # [VBP, VBP], or empty: the physical model
    graph: Graph
    compute_reserved: bool
    rate: float
    slo_s: float
    max_replicas: int


class Draft(NamedTuple):
    """A plan and its placement while the search changes them, by operator ``[V]``."""

    batch_index: Any
    parallel_index: Any
    replicas: Any
    device: Any  # [V, K] of each shard, ordered by replica; an operator may have fewer than K


@kernel
def _plan_of(space: SearchSpace, draft: Draft) -> Any:
    """Return a draft as a ``Plan`` of ``packing``, and the device of each shard, ``[S]``.

    Shards are ordered by operator, then replica.
    """
    count, replica_shards = draft.batch_index.size, space.parallel[draft.parallel_index]
    # 1. Operator, replica and device of each shard
    shards = int((draft.replicas * replica_shards).sum())
    operator, replica = np.empty(shards, np.int64), np.empty(shards, np.int64)
    device_of_shard, i = np.empty(shards, np.int64), 0
    for v in range(count):
        for s in range(draft.replicas[v] * replica_shards[v]):
            operator[i], replica[i] = v, s // replica_shards[v]
            device_of_shard[i] = draft.device[v, s]
            i += 1
    # 2. Figures of each operator at its batch and parallelism
    latency_s, transfer_s = np.empty(count), np.empty(count)
    compute, bandwidth = np.empty(count), np.empty(count)
    board, memory = np.empty(count), np.empty(count)
    for v in range(count):
        choice = v, draft.batch_index[v], draft.parallel_index[v]
        latency_s[v], transfer_s[v] = space.latency_s[choice], space.transfer_s[choice]
        compute[v], bandwidth[v] = space.compute[choice], space.bandwidth[choice]
        board[v], memory[v] = space.board[choice], space.memory[choice]
    # 3. Interference between operators at their choices; empty if the space has none
    size = count if space.interference.shape[0] else 0
    interference = np.empty((size, size))
    # Its rows are the choices (v, b, p), so this is the row of each operator's choice.
    rows = np.arange(count) * space.batches.size + draft.batch_index
    rows = rows * space.parallel.size + draft.parallel_index
    for v in range(size):
        for u in range(size):
            interference[v, u] = space.interference[rows[v], rows[u]]
    rate = space.rate / space.batches[draft.batch_index]
    busy = rate * latency_s / draft.replicas
    plan = Plan(
        operator, replica, latency_s, transfer_s, compute, bandwidth, board, memory, busy, rate,
        draft.replicas, interference, space.graph, space.compute_reserved,
    )  # fmt: skip
    return plan, device_of_shard


@kernel
def _excess(space: SearchSpace, draft: Draft, devices: int) -> float:
    """Return how far a draft is from feasible on ``devices`` devices; 0: feasible.

    It is a weighted sum of three excesses: latency over the limit, load of replicas over
    ``MAX_STABLE_LOAD``, and use of devices (memory, power, arithmetic, traffic) over 1.
    """
    plan, device_of_shard = _plan_of(space, draft)
    loads, operators = no_devices(devices, plan), plan.rate.size
    for shard in range(device_of_shard.size):
        add_shard(loads, device_of_shard[shard], plan.operator[shard], plan, 1.0)
    slowdown = mean_slowdowns(plan, device_of_shard, loads)

    # Sojourns of the operators, and the load of their replicas beyond a stable one.
    unstable, sojourn_s, ends = 0.0, np.empty(operators), np.empty(operators)
    for v in range(operators):
        service_s, replicas = plan.latency_s[v] * slowdown[v], plan.replicas[v]
        load = plan.rate[v] * service_s / replicas
        unstable += min(10.0, max(0.0, load - MAX_STABLE_LOAD))
        # An unstable queue counts as one that is nearly full, so that its excess stays finite.
        service_s *= min(1.0, MAX_STABLE_LOAD / load)
        stay_s = sojourn(plan.rate[v] * service_s, replicas, service_s, plan.transfer_s[v])
        sojourn_s[v] = min(stay_s, MAX_SOJOURN_LIMITS * space.slo_s)
    latency_s = longest_path(sojourn_s, plan.graph, ends)

    # Overload of the devices, with the KV cache of passes of that latency.
    kv_share = space.kv_per_s * min(latency_s, space.slo_s)
    for shard in range(device_of_shard.size):
        v = plan.operator[shard]
        kv_of_shard = kv_share[v, draft.parallel_index[v]] / plan.replicas[v]
        loads.memory[device_of_shard[shard]] += kv_of_shard
    overload = 0.0
    for d in range(devices):
        overload += max(0.0, loads.memory[d] - 1.0) + max(0.0, loads.board[d] - 1.0)
        overload += max(0.0, loads.compute[d] - 1.0) + max(0.0, loads.bandwidth[d] - 1.0)
        if plan.compute_reserved:
            overload += max(0.0, loads.all_compute[d] - 1.0)
    late = max(0.0, latency_s / space.slo_s - 1.0)
    unstable, overload = UNSTABLE_WEIGHT * np.log1p(unstable), DEVICE_WEIGHT * overload
    return float(np.log1p(late) + unstable + overload)


@kernel
def _has_shard(draft: Draft, operator: int, shard: int, replica_shards: int, device: int) -> bool:
    """Return whether the replica of ``shard`` of ``operator`` has a shard on ``device``."""
    first = shard // replica_shards * replica_shards
    return bool((draft.device[operator, first : first + replica_shards] == device).any())


@kernel
def _add_replica(
    space: SearchSpace, draft: Draft, operator: int, devices: int, random: Any
) -> bool:
    """Add a replica of ``operator`` on random devices with consecutive numbers; return success.

    ``random`` has the random numbers of the step. It fails at the largest number of replicas or
    shards.
    """
    replica_shards = space.parallel[draft.parallel_index[operator]]
    first = draft.replicas[operator] * replica_shards
    if (
        draft.replicas[operator] == space.max_replicas
        or first + replica_shards > draft.device.shape[1]
    ):
        return False
    for part in range(replica_shards):
        draft.device[operator, first + part] = (int(random[2] * devices) + part) % devices
    draft.replicas[operator] += 1
    return True


@kernel
def _remove_replica(draft: Draft, operator: int, replica_shards: int, random: Any) -> bool:
    """Remove a random replica of ``operator``; the last one takes its number.

    ``random`` has the random numbers of the step. Return False if there is only one replica.
    """
    if draft.replicas[operator] == 1:
        return False
    removed = int(random[2] * draft.replicas[operator])
    draft.replicas[operator] -= 1
    first, last = removed * replica_shards, draft.replicas[operator] * replica_shards
    for part in range(replica_shards):
        draft.device[operator, first + part] = draft.device[operator, last + part]
    return True


@kernel
def _swap_shards(space: SearchSpace, draft: Draft, operator: int, random: Any) -> bool:
    """Exchange the devices of a random shard of ``operator`` and one of another operator.

    ``random`` has the random numbers of the step. Return False, without a change, if two shards of
    one replica would share a device.
    """
    other = int(random[2] * draft.batch_index.size)  # the other operator
    if other == operator:
        return False
    replica_shards = space.parallel[draft.parallel_index[operator]]
    other_replica_shards = space.parallel[draft.parallel_index[other]]
    shard = int(random[3] * draft.replicas[operator] * replica_shards)
    other_shard = int(random[4] * draft.replicas[other] * other_replica_shards)
    device, other_device = draft.device[operator, shard], draft.device[other, other_shard]
    if _has_shard(draft, operator, shard, replica_shards, other_device):
        return False
    if _has_shard(draft, other, other_shard, other_replica_shards, device):
        return False
    draft.device[operator, shard], draft.device[other, other_shard] = other_device, device
    return True


@kernel
def _change_parallelism(
    space: SearchSpace, draft: Draft, operator: int, devices: int, random: Any
) -> bool:
    """Give ``operator`` a random parallelism, with as many replicas or about as many shards.

    ``random`` has the random numbers of the step. Return False, without a change, if the
    parallelism is the same, cannot run, or needs too many devices.
    """
    old_index, new_index = draft.parallel_index[operator], int(random[2] * space.parallel.size)
    replica_shards, replicas = space.parallel[new_index], draft.replicas[operator]
    if random[4] < 0.5:  # about as many shards
        replicas = max(1, replicas * space.parallel[old_index] // replica_shards)
        replicas = min(replicas, space.max_replicas)
    if (
        replica_shards > devices
        or replicas * replica_shards > draft.device.shape[1]
        or new_index == old_index
    ):
        return False
    if not np.isfinite(space.latency_s[operator, draft.batch_index[operator], new_index]):
        return False
    draft.parallel_index[operator], draft.replicas[operator] = new_index, replicas
    for shard in range(replicas * replica_shards):
        draft.device[operator, shard] = (int(random[3] * devices) + shard) % devices
    return True


@kernel
def _change(space: SearchSpace, draft: Draft, devices: int, random: Any) -> bool:
    """Change one thing in a draft at random; return False if nothing changed.

    ``random`` has the random numbers of the step: the first chooses the kind of change, the second
    the operator, and the others the details.
    """
    kind, operator = random[0], int(random[1] * draft.batch_index.size)
    parallel_index = draft.parallel_index[operator]
    replica_shards = space.parallel[parallel_index]  # shards of a replica
    if kind < CHANGE_BATCH:  # one or two batch sizes up or down
        sizes = 1 + int(2 * random[2])
        batch_index = draft.batch_index[operator] + (sizes if random[3] < 0.5 else -sizes)
        if batch_index < 0 or batch_index >= space.batches.size:
            return False
        if not np.isfinite(space.latency_s[operator, batch_index, parallel_index]):
            return False
        draft.batch_index[operator] = batch_index
        return True
    if kind < ADD_REPLICA:
        return bool(_add_replica(space, draft, operator, devices, random))
    if kind < REMOVE_REPLICA:
        return bool(_remove_replica(draft, operator, replica_shards, random))
    if kind < MOVE_SHARD:
        shard = int(random[2] * draft.replicas[operator] * replica_shards)
        device = int(random[3] * devices)
        if _has_shard(draft, operator, shard, replica_shards, device):
            return False
        draft.device[operator, shard] = device
        return True
    if kind < SWAP_SHARDS:
        return bool(_swap_shards(space, draft, operator, random))
    return bool(_change_parallelism(space, draft, operator, devices, random))


@kernel
def _copy(draft: Draft, into: Draft) -> None:
    """Copy the arrays of ``draft`` into those of another draft."""
    into.batch_index[:] = draft.batch_index
    into.parallel_index[:] = draft.parallel_index
    into.replicas[:] = draft.replicas
    into.device[:] = draft.device


@cached_kernel
def anneal(space: SearchSpace, draft: Draft, devices: int, random: Any) -> bool:
    """Change ``draft`` at random until it is feasible on ``devices`` devices; return success.

    Simulated annealing: a change that raises the excess is kept with a probability that falls from
    step to step. ``random`` are numbers from 0 to 1, ``[steps, RANDOM_NUMBERS]``.
    """
    accepted = Draft(
        draft.batch_index.copy(),
        draft.parallel_index.copy(),
        draft.replicas.copy(),
        draft.device.copy(),
    )
    excess, steps = _excess(space, draft, devices), random.shape[0]
    for step in range(steps):
        if excess == 0.0:
            return True
        if not _change(space, draft, devices, random[step]):
            continue
        new_excess = _excess(space, draft, devices)
        temperature = FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (step / steps)
        chance = np.exp((excess - new_excess) / temperature)
        if new_excess <= excess or random[step, RANDOM_NUMBERS - 1] < chance:
            excess = new_excess
            _copy(draft, accepted)
        else:
            _copy(accepted, draft)
    return bool(excess == 0.0)


def plan_on_devices(
    phase: PhaseProblem, starts: Sequence[OperatorPlan], devices: int, device_bytes: float
) -> tuple[OperatorPlan, Placement] | None:
    """Return a plan within the limit and its placement on ``devices`` devices; None: not found.

    The search begins at each of the plans ``starts``, its replicas on the devices with least load.
    None does not prove that there is no such plan.
    """
    if phase.problem.parallel[0] > devices:
        return None  # each shard of a replica needs a separate device
    space = _search_space(phase, device_bytes)
    for seed, start in enumerate(starts):
        draft = _draft_of(phase, start, devices)
        random = np.random.default_rng([seed, devices]).random((ANNEALING_STEPS, RANDOM_NUMBERS))
        if not anneal(space, draft, devices, random):
            continue
        choice = np.stack([draft.batch_index, draft.parallel_index, draft.replicas], axis=1)
        plan = evaluate(phase.problem, "exact", choice)
        placed = _placement_of_draft(phase, plan, draft)
        # Memory is checked again, because it was summed in another order.
        if placed.feasible and plan.feasible and placed.memory_bytes.max() <= device_bytes:
            return plan, placed
    return None


def _placement_of_draft(phase: PhaseProblem, plan: OperatorPlan, draft: Draft) -> Placement:
    """Return the placement of ``draft``, whose choices make ``plan``, on the devices it uses."""
    # A row of ``draft.device`` has an operator's shards, and unused places behind them.
    is_shard = np.arange(draft.device.shape[1]) < plan.slots_of[:, None]
    used, device_of_shard = np.unique(draft.device[is_shard], return_inverse=True)
    packed = packing_plan(phase.problem, phase.demand, plan)
    placed = placement_of(phase.problem.slo_s, packed, device_of_shard, used.size)
    reserved = reserve_kv_cache(phase, placed.latency_s)
    return with_memory_of(placed, phase.problem, reserved.demand, plan)


def _search_space(phase: PhaseProblem, device_bytes: float) -> SearchSpace:
    """Return all choices of ``phase`` as arrays for compiled code."""
    problem, demand = phase.problem, phase.demand
    operators, batches, parallelisms = problem.latency_s.shape
    # Interference has a row for each choice, so repeat the kinds of an operator for its choices.
    operator_of_choice = np.repeat(np.arange(operators), batches * parallelisms)
    return SearchSpace(
        latency_s=np.ascontiguousarray(problem.latency_s),
        transfer_s=np.ascontiguousarray(problem.transfer_s),
        compute=np.ascontiguousarray(demand.compute),
        bandwidth=np.ascontiguousarray(demand.bandwidth),
        board=np.ascontiguousarray(demand.board),
        memory=demand.memory_bytes / device_bytes,
        kv_per_s=demand.kv_bytes / device_bytes / phase.reserve_s,
        batches=problem.batches.astype(np.float64),
        parallel=problem.parallel.astype(np.int64),
        interference=np.ascontiguousarray(
            interference_matrix(
                demand.table,
                None if demand.kinds is None else demand.kinds[operator_of_choice],
                demand.compute.ravel(),
                demand.bandwidth.ravel(),
            )
        ),
        graph=problem.graph,
        compute_reserved=demand.compute_reserved,
        rate=float(problem.rate),
        slo_s=float(problem.slo_s),
        max_replicas=problem.max_replicas,
    )


def _draft_of(phase: PhaseProblem, start: OperatorPlan, devices: int) -> Draft:
    """Return the plan ``start`` as a draft on ``devices`` devices.

    The shards with the largest load are placed first, each on the device with the least load.
    """
    problem = phase.problem
    operators, batch_index, parallel_index = problem.indices_of(start.batch, start.parallel)
    # Each shard of a replica needs a separate device.
    parallel_index = np.where(problem.parallel[parallel_index] <= devices, parallel_index, 0)
    replica_shards = problem.parallel[parallel_index]  # shards of a replica
    max_shards = max(MIN_SHARD_PLACES, SHARDS_PER_DEVICE * devices)
    replicas = np.clip(
        start.replicas, 1, np.minimum(max_shards // replica_shards, problem.max_replicas)
    )
    chosen = operators, batch_index, parallel_index
    busy = problem.rate / problem.batches[batch_index] * problem.latency_s[chosen] / replicas
    # Share of a device that one shard takes, of the resource it uses more
    shard_load = busy * np.maximum(phase.demand.compute[chosen], phase.demand.bandwidth[chosen])
    device, device_load = np.zeros((operators.size, max_shards), np.int64), np.zeros(devices)
    for v in np.argsort(-shard_load, kind="stable"):
        for replica in range(replicas[v]):
            first, end = replica * replica_shards[v], (replica + 1) * replica_shards[v]
            least_loaded = np.argsort(device_load, kind="stable")[: replica_shards[v]]
            device[v, first:end] = least_loaded
            device_load[least_loaded] += shard_load[v]
    return Draft(batch_index.copy(), parallel_index, replicas, device)
