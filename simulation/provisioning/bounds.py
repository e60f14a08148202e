"""Compute a lower bound on the devices of any operator plan and its placement.

A device has limited memory, arithmetic, memory traffic and power. Take any weights w of them
(sum 1), and any price of latency y >= 0. Every plan that keeps the limit along a path of the graph
needs at least this many devices:

    sum over v of min over choices (w . needs(v, choice) + y sojourn(v, choice) [v on path]) - y SLO

This is the Lagrangian relaxation of the limit. The best of many w and y is used.
"""

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.frontier import Frontier
from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, critical_path

WEIGHTS = (
    (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0),
    (0.5, 0.5, 0.0, 0.0), (0.75, 0.25, 0.0, 0.0), (0.25, 0.75, 0.0, 0.0),
    (0.5, 0.0, 0.5, 0.0), (0.75, 0.0, 0.25, 0.0), (0.25, 0.0, 0.75, 0.0),
)  # fmt: skip
"""Of memory, arithmetic, traffic and power."""
TOLERANCE = 1e-6  # of the limit: sojourns that differ by less are equal
PRICES = (0.0, *np.geomspace(0.01, 100.0, 25))  # price of the whole latency limit, in devices


def device_lower_bound(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float
) -> int:
    """Return a lower bound on the devices of any plan whose choices are finite in ``table``.

    ``table [V, B, P, R]`` are sojourns in seconds; inf excludes a choice.
    """
    # Lagrangian bound: the latency limit of one path has a price, and resources have weights. Each
    # operator then takes its cheapest choice. The path is the longest by minimum times; any is
    # valid.
    path = critical_path(problem, problem.latency_s.min(axis=(1, 2))).operators
    weights, prices = np.array(WEIGHTS), np.array(PRICES)
    totals = np.zeros((weights.shape[0], prices.size))  # least cost by weights and price
    for v in range(len(problem.names)):
        b, p, r = np.nonzero(np.isfinite(table[v]))
        operator_index = np.full(b.size, v)
        needs = device_shares(problem, demand, device_bytes, (operator_index, b, p), r + 1)
        # Only operators on the path have a latency term.
        latency_share = table[v, b, p, r] / problem.slo_s if v in path else np.zeros(b.size)
        for i, weighted_needs in enumerate(weights @ needs):
            cost = weighted_needs + prices[:, None] * latency_share  # [price, choice]
            totals[i] += cost.min(axis=1)
    bounds = totals - prices  # less the price of the limit itself
    return max(1, int(np.ceil(bounds.max() - 1e-9)))


def filled_devices(problem: OperatorProblem, demand: Demand, device_bytes: float) -> FloatArray:
    """Return a lower bound on devices if all operators have one batch and parallelism, ``[B, P]``.

    It is what the scarcest of memory, arithmetic, traffic and power needs, with one replica per
    operator. More replicas never need fewer devices.
    """
    all_choices = np.ix_(*(np.arange(n) for n in problem.latency_s.shape))
    needs = device_shares(problem, demand, device_bytes, all_choices, 1)
    return np.asarray(needs.sum(axis=1).max(axis=0))


def devices_filled_by(
    problem: OperatorProblem, demand: Demand, plan: OperatorPlan, device_bytes: float
) -> float:
    """Return the number of devices, not rounded, that a plan needs of its scarcest resource.

    No placement uses fewer.
    """
    chosen = problem.indices_of(plan.batch, plan.parallel)
    needs = device_shares(problem, demand, device_bytes, chosen, plan.replicas)
    return float(needs.sum(axis=1).max())


def device_shares(
    problem: OperatorProblem,
    demand: Demand,
    device_bytes: float,
    chosen: tuple[IntArray, ...],
    replicas: IntArray | int,
) -> FloatArray:
    """Return the memory, arithmetic, traffic and power that choices use, ``[4, ...]``.

    The unit is one device. ``chosen`` are index arrays of the operators, batches and parallelisms.
    """
    v, b, p = chosen
    parallel = problem.parallel[p]
    busy = problem.rate / problem.batches[b] * problem.latency_s[v, b, p] * parallel
    memory_bytes = parallel * replicas * demand.shard_bytes(v, b, p, replicas)
    return np.stack(
        [
            memory_bytes / device_bytes,
            busy * demand.compute[v, b, p],
            busy * demand.bandwidth[v, b, p],
            busy * demand.board[v, b, p],
        ]
    )


def device_options(
    problem: OperatorProblem,
    demand: Demand,
    table: FloatArray,
    device_bytes: float,
    max_devices: float,
) -> tuple[Frontier, ...]:
    """Return for each operator the choices that no other choice beats in all figures.

    The figures are slots, sojourn, and the use of each resource. Choices that alone need more than
    ``max_devices`` are left out, and those whose last replica hardly shortens the sojourn.
    """
    options = []
    for v in range(len(problem.names)):
        clearly_shorter_s = table[v, :, :, :-1] - TOLERANCE * problem.slo_s
        useful = np.isfinite(table[v]) & (table[v] <= problem.slo_s)
        useful[:, :, 1:] &= table[v, :, :, 1:] < clearly_shorter_s  # than with one replica less
        b, p, r = np.nonzero(useful)
        needs = device_shares(problem, demand, device_bytes, (np.full(b.size, v), b, p), r + 1)
        affordable = np.flatnonzero((needs <= max_devices).all(axis=0))
        slots = problem.parallel[p] * (r + 1)
        figures = np.column_stack([slots, table[v, b, p, r], needs.T])[affordable]
        # In rising order of slots, then of the other figures, only earlier choices can beat one.
        order = np.lexsort(figures.T[::-1])
        kept: list[int] = []
        for i in order.tolist():
            if not (figures[kept] <= figures[i]).all(axis=1).any():
                kept.append(i)
        choice = np.stack([b, p, r + 1], axis=1)[affordable[kept]]
        slots, sojourn_s, resources = figures[kept, 0], figures[kept, 1], figures[kept, 2:]
        options.append(Frontier(slots, sojourn_s, choice, resources))
    return tuple(options)


def round_up_devices(fills: float) -> int:
    """Return the whole number of devices for a load of ``fills`` devices, at least 1."""
    return max(1, int(np.ceil(fills - 1e-6)))
