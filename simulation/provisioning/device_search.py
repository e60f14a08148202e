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

STEPS = 100_000
DRAWN = 6  # random numbers from 0 to 1 per step: kind, operator, three for details, acceptance
HOT, COLD = 0.3, 0.0005  # temperatures of the first and last step, in units of the excess
STABLE = 0.995  # largest load of a replica that is not excess
LONGEST = 3.0  # largest counted sojourn, in units of the limit
SHARDS_EACH = 3  # shards of one operator: at most this times the devices, and at least MOST_SHARDS
MOST_SHARDS = 16
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
    apart: bool
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
    """Return a draft as a ``Plan`` of ``packing``, and the device of each shard, ``[S]``."""
    count, widths = draft.batch_index.size, space.parallel[draft.parallel_index]
    # Operator, replica and device of each shard; a replica has ``widths`` shards.
    shards = int((draft.replicas * widths).sum())
    operator, replica = np.empty(shards, np.int64), np.empty(shards, np.int64)
    where, i = np.empty(shards, np.int64), 0
    for v in range(count):
        for s in range(draft.replicas[v] * widths[v]):
            operator[i], replica[i], where[i] = v, s // widths[v], draft.device[v, s]
            i += 1
    # Figures of each operator at its batch and parallelism.
    latency_s, transfer_s = np.empty(count), np.empty(count)
    compute, bandwidth = np.empty(count), np.empty(count)
    board, memory = np.empty(count), np.empty(count)
    for v in range(count):
        choice = v, draft.batch_index[v], draft.parallel_index[v]
        latency_s[v], transfer_s[v] = space.latency_s[choice], space.transfer_s[choice]
        compute[v], bandwidth[v] = space.compute[choice], space.bandwidth[choice]
        board[v], memory[v] = space.board[choice], space.memory[choice]
    size = count if space.interference.shape[0] else 0
    interference = np.empty((size, size))
    # ``space.interference`` has a row for each choice (v, b, p), in that order.
    rows = np.arange(count) * space.batches.size + draft.batch_index
    rows = rows * space.parallel.size + draft.parallel_index
    for v in range(size):
        for u in range(size):
            interference[v, u] = space.interference[rows[v], rows[u]]
    rate = space.rate / space.batches[draft.batch_index]
    busy = rate * latency_s / draft.replicas
    plan = Plan(
        operator, replica, latency_s, transfer_s, compute, bandwidth, board, memory, busy, rate,
        draft.replicas, interference, space.graph, space.apart,
    )  # fmt: skip
    return plan, where


@kernel
def _excess(space: SearchSpace, draft: Draft, count: int) -> float:
    """Return how far a draft is from feasible on ``count`` devices; 0: feasible.

    It is a weighted sum of three excesses: latency over the limit, load of replicas over
    ``STABLE``, and use of devices (memory, power, arithmetic, traffic) over 1.
    """
    plan, where = _plan_of(space, draft)
    devices, operators = no_devices(count, plan), plan.rate.size
    for shard in range(where.size):
        add_shard(devices, where[shard], plan.operator[shard], plan, 1.0)
    slowdown = mean_slowdowns(plan, where, devices)

    # Sojourns of the operators, and the load of their replicas beyond a stable one.
    unstable, sojourn_s, ends = 0.0, np.empty(operators), np.empty(operators)
    for v in range(operators):
        service_s, replicas = plan.latency_s[v] * slowdown[v], plan.replicas[v]
        load = plan.rate[v] * service_s / replicas
        unstable += min(10.0, max(0.0, load - STABLE))
        # An unstable queue counts as one that is nearly full, so that its excess stays finite.
        service_s *= min(1.0, STABLE / load)
        stay_s = sojourn(plan.rate[v] * service_s, replicas, service_s, plan.transfer_s[v])
        sojourn_s[v] = min(stay_s, LONGEST * space.slo_s)
    latency_s = longest_path(sojourn_s, plan.graph, ends)

    # Overload of the devices, with the KV cache of passes of that latency.
    kv_share = space.kv_per_s * min(latency_s, space.slo_s)
    for shard in range(where.size):
        v = plan.operator[shard]
        devices.memory[where[shard]] += kv_share[v, draft.parallel_index[v]] / plan.replicas[v]
    overload = 0.0
    for d in range(count):
        overload += max(0.0, devices.memory[d] - 1.0) + max(0.0, devices.board[d] - 1.0)
        overload += max(0.0, devices.compute[d] - 1.0) + max(0.0, devices.bandwidth[d] - 1.0)
        if plan.apart:
            overload += max(0.0, devices.all_compute[d] - 1.0)
    late = max(0.0, latency_s / space.slo_s - 1.0)
    unstable, overload = UNSTABLE_WEIGHT * np.log1p(unstable), DEVICE_WEIGHT * overload
    return float(np.log1p(late) + unstable + overload)


@kernel
def _has_shard(draft: Draft, operator: int, shard: int, width: int, device: int) -> bool:
    """Return whether the replica of ``shard`` of ``operator`` has a shard on ``device``.

    ``width`` is the number of shards of a replica.
    """
    first = shard // width * width
    return bool((draft.device[operator, first : first + width] == device).any())


@kernel
def _add_replica(space: SearchSpace, draft: Draft, operator: int, count: int, draw: Any) -> bool:
    """Add a replica of ``operator`` on random devices with consecutive numbers; return success.

    ``count`` is the number of devices, ``draw`` the random numbers of the step. It fails at the
    largest number of replicas or shards.
    """
    width = space.parallel[draft.parallel_index[operator]]
    first = draft.replicas[operator] * width
    if draft.replicas[operator] == space.max_replicas or first + width > draft.device.shape[1]:
        return False
    for part in range(width):
        draft.device[operator, first + part] = (int(draw[2] * count) + part) % count
    draft.replicas[operator] += 1
    return True


@kernel
def _remove_replica(draft: Draft, operator: int, width: int, draw: Any) -> bool:
    """Remove a random replica of ``operator``; the last one takes its number.

    Replicas have ``width`` shards. Return False if there is only one replica.
    """
    if draft.replicas[operator] == 1:
        return False
    removed = int(draw[2] * draft.replicas[operator])
    draft.replicas[operator] -= 1
    first, last = removed * width, draft.replicas[operator] * width  # first shards
    for part in range(width):
        draft.device[operator, first + part] = draft.device[operator, last + part]
    return True


@kernel
def _swap_shards(space: SearchSpace, draft: Draft, operator: int, draw: Any) -> bool:
    """Exchange the devices of a random shard of ``operator`` and one of another operator.

    Return False, without a change, if two shards of one replica would share a device.
    """
    other = int(draw[2] * draft.batch_index.size)  # the other operator
    if other == operator:
        return False
    width = space.parallel[draft.parallel_index[operator]]
    other_width = space.parallel[draft.parallel_index[other]]
    shard = int(draw[3] * draft.replicas[operator] * width)
    other_shard = int(draw[4] * draft.replicas[other] * other_width)
    here, there = draft.device[operator, shard], draft.device[other, other_shard]
    if _has_shard(draft, operator, shard, width, there):
        return False
    if _has_shard(draft, other, other_shard, other_width, here):
        return False
    draft.device[operator, shard], draft.device[other, other_shard] = there, here
    return True


@kernel
def _change_parallelism(
    space: SearchSpace, draft: Draft, operator: int, count: int, draw: Any
) -> bool:
    """Give ``operator`` a random parallelism, with as many replicas or about as many shards.

    Return False, without a change, if the parallelism is the same, cannot run, or needs too many
    devices.
    """
    old_index, new_index = draft.parallel_index[operator], int(draw[2] * space.parallel.size)
    width, replicas = space.parallel[new_index], draft.replicas[operator]
    if draw[4] < 0.5:  # about as many shards
        replicas = max(1, replicas * space.parallel[old_index] // width)
        replicas = min(replicas, space.max_replicas)
    if width > count or replicas * width > draft.device.shape[1] or new_index == old_index:
        return False
    if not np.isfinite(space.latency_s[operator, draft.batch_index[operator], new_index]):
        return False
    draft.parallel_index[operator], draft.replicas[operator] = new_index, replicas
    for shard in range(replicas * width):
        draft.device[operator, shard] = (int(draw[3] * count) + shard) % count
    return True


@kernel
def _change(space: SearchSpace, draft: Draft, count: int, draw: Any) -> bool:
    """Change one thing in a draft at random; return False if nothing changed.

    ``draw`` are the random numbers of the step: the first chooses the kind of change, the second
    the operator.
    """
    kind, operator = draw[0], int(draw[1] * draft.batch_index.size)
    parallel_index = draft.parallel_index[operator]
    width = space.parallel[parallel_index]  # shards of a replica
    if kind < CHANGE_BATCH:  # one or two batch sizes up or down
        sizes = 1 + int(2 * draw[2])
        batch_index = draft.batch_index[operator] + (sizes if draw[3] < 0.5 else -sizes)
        if batch_index < 0 or batch_index >= space.batches.size:
            return False
        if not np.isfinite(space.latency_s[operator, batch_index, parallel_index]):
            return False
        draft.batch_index[operator] = batch_index
        return True
    if kind < ADD_REPLICA:
        return bool(_add_replica(space, draft, operator, count, draw))
    if kind < REMOVE_REPLICA:
        return bool(_remove_replica(draft, operator, width, draw))
    if kind < MOVE_SHARD:
        shard, device = int(draw[2] * draft.replicas[operator] * width), int(draw[3] * count)
        if _has_shard(draft, operator, shard, width, device):
            return False
        draft.device[operator, shard] = device
        return True
    if kind < SWAP_SHARDS:
        return bool(_swap_shards(space, draft, operator, draw))
    return bool(_change_parallelism(space, draft, operator, count, draw))


@kernel
def _copy(draft: Draft, into: Draft) -> None:
    """Copy the arrays of ``draft`` into those of another draft."""
    into.batch_index[:] = draft.batch_index
    into.parallel_index[:] = draft.parallel_index
    into.replicas[:] = draft.replicas
    into.device[:] = draft.device


@cached_kernel
def anneal(space: SearchSpace, draft: Draft, count: int, draws: Any) -> bool:
    """Change ``draft`` at random until it is feasible on ``count`` devices; return success.

    Simulated annealing: a change that raises the excess is kept with a probability that falls from
    step to step. ``draws`` are random numbers from 0 to 1 of each step, ``[steps, DRAWN]``.
    """
    kept = Draft(
        draft.batch_index.copy(),
        draft.parallel_index.copy(),
        draft.replicas.copy(),
        draft.device.copy(),
    )
    excess, steps = _excess(space, draft, count), draws.shape[0]
    for step in range(steps):
        if excess == 0.0:
            return True
        if not _change(space, draft, count, draws[step]):
            continue
        new_excess = _excess(space, draft, count)
        temperature = HOT * (COLD / HOT) ** (step / steps)
        chance = np.exp((excess - new_excess) / temperature)
        if new_excess <= excess or draws[step, DRAWN - 1] < chance:
            excess = new_excess
            _copy(draft, kept)
        else:
            _copy(kept, draft)
    return bool(excess == 0.0)


def plan_on_devices(
    phase: PhaseProblem, starts: Sequence[OperatorPlan], count: int, device_bytes: float
) -> tuple[OperatorPlan, Placement] | None:
    """Return a plan within the limit and its placement on ``count`` devices; None: not found.

    The search begins at each of the plans ``starts``, its replicas on the devices with least load.
    None does not prove that there is no such plan.
    """
    if phase.problem.parallel[0] > count:
        return None  # each shard of a replica needs a separate device
    space = _search_space(phase, device_bytes)
    for seed, start in enumerate(starts):
        draft = _draft_of(phase, start, count)
        draws = np.random.default_rng([seed, count]).random((STEPS, DRAWN))
        if not anneal(space, draft, count, draws):
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
    used, where = np.unique(draft.device[is_shard], return_inverse=True)
    packed = packing_plan(phase.problem, phase.demand, plan)
    placed = placement_of(phase.problem.slo_s, packed, where, used.size)
    reserved = reserve_kv_cache(phase, placed.latency_s)
    return with_memory_of(placed, phase.problem, reserved.demand, plan)


def _search_space(phase: PhaseProblem, device_bytes: float) -> SearchSpace:
    """Return all choices of ``phase`` as arrays for compiled code."""
    problem, demand = phase.problem, phase.demand
    operators, batches, widths = problem.latency_s.shape
    owner = np.repeat(np.arange(operators), batches * widths)
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
                None if demand.kinds is None else demand.kinds[owner],
                demand.compute.ravel(),
                demand.bandwidth.ravel(),
            )
        ),
        graph=problem.graph,
        apart=demand.apart,
        rate=float(problem.rate),
        slo_s=float(problem.slo_s),
        max_replicas=problem.max_replicas,
    )


def _draft_of(phase: PhaseProblem, start: OperatorPlan, count: int) -> Draft:
    """Return the plan ``start`` as a draft on ``count`` devices.

    The shards with the largest load are placed first, each on the device with the least load.
    """
    problem = phase.problem
    operators, batch_index, parallel_index = problem.indices_of(start.batch, start.parallel)
    # Each shard of a replica needs a separate device.
    parallel_index = np.where(problem.parallel[parallel_index] <= count, parallel_index, 0)
    widths = problem.parallel[parallel_index]  # shards of a replica
    max_shards = max(MOST_SHARDS, SHARDS_EACH * count)
    replicas = np.clip(start.replicas, 1, np.minimum(max_shards // widths, problem.max_replicas))
    chosen = operators, batch_index, parallel_index
    busy = problem.rate / problem.batches[batch_index] * problem.latency_s[chosen] / replicas
    # Share of a device that one shard takes, of the resource it uses more
    shard_load = busy * np.maximum(phase.demand.compute[chosen], phase.demand.bandwidth[chosen])
    device, device_load = np.zeros((operators.size, max_shards), np.int64), np.zeros(count)
    for v in np.argsort(-shard_load, kind="stable"):
        for first in range(0, replicas[v] * widths[v], widths[v]):  # first shard of a replica
            least_loaded = np.argsort(device_load, kind="stable")[: widths[v]]
            device[v, first : first + widths[v]] = least_loaded
            device_load[least_loaded] += shard_load[v]
    return Draft(batch_index.copy(), parallel_index, replicas, device)
