"""What each operator can buy: the least latency at every price, in slots or in shares of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.provisioning.problem import OperatorProblem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """The undominated choices of one operator: price ascending, sojourn strictly descending."""

    slots: IntArray | FloatArray  # [n] the price: P x R, or shares of a GPU
    sojourn_s: FloatArray  # [n]
    choice: IntArray  # [n, 3]: batch index, parallelism index, replicas


def frontiers(problem: OperatorProblem, table: FloatArray) -> tuple[Frontier, ...]:
    """One frontier per operator, from the table of ``sojourns``.

    Of choices with equal slots the one with the least sojourn stands for all; then those that cost
    more without being faster are dropped. No plan loses by this: every constraint and the objective
    see an operator only through its slots and its sojourn.
    """
    replicas = np.arange(1, problem.max_replicas + 1)
    slots = (problem.parallel[:, None] * replicas).ravel()  # [P * R]
    by_slots = np.argsort(slots, kind="stable")
    found = []
    for v in range(len(problem.names)):
        best = table[v].argmin(axis=0)  # [P, R]: the best batch of each
        least = np.take_along_axis(table[v], best[None], axis=0)[0].ravel()[by_slots]
        keep = np.flatnonzero(least < np.minimum.accumulate(np.r_[np.inf, least])[:-1])
        # Equal slots are neighbours here: the last kept of each run is the fastest.
        cost = slots[by_slots][keep]
        keep = keep[np.r_[cost[1:] != cost[:-1], True]] if keep.size else keep
        p, r = np.divmod(by_slots[keep], problem.max_replicas)
        found.append(
            Frontier(
                slots=slots[by_slots][keep],
                sojourn_s=least[keep],
                choice=np.stack([best[p, r], p, r + 1], axis=1).astype(np.int64),
            )
        )
    return tuple(found)


def priced(table: FloatArray, price: FloatArray) -> Frontier:
    """The frontier of one operator by any price; both ``[B, P, R]``, stable choices only."""
    flat, cost = table.ravel(), price.ravel()
    by_price = np.lexsort((flat, cost))
    by_price = by_price[np.isfinite(flat[by_price])]
    least = flat[by_price]
    keep = by_price[least < np.minimum.accumulate(np.r_[np.inf, least])[:-1]]
    b, p, r = np.unravel_index(keep, table.shape)
    return Frontier(cost[keep], flat[keep], np.stack([b, p, r + 1], axis=1).astype(np.int64))
