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

RESOURCE_WEIGHTS = (
    (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0),
    (0.5, 0.5, 0.0, 0.0), (0.75, 0.25, 0.0, 0.0), (0.25, 0.75, 0.0, 0.0),
    (0.5, 0.0, 0.5, 0.0), (0.75, 0.0, 0.25, 0.0), (0.25, 0.0, 0.75, 0.0),
)  # fmt: skip
"""Weights of memory, arithmetic, memory traffic and power."""
TOLERANCE = 1e-6  # of the limit: sojourns that differ by less are equal
LATENCY_PRICES = (0.0, *np.geomspace(0.01, 100.0, 25))  # devices for the whole latency limit


def device_lower_bound(
    problem: OperatorProblem, demand: Demand, sojourn_table: FloatArray, device_bytes: float
) -> int:
    """Return a lower bound on the devices of any plan of the allowed choices.

    ``sojourn_table [V, B, P, R]`` are sojourns in seconds; inf: the choice is not allowed.
    """
    # Lagrangian bound: the latency limit of one path has a price in devices, and resources have
    # weights. Each operator then takes its cheapest choice. Any weights, any price and any path
    # give a valid bound; the path is the longest by minimum times.
    path = critical_path(problem, problem.latency_s.min(axis=(1, 2))).operators
    weights, prices = np.array(RESOURCE_WEIGHTS), np.array(LATENCY_PRICES)
    least_cost = np.zeros((weights.shape[0], prices.size))  # [weights, price], of all operators
    for v in range(len(problem.names)):
        b, p, r = np.nonzero(np.isfinite(sojourn_table[v]))  # r: replicas - 1
        operator_index = np.full(b.size, v)
        # [resource, choice] devices that each allowed choice uses
        shares = device_shares(problem, demand, device_bytes, (operator_index, b, p), r + 1)
        # Only operators on the path have a latency term.
        share_of_limit = np.zeros(b.size)
        if v in path:
            share_of_limit = sojourn_table[v, b, p, r] / problem.slo_s
        for i, devices_used in enumerate(weights @ shares):
            cost = devices_used + prices[:, None] * share_of_limit  # [price, choice]
            least_cost[i] += cost.min(axis=1)
    bounds = least_cost - prices  # less the price of the limit itself
    return max(1, int(np.ceil(bounds.max() - 1e-9)))


def filled_devices(problem: OperatorProblem, demand: Demand, device_bytes: float) -> FloatArray:
    """Return a lower bound on devices if all operators have one batch and parallelism, ``[B, P]``.

    It is what the scarcest of memory, arithmetic, traffic and power needs, with one replica per
    operator. More replicas never need fewer devices.
    """
    all_choices = np.ix_(*(np.arange(n) for n in problem.latency_s.shape))
    shares = device_shares(problem, demand, device_bytes, all_choices, 1)
    return np.asarray(shares.sum(axis=1).max(axis=0))


def devices_filled_by(
    problem: OperatorProblem, demand: Demand, plan: OperatorPlan, device_bytes: float
) -> float:
    """Return the number of devices, not rounded, that a plan needs of its scarcest resource.

    No placement uses fewer.
    """
    chosen = problem.indices_of(plan.batch, plan.parallel)
    shares = device_shares(problem, demand, device_bytes, chosen, plan.replicas)
    return float(shares.sum(axis=1).max())


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
    sojourn_table: FloatArray,
    device_bytes: float,
    max_devices: float,
) -> tuple[Frontier, ...]:
    """Return for each operator the choices that no other choice beats in all figures.

    The figures are slots, sojourn, and the use of each resource. Choices that alone need more than
    ``max_devices`` are left out, and those whose last replica hardly shortens the sojourn.
    """
    frontier_of = []
    for v in range(len(problem.names)):
        clearly_shorter_s = sojourn_table[v, :, :, :-1] - TOLERANCE * problem.slo_s
        useful = np.isfinite(sojourn_table[v]) & (sojourn_table[v] <= problem.slo_s)
        # Shorter than with one replica less
        useful[:, :, 1:] &= sojourn_table[v, :, :, 1:] < clearly_shorter_s
        b, p, r = np.nonzero(useful)  # r: replicas - 1
        shares = device_shares(problem, demand, device_bytes, (np.full(b.size, v), b, p), r + 1)
        affordable = np.flatnonzero((shares <= max_devices).all(axis=0))
        slots = problem.parallel[p] * (r + 1)
        figures = np.column_stack([slots, sojourn_table[v, b, p, r], shares.T])[affordable]
        # Sorted by slots, then by the other figures: only earlier choices can beat a later one.
        order = np.lexsort(figures.T[::-1])
        unbeaten: list[int] = []
        for i in order.tolist():
            beaten = (figures[unbeaten] <= figures[i]).all(axis=1).any()
            if not beaten:
                unbeaten.append(i)
        choice = np.stack([b, p, r + 1], axis=1)[affordable[unbeaten]]
        slots, sojourn_s = figures[unbeaten, 0], figures[unbeaten, 1]
        frontier_of.append(Frontier(slots, sojourn_s, choice, needs=figures[unbeaten, 2:]))
    return tuple(frontier_of)


def round_up_devices(devices: float) -> int:
    """Return ``devices`` rounded up to a whole number, at least 1.

    Numbers that exceed a whole number by rounding errors only are rounded down.
    """
    return max(1, int(np.ceil(devices - 1e-6)))
