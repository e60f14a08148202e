"""The fewest devices over all configurations and all placements: what is really paid for.

The optimum of ``exact`` is in slots (eq. 8); a plan with more slots can need fewer devices, since
small replicas share. Here configuration and placement are searched together, for small cases.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.interference import Demand
from simulation.provisioning.placement import Placement, exact_placement
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate, sojourns

MOST = 2_000_000


def fewest_devices(
    problem: OperatorProblem, demand: Demand, device_bytes: float
) -> tuple[OperatorPlan, Placement] | None:
    """The plan and placement on the fewest devices, proven; None when the limit cannot be met.

    Configurations are looked at by a lower bound (memory, arithmetic and traffic in units of a
    device) until that reaches the best found.
    """
    table = sojourns(problem)
    options = [_options(problem, demand, table, v, device_bytes) for v in range(len(problem.names))]
    size = float(np.prod([float(len(found)) for found in options]))
    if size > MOST:
        raise SimulationError(
            f"{size:.1g} configurations are too many to search with their placements; "
            "use the exact plan in slots and Algorithm 2."
        )
    combinations = np.array(list(product(*(range(len(found)) for found in options))), np.int64)
    if not combinations.size:
        return None
    needs = sum(
        _needs(problem, demand, v, found, device_bytes)[combinations[:, v]]
        for v, found in enumerate(options)
    )
    widest = np.max(
        [problem.parallel[found[:, 1]][combinations[:, v]] for v, found in enumerate(options)],
        axis=0,
    )
    bound = np.maximum(np.ceil(np.max(needs, axis=1) - 1e-9), widest)
    best: tuple[OperatorPlan, Placement] | None = None
    for i in np.argsort(bound, kind="stable"):
        fewer_than = best[1].devices if best else None
        if fewer_than is not None and bound[i] >= fewer_than:
            break
        choice = np.array([found[k] for found, k in zip(options, combinations[i], strict=True)])
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
    """Stable choices of ``v`` that fit a device, without those that another batch size with the
    same parallelism and replicas beats in every figure that placement looks at."""
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
    found = []
    for b, p, r in np.argwhere(np.isfinite(table[v])):
        where = np.full(problem.batches.size, v), np.arange(problem.batches.size), np.full(1, p)
        fits = demand.shard_bytes(*where, np.full(1, r + 1)) <= device_bytes
        if not fits[b]:
            continue
        mine = figures[:, b, p][:, None]
        others = figures[:, fits, p]
        beaten = ((others <= mine).all(axis=0) & (others < mine).any(axis=0)).any()
        if not beaten:
            found.append((b, p, r + 1))
    return np.array(found, np.int64).reshape(-1, 3)


def _needs(
    problem: OperatorProblem, demand: Demand, v: int, found: IntArray, device_bytes: float
) -> FloatArray:
    """Devices' worth of memory, arithmetic and traffic of each choice, ``[n, 3]``."""
    b, p, r = found.T
    at = (v, b, p)
    shards = problem.parallel[p] * r
    busy = problem.rate / problem.batches[b] * problem.latency_s[at] / r
    return np.stack(
        [
            shards * demand.shard_bytes(np.full_like(b, v), b, p, r) / device_bytes,
            shards * busy * demand.compute[at],
            shards * busy * demand.bandwidth[at],
        ],
        axis=1,
    )
