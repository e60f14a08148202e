"""Compute the least latency of each operator at every price, in slots or shares of a GPU.

A choice is the batch size, parallelism and number of replicas of an operator. Its slots are the
GPUs of its replicas: parallelism times replicas. Its sojourn is wait, service and transfer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.problem import OperatorProblem, operator_arrays
from simulation.provisioning.sojourns import Choices, fill_frontiers


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """The choices of an operator that no other beats: price ascends, sojourn strictly descends."""

    slots: IntArray | FloatArray  # [n] the price: slots, or shares of a GPU
    sojourn_s: FloatArray  # [n]
    choice: IntArray  # [n, 3]: batch index, parallelism index, replicas
    needs: FloatArray | None = None  # [n, K] devices' worth of each resource


def frontiers(problem: OperatorProblem, fewest: IntArray | None = None) -> tuple[Frontier, ...]:
    """Return the frontier of each operator, with slots as the price.

    ``fewest [operator, batch, parallelism]`` is the smallest number of replicas that fits in
    memory; default: 1. Among choices with equal slots, only the one with the least sojourn remains.
    Choices that cost more without being faster are dropped. No plan gets worse: constraints and
    objective depend on an operator only through its slots and its sojourn.
    """
    count, max_replicas = len(problem.names), problem.max_replicas
    max_slots = int(problem.parallel.max()) * max_replicas
    # By operator and slots: the least sojourn on at most that many, and the index of its choice.
    least_sojourn_s = np.empty((count, max_slots + 1))
    best_choice = np.zeros((count, max_slots + 1), np.int64)
    if fewest is None:
        fewest = np.ones(problem.latency_s.shape, np.int64)
    operators = operator_arrays(problem)
    fill_frontiers(
        operators, max_replicas, np.ascontiguousarray(fewest), least_sojourn_s, best_choice
    )
    frontiers = []
    for v in range(count):
        # Slots with a shorter sojourn than one slot less
        slots = np.flatnonzero(least_sojourn_s[v, 1:] < least_sojourn_s[v, :-1]) + 1
        # A choice is an index into [B, P, R]; its r stands for r + 1 replicas.
        batch_and_parallel, r = np.divmod(best_choice[v, slots], max_replicas)
        b, p = np.divmod(batch_and_parallel, problem.parallel.size)
        frontiers.append(
            Frontier(slots, least_sojourn_s[v, slots], np.stack([b, p, r + 1], axis=1))
        )
    return tuple(frontiers)


def priced_frontier(
    sojourn_table: FloatArray, price: FloatArray, first_parallel_index: int = 0
) -> Frontier:
    """Return the frontier of one operator by ``price``; both arrays are ``[B, P, R]``.

    ``sojourn_table`` has the sojourns in seconds; unstable choices (inf) are left out. The axes are
    batch, parallelism and replicas. ``first_parallel_index`` is the index in the problem of the
    first parallelism of the arrays.
    """
    sojourn_s, cost = sojourn_table.ravel(), price.ravel()
    stable = np.flatnonzero(np.isfinite(sojourn_s))
    by_price = stable[np.lexsort((sojourn_s[stable], cost[stable]))]  # then by sojourn
    sojourn_by_price = sojourn_s[by_price]
    # A choice stays if it is faster than every cheaper one.
    least_of_cheaper = np.minimum.accumulate(np.r_[np.inf, sojourn_by_price])[:-1]
    unbeaten = by_price[sojourn_by_price < least_of_cheaper]
    b, p, r = np.unravel_index(unbeaten, sojourn_table.shape)
    choice = np.stack([b, p + first_parallel_index, r + 1], axis=1).astype(np.int64)
    return Frontier(cost[unbeaten], sojourn_s[unbeaten], choice)


def concatenated_choices(frontier_of: Sequence[Frontier]) -> Choices:
    """Return the frontiers of all operators, one after the other, as arrays for compiled code.

    Slots are always floats, or compiled code would be compiled twice.
    """
    sizes = [frontier.slots.size for frontier in frontier_of]
    return Choices(
        first=np.r_[0, np.cumsum(sizes)].astype(np.int64),
        slots=np.concatenate([frontier.slots for frontier in frontier_of]).astype(np.float64),
        sojourn_s=np.concatenate([frontier.sojourn_s for frontier in frontier_of]),
    )
