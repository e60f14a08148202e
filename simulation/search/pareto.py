"""Compute Pareto fronts of two measures, both to be minimised."""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray, IntArray


def pareto_front(first: FloatArray, second: FloatArray) -> IntArray:
    """Return the indices of undominated points, by rising ``first``; one index for equal points.

    Points with NaN or infinite values are on no front.
    """
    finite = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = finite[np.lexsort((second[finite], first[finite]))]
    lowest = np.minimum.accumulate(second[order])
    better = np.ones(len(order), np.bool_)
    better[1:] = second[order][1:] < lowest[:-1]
    return np.asarray(order[better], np.int64)
