"""Measured collectives: seconds by message size for each kind and number of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Seconds of calls at ascending sizes, ``[n]`` each, interpolated in logarithms.

    A larger call never takes less time. Smaller sizes than the first have its seconds. Beyond the
    last size, time grows in proportion.
    """

    sizes: FloatArray
    seconds: FloatArray

    def at(self, size: FloatArray) -> FloatArray:
        """Return the seconds at each size."""
        log_size = np.log(np.maximum(size, 1e-9))
        interpolated: FloatArray = np.exp(
            np.interp(log_size, np.log(self.sizes), np.log(self.seconds))
        )
        beyond = np.maximum(size / self.sizes[-1], 1.0)
        grown: FloatArray = interpolated * beyond
        return grown

    def inside(self, size: FloatArray) -> BoolArray:
        """Return the mask of sizes within the measured ones."""
        return np.asarray((size >= self.sizes[0]) & (size <= self.sizes[-1]))


def monotone_line(sizes: FloatArray, seconds: FloatArray) -> Line:
    """Return the monotone line through points in any order; of repeats, the median counts."""
    order = np.argsort(sizes, kind="stable")
    unique, start = np.unique(sizes[order], return_index=True)
    values = seconds[order]
    if unique.size < sizes.size:
        values = np.array([np.median(group) for group in np.split(values, start[1:])])
    return Line(unique, monotone(values))


def monotone(seconds: FloatArray) -> FloatArray:
    """Return ``seconds`` made non-decreasing along every axis.

    The result is the geometric mean of the smallest monotone values above and the largest below, so
    that noise has no preferred direction.
    """
    above, below = seconds, seconds
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    result: FloatArray = np.sqrt(above * below)
    return result


def fastest(lines: Sequence[Line], size: FloatArray) -> tuple[FloatArray, BoolArray] | None:
    """Return the seconds of the fastest line at each size, and the mask of measured sizes.

    Lines are implementations, such as NCCL and a custom all-reduce in a CUDA graph. Engines choose
    between them by size. None: there is no line.
    """
    if not lines:
        return None
    seconds = np.min([line.at(size) for line in lines], axis=0)
    return seconds, np.any([line.inside(size) for line in lines], axis=0)
