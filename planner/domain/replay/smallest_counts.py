"""Search the smallest replica counts that meet a condition, such as an SLO, tested by replays."""

from collections.abc import Callable

import numpy as np

from simulation.arrays import FloatArray, IntArray

Meets = Callable[[IntArray], bool]


def fewest(
    meets: Meets, base: IntArray, low: IntArray, high: IntArray, *, least: int = 1
) -> IntArray:
    """Return the smallest replica counts ``[pools]`` that ``meets`` accepts.

    The search is over the total, which is spread over the pools in the proportions of ``base
    [pools]``. It begins at the total of ``base``. ``low`` and ``high`` limit the count of each
    pool, ``least`` is the smallest total. If no total is accepted, return the largest counts.
    """

    def spread(total: int) -> IntArray:
        """Return ``total`` replicas as counts per pool."""
        return spread_in_proportion(total, base, low, high)

    # The answer is at least ``least``; ``enough`` is the smallest total known to be accepted.
    least, most = max(least, int(low.sum())), int(high.sum())
    # Grow by a quarter until a total is accepted, since each test is a replay.
    enough = max(least, int(base.sum()))
    while not meets(spread(enough)):
        if enough >= most:
            return spread(most)
        least, enough = enough + 1, min(most, enough + max(1, enough // 4))
    # Go down in steps of growing size until one fails, then by bisection (step 0).
    step = max(1, enough // 16)
    while least < enough:
        middle = max(least, enough - step) if step else (least + enough) // 2
        if meets(spread(middle)):
            enough, step = middle, 2 * step
        else:
            least, step = middle + 1, 0  # bisect from now on
    return spread(enough)


def remove_unneeded(meets: Meets, counts: IntArray, low: IntArray, order: FloatArray) -> IntArray:
    """Remove single replicas from ``counts [pools]`` as long as ``meets`` accepts; return the rest.

    Pools with a smaller value of ``order`` are tried first. Counts stay at or above ``low``.
    """
    removed = True
    while removed:
        removed = False
        for p in np.argsort(order, kind="stable"):
            fewer = counts.copy()
            fewer[p] -= 1
            if fewer[p] >= low[p] and fewer.any() and meets(fewer):
                counts, removed = fewer, True
    return counts


def spread_in_proportion(total: int, base: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Return counts per pool that sum to ``total``, in proportion to ``base [pools]``.

    Each count stays within ``low`` and ``high``, so the sum may differ. Counts are rounded by the
    largest remainder; among equals, the earlier pool gets the replica.
    """
    weights = np.maximum(base, 1e-9)
    ideal = total * weights / weights.sum()
    counts: IntArray = np.clip(np.floor(ideal).astype(np.int64), low, high)
    while counts.sum() != total:
        step = 1 if counts.sum() < total else -1
        can_change = counts < high if step > 0 else counts > low
        if not can_change.any():
            break
        remainder = np.where(can_change, (ideal - counts) * step, -np.inf)
        counts[int(np.argmax(remainder))] += step  # the pool with the largest remainder
    return counts
