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
from simulation.provisioning.packing import (
    Plan,
    add_shard,
    mean_slowdowns,
    no_devices,
)
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
KINDS_OF_STEP = (0.2, 0.35, 0.5, 0.75, 0.93)
"""Of all steps: up to each share they change a batch, add a replica, remove one, move a shard, swap
two shards. The rest change a parallelism."""


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
    kept: Any  # [V, P] KV cache of all replicas per shard and second of a pass, the same unit
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

    b: Any  # index of the batch size
    p: Any  # index of the parallelism
    replicas: Any
    device: Any  # [V, K] of each shard, ordered by replica; an operator may have fewer than K


@kernel
def _plan_of(space: SearchSpace, draft: Draft) -> Any:
    """Return a draft as a ``Plan`` of ``packing``, and the device of each shard, ``[S]``."""
    count, widths = draft.b.size, space.parallel[draft.p]  # widths: shards of a replica
    shards = int((draft.replicas * widths).sum())
    operator, replica = np.empty(shards, np.int64), np.empty(shards, np.int64)
    where, i = np.empty(shards, np.int64), 0
    figures = np.empty((6, count))  # of the chosen batch and parallelism, in the order of ``Plan``
    for v in range(count):
        choice = v, draft.b[v], draft.p[v]
        figures[0, v], figures[1, v] = space.latency_s[choice], space.transfer_s[choice]
        figures[2, v], figures[3, v] = space.compute[choice], space.bandwidth[choice]
        figures[4, v], figures[5, v] = space.board[choice], space.memory[choice]
        for s in range(draft.replicas[v] * widths[v]):
            operator[i], replica[i], where[i] = v, s // widths[v], draft.device[v, s]
            i += 1
    size = count if space.interference.shape[0] else 0
    interference = np.empty((size, size))
    batches, widest = space.batches.size, space.parallel.size
    for v in range(size):
        row = (v * batches + draft.b[v]) * widest + draft.p[v]
        for u in range(size):
            column = (u * batches + draft.b[u]) * widest + draft.p[u]
            interference[v, u] = space.interference[row, column]
    rate = space.rate / space.batches[draft.b]
    plan = Plan(
        operator, replica, figures[0], figures[1], figures[2], figures[3], figures[4], figures[5],
        rate * figures[0] / draft.replicas, rate, draft.replicas, interference, space.graph,
        space.apart,
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
    for i in range(where.size):
        add_shard(devices, where[i], plan.operator[i], plan, 1.0)
    slowdown = mean_slowdowns(plan, where, devices)
    unstable, sojourn_s, ends = 0.0, np.empty(operators), np.empty(operators)
    for v in range(operators):
        service, replicas = plan.latency_s[v] * slowdown[v], plan.replicas[v]
        load = plan.rate[v] * service / replicas
        unstable += min(10.0, max(0.0, load - STABLE))
        # An unstable queue counts as one that is nearly full, so that its excess stays finite.
        service *= min(1.0, STABLE / load)
        stay_s = sojourn(plan.rate[v] * service, replicas, service, plan.transfer_s[v])
        sojourn_s[v] = min(stay_s, LONGEST * space.slo_s)
    latency = longest_path(sojourn_s, plan.graph, ends)
    kept = space.kept * min(latency, space.slo_s)
    for i in range(where.size):
        v = plan.operator[i]
        devices.memory[where[i]] += kept[v, draft.p[v]] / plan.replicas[v]
    overload = 0.0
    for d in range(count):
        overload += max(0.0, devices.memory[d] - 1.0) + max(0.0, devices.board[d] - 1.0)
        overload += max(0.0, devices.compute[d] - 1.0) + max(0.0, devices.bandwidth[d] - 1.0)
        if plan.apart:
            overload += max(0.0, devices.all_compute[d] - 1.0)
    late = max(0.0, latency / space.slo_s - 1.0)
    unstable, overload = UNSTABLE_WEIGHT * np.log1p(unstable), DEVICE_WEIGHT * overload
    return float(np.log1p(late) + unstable + overload)


@kernel
def _has_shard(draft: Draft, v: int, s: int, width: int, d: int) -> bool:
    """Return whether the replica of shard ``s`` of operator ``v`` has a shard on device ``d``.

    ``width`` is the number of shards of a replica.
    """
    first = s // width * width
    return bool((draft.device[v, first : first + width] == d).any())


@kernel
def _add_replica(space: SearchSpace, draft: Draft, v: int, count: int, draw: Any) -> bool:
    """Add a replica of operator ``v`` on random devices with consecutive numbers; return success.

    ``count`` is the number of devices, ``draw`` the random numbers of the step. It fails at the
    largest number of replicas or shards.
    """
    width = space.parallel[draft.p[v]]
    first = draft.replicas[v] * width
    if draft.replicas[v] == space.max_replicas or first + width > draft.device.shape[1]:
        return False
    for k in range(width):
        draft.device[v, first + k] = (int(draw[2] * count) + k) % count
    draft.replicas[v] += 1
    return True


@kernel
def _remove_replica(draft: Draft, v: int, width: int, draw: Any) -> bool:
    """Remove a random replica of operator ``v``; the last one takes its number.

    Replicas have ``width`` shards. Return False if there is only one replica.
    """
    if draft.replicas[v] == 1:
        return False
    draft.replicas[v] -= 1
    first, last = int(draw[2] * (draft.replicas[v] + 1)) * width, draft.replicas[v] * width
    for k in range(width):
        draft.device[v, first + k] = draft.device[v, last + k]
    return True


@kernel
def _swap_shards(space: SearchSpace, draft: Draft, v: int, draw: Any) -> bool:
    """Exchange the devices of a random shard of operator ``v`` and one of another operator.

    Return False, without a change, if two shards of one replica would share a device.
    """
    u = int(draw[2] * draft.b.size)  # the other operator
    if u == v:
        return False
    width_v, width_u = space.parallel[draft.p[v]], space.parallel[draft.p[u]]
    s, t = int(draw[3] * draft.replicas[v] * width_v), int(draw[4] * draft.replicas[u] * width_u)
    here, there = draft.device[v, s], draft.device[u, t]
    if _has_shard(draft, v, s, width_v, there) or _has_shard(draft, u, t, width_u, here):
        return False
    draft.device[v, s], draft.device[u, t] = there, here
    return True


@kernel
def _change_parallelism(space: SearchSpace, draft: Draft, v: int, count: int, draw: Any) -> bool:
    """Give operator ``v`` a random parallelism, with as many replicas or about as many shards.

    Return False, without a change, if the parallelism is the same, cannot run, or needs too many
    devices.
    """
    p = int(draw[2] * space.parallel.size)
    width, replicas = space.parallel[p], draft.replicas[v]
    if draw[4] < 0.5:
        replicas = min(max(1, replicas * space.parallel[draft.p[v]] // width), space.max_replicas)
    if width > count or replicas * width > draft.device.shape[1]:
        return False
    if p == draft.p[v] or not np.isfinite(space.latency_s[v, draft.b[v], p]):
        return False
    draft.p[v], draft.replicas[v] = p, replicas
    for s in range(replicas * width):
        draft.device[v, s] = (int(draw[3] * count) + s) % count
    return True


@kernel
def _change(space: SearchSpace, draft: Draft, count: int, draw: Any) -> bool:
    """Change one thing in a draft at random; return False if nothing changed.

    ``draw`` are the random numbers of the step: the first chooses the kind of change
    (``KINDS_OF_STEP``), the second the operator.
    """
    v, kind = int(draw[1] * draft.b.size), draw[0]
    width = space.parallel[draft.p[v]]
    if kind < KINDS_OF_STEP[0]:
        # One or two batch sizes up or down
        b = draft.b[v] + (1 + int(2 * draw[2])) * (1 if draw[3] < 0.5 else -1)
        if b < 0 or b >= space.batches.size or not np.isfinite(space.latency_s[v, b, draft.p[v]]):
            return False
        draft.b[v] = b
        return True
    if kind < KINDS_OF_STEP[1]:
        return bool(_add_replica(space, draft, v, count, draw))
    if kind < KINDS_OF_STEP[2]:
        return bool(_remove_replica(draft, v, width, draw))
    if kind < KINDS_OF_STEP[3]:
        # Shard s to device d
        s, d = int(draw[2] * draft.replicas[v] * width), int(draw[3] * count)
        if _has_shard(draft, v, s, width, d):
            return False
        draft.device[v, s] = d
        return True
    if kind < KINDS_OF_STEP[4]:
        return bool(_swap_shards(space, draft, v, draw))
    return bool(_change_parallelism(space, draft, v, count, draw))


@kernel
def _copy(draft: Draft, into: Draft) -> None:
    """Copy the arrays of ``draft`` into those of another draft."""
    into.b[:] = draft.b
    into.p[:] = draft.p
    into.replicas[:] = draft.replicas
    into.device[:] = draft.device


@cached_kernel
def anneal(space: SearchSpace, draft: Draft, count: int, draws: Any) -> bool:
    """Change ``draft`` at random until it is feasible on ``count`` devices; return success.

    Simulated annealing: a change that raises the excess is kept with a probability that falls from
    step to step. ``draws`` are random numbers from 0 to 1 of each step, ``[steps, DRAWN]``.
    """
    before = Draft(draft.b.copy(), draft.p.copy(), draft.replicas.copy(), draft.device.copy())
    excess, steps = _excess(space, draft, count), draws.shape[0]
    for step in range(steps):
        if excess == 0.0:
            return True
        if not _change(space, draft, count, draws[step]):
            continue
        after = _excess(space, draft, count)
        temperature = HOT * (COLD / HOT) ** (step / steps)
        if after <= excess or draws[step, DRAWN - 1] < np.exp((excess - after) / temperature):
            excess = after
            _copy(draft, before)
        else:
            _copy(before, draft)
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
        if anneal(space, draft, count, draws):
            plan = evaluate(phase.problem, "exact", np.stack(draft[:3], axis=1))
            # A row has the devices of an operator's shards, and unused places behind them.
            rows = zip(draft.device, plan.slots_of, strict=True)
            where = np.concatenate([row[:shards] for row, shards in rows])
            packed = packing_plan(phase.problem, phase.demand, plan)
            used, where = np.unique(where, return_inverse=True)
            placed = placement_of(phase.problem.slo_s, packed, where, used.size)
            reserved = reserve_kv_cache(phase, placed.latency_s)
            placed = with_memory_of(placed, phase.problem, reserved.demand, plan)
            # Memory is checked again, because it was summed in another order.
            if placed.feasible and plan.feasible and placed.memory_bytes.max() <= device_bytes:
                return plan, placed
    return None


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
        kept=demand.kv_bytes / device_bytes / phase.reserve_s,
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
    operators, b, p = problem.indices_of(start.batch, start.parallel)
    # Each shard of a replica needs a separate device.
    p = np.where(problem.parallel[p] <= count, p, 0)
    widths = problem.parallel[p]  # shards of a replica
    max_shards = max(MOST_SHARDS, SHARDS_EACH * count)
    replicas = np.clip(start.replicas, 1, np.minimum(max_shards // widths, problem.max_replicas))
    chosen = operators, b, p
    busy = problem.rate / problem.batches[b] * problem.latency_s[chosen] / replicas
    # Share of a device that one shard takes, of the resource it uses more
    shard_load = busy * np.maximum(phase.demand.compute[chosen], phase.demand.bandwidth[chosen])
    device, load = np.zeros((operators.size, max_shards), np.int64), np.zeros(count)
    for v in np.argsort(-shard_load, kind="stable"):
        for k in range(replicas[v]):
            least_loaded = np.argsort(load, kind="stable")[: widths[v]]
            device[v, k * widths[v] : (k + 1) * widths[v]] = least_loaded
            load[least_loaded] += shard_load[v]
    return Draft(b.copy(), p, replicas, device)
