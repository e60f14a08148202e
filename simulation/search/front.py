"""Compute Pareto fronts of two measures, both to be minimised."""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray, IntArray


def front(first: FloatArray, second: FloatArray) -> IntArray:
    """Return the indices of undominated points, by rising ``first``; one index for equal points.

    Points with NaN or infinite values are on no front.
    """
    known = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = known[np.lexsort((second[known], first[known]))]
    lowest = np.minimum.accumulate(second[order])
    better = np.ones(len(order), np.bool_)
    better[1:] = second[order][1:] < lowest[:-1]
    return np.asarray(order[better], np.int64)
