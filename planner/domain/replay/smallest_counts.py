"""Search the smallest counts that meet a condition that is expensive to test."""

from collections.abc import Callable

import numpy as np

from simulation.arrays import FloatArray, IntArray

Meets = Callable[[IntArray], bool]


def fewest(
    meets: Meets, base: IntArray, low: IntArray, high: IntArray, *, least: int = 1
) -> IntArray:
    """Return the smallest counts per pool that ``meets`` accepts, by a search over their total.

    ``base`` gives the proportions, and the total at which the search begins. ``low`` and ``high``
    limit the counts, and ``least`` the total. If no total meets the condition, return the largest
    one.
    """
    least, most = max(least, int(low.sum())), int(high.sum())
    # Start from the proportions given and grow by a quarter: each test is a replay.
    enough = max(least, int(base.sum()))
    while not meets(spread_in_proportion(enough, base, low, high)):
        if enough >= most:
            return spread_in_proportion(most, base, low, high)
        least, enough = enough + 1, min(most, enough + max(1, enough // 4))
    # Go down in steps of growing size until one fails, then by bisection.
    step = max(1, enough // 16)
    while least < enough:
        middle = max(least, enough - step) if step else (least + enough) // 2
        if meets(spread_in_proportion(middle, base, low, high)):
            enough, step = middle, 2 * step
        else:
            least, step = middle + 1, 0
    return spread_in_proportion(enough, base, low, high)


def remove_unneeded(meets: Meets, counts: IntArray, low: IntArray, order: FloatArray) -> IntArray:
    """Remove single replicas from ``counts [pools]`` while ``meets`` stays True.

    Pools with the smallest ``order`` are tried first. Counts stay at or above ``low``.
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
    """Spread ``total`` replicas over pools in proportion to ``base``, and return the counts.

    Each count stays within ``low`` and ``high``, which may change the total. Rounding is by the
    largest remainder, ties to the earlier pool.
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
        counts[int(np.argmax(remainder))] += step
    return counts
