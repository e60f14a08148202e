"""Pareto fronts of two measures, less being better in both."""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray, IntArray


def front(first: FloatArray, second: FloatArray) -> IntArray:
    """Places of points that no other beats in one measure without being worse in the other, by
    rising ``first``; of equal points one. Points that are not numbers are on no front."""
    known = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = known[np.lexsort((second[known], first[known]))]
    lowest = np.minimum.accumulate(second[order])
    better = np.ones(len(order), np.bool_)
    better[1:] = second[order][1:] < lowest[:-1]
    return np.asarray(order[better], np.int64)
