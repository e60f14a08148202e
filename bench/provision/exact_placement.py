"""The fewest devices there can be, which Algorithm 2 is measured against: of one plan over all its
placements, and over all configurations and all placements of them. Small cases only.

The optimum of ``exact`` is in slots (eq. 8); a plan with more slots can need fewer devices, since
small replicas share.
"""

from itertools import product
from typing import Any

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.compiler import cached_kernel
from simulation.errors import SimulationError
from simulation.provisioning.interference import Demand
from simulation.provisioning.packing import (
    Plan,
    add_shard,
    fits,
    mean_slowdowns,
    no_devices,
    placed_latency,
)
from simulation.provisioning.placement import (
    Placement,
    packing_plan,
    placement_of,
)
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate
from simulation.provisioning.problem import sojourns as sojourns_of

BUDGET = 20_000_000  # partial placements that may be looked at
MOST = 2_000_000  # configurations


def exact_placement(
    problem: OperatorProblem,
    demand: Demand,
    plan: OperatorPlan,
    device_bytes: float,
    *,
    fewer_than: int | None = None,
) -> Placement | None:
    """Return the placement of a plan on the fewest devices, proven.

    None if these are not fewer than ``fewer_than``. Raises if the search needs more than ``BUDGET``
    partial placements.
    """
    packed = packing_plan(problem, demand, plan)
    where = np.full(packed.operator.size, -1, np.int64)
    below = packed.operator.size + 1 if fewer_than is None else fewer_than
    used = _place_exactly(packed, device_bytes, problem.slo_s, below, BUDGET, where)
    if used < 0:
        raise SimulationError(
            f"{packed.operator.size} replicas are too many to place exactly; use Algorithm 2."
        )
    if used == 0:
        if fewer_than is None:
            raise SimulationError("A replica fits on no device.")
        return None
    return placement_of(problem.slo_s, packed, where, used)


@cached_kernel
def _place_exactly(
    plan: Plan, capacity: float, slo: float, below: int, budget: int, where: Any
) -> int:
    """Return the fewest devices by branch and bound; 0: not below ``below``; -1: over budget.

    A shard joins an open device or opens the next one. Replicas of one operator are equal, so their
    first shards are on devices in ascending order. Each shard adds slowdown, so a partial placement
    that misses the limit is cut off.
    """
    shards = where.size
    devices = no_devices(shards + 1, plan)
    trial = np.full(shards, -1, np.int64)
    opened = np.zeros(shards + 1, np.int64)  # devices open before shard i
    left = np.zeros(shards + 1)  # memory still to place
    for i in range(shards - 1, -1, -1):
        left[i] = left[i + 1] + plan.memory[plan.operator[i]]
    best, i, looked = below, 0, 0
    following = 0  # device to try next for shard i
    complete = False
    while i >= 0:
        looked += 1
        if looked > budget:
            return -1
        placed = False
        if i == shards:
            best = opened[i]
            where[:] = trial
            complete = True
        else:
            v = plan.operator[i]
            d = following
            sibling = i > 0 and plan.operator[i - 1] == v
            if sibling and plan.replica[i - 1] == plan.replica[i]:
                d = max(d, trial[i - 1] + 1)  # shards of one replica stand apart, in order
            elif sibling:
                j = i - 1
                while (
                    j > 0
                    and plan.operator[j - 1] == v
                    and plan.replica[j - 1] == plan.replica[i - 1]
                ):
                    j -= 1
                d = max(d, trial[j])
            while d <= opened[i] and not placed:
                more = max(opened[i], d + 1)
                free = 0.0
                for e in range(more):
                    free += capacity - devices.memory[e]
                needed = more + max(0.0, np.ceil((left[i] - free) / capacity - 1e-9))
                if needed < best and fits(devices, d, v, plan, capacity):
                    trial[i] = d
                    add_shard(devices, d, v, plan, 1.0)
                    if placed_latency(plan, mean_slowdowns(plan, trial, devices)) <= slo:
                        opened[i + 1] = more
                        placed = True
                    else:
                        trial[i] = -1
                        add_shard(devices, d, v, plan, -1.0)
                d += 1
        if placed:
            i += 1
            following = 0
            continue
        i -= 1
        if i >= 0:
            v, d = plan.operator[i], trial[i]
            trial[i] = -1
            add_shard(devices, d, v, plan, -1.0)
            following = d + 1
    return best if complete else 0


def fewest_devices(
    problem: OperatorProblem, demand: Demand, device_bytes: float
) -> tuple[OperatorPlan, Placement] | None:
    """Return plan and placement on the fewest devices, proven; None if the limit cannot be met.

    Configurations are tried by a lower bound (memory, arithmetic and traffic in units of a device),
    until that bound reaches the best one found.
    """
    table = sojourns_of(problem)
    options = [_options(problem, demand, table, v, device_bytes) for v in range(len(problem.names))]
    size = float(np.prod([float(len(option)) for option in options]))
    if size > MOST:
        raise SimulationError(
            f"{size:.1g} configurations are too many to search with their placements; "
            "use the exact plan in slots and Algorithm 2."
        )
    combinations = np.array(list(product(*(range(len(option)) for option in options))), np.int64)
    if not combinations.size:
        return None
    needs = sum(
        _needs(problem, demand, v, option, device_bytes)[combinations[:, v]]
        for v, option in enumerate(options)
    )
    widest = np.max(
        [problem.parallel[option[:, 1]][combinations[:, v]] for v, option in enumerate(options)],
        axis=0,
    )
    bound = np.maximum(np.ceil(np.max(needs, axis=1) - 1e-9), widest)
    best: tuple[OperatorPlan, Placement] | None = None
    for i in np.argsort(bound, kind="stable"):
        fewer_than = best[1].devices if best else None
        if fewer_than is not None and bound[i] >= fewer_than:
            break
        choice = np.array([option[k] for option, k in zip(options, combinations[i], strict=True)])
        plan = evaluate(problem, "exact in devices", choice)
        if not plan.feasible:
            continue
        shards = int((plan.replicas * plan.parallel).sum())
        limit = shards + 1 if fewer_than is None else fewer_than
        placed = exact_placement(problem, demand, plan, device_bytes, fewer_than=limit)
        if placed is not None:
            best = plan, placed
    return best


def _options(
    problem: OperatorProblem, demand: Demand, table: FloatArray, v: int, device_bytes: float
) -> IntArray:
    """Return the stable choices of operator ``v`` that fit a device and may be best.

    A choice is left out if another batch size with the same parallelism and replicas is better in
    every figure of placement.
    """
    figures = np.stack(
        [
            problem.latency_s[v],
            problem.transfer_s[v],
            problem.latency_s[v] / problem.batches[:, None],
            demand.memory_bytes[v],
            demand.compute[v],
            demand.bandwidth[v],
        ]
    )  # [6, B, P]
    triples = []
    for b, p, r in np.argwhere(np.isfinite(table[v])):
        where = np.full(problem.batches.size, v), np.arange(problem.batches.size), np.full(1, p)
        fits = demand.shard_bytes(*where, np.full(1, r + 1)) <= device_bytes
        if not fits[b]:
            continue
        candidate = figures[:, b, p][:, None]
        others = figures[:, fits, p]
        beaten = ((others <= candidate).all(axis=0) & (others < candidate).any(axis=0)).any()
        if not beaten:
            triples.append((b, p, r + 1))
    return np.array(triples, np.int64).reshape(-1, 3)


def _needs(
    problem: OperatorProblem, demand: Demand, v: int, picked: IntArray, device_bytes: float
) -> FloatArray:
    """Return memory, arithmetic and traffic of each choice in devices, ``[n, 3]``."""
    b, p, r = picked.T
    place = (v, b, p)
    shards = problem.parallel[p] * r
    busy = problem.rate / problem.batches[b] * problem.latency_s[place] / r
    return np.stack(
        [
            shards * demand.shard_bytes(np.full_like(b, v), b, p, r) / device_bytes,
            shards * busy * demand.compute[place],
            shards * busy * demand.bandwidth[place],
        ],
        axis=1,
    )
