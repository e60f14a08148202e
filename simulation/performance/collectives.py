"""Measured collectives: seconds by message size for each kind and number of GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTable:
    """Seconds over message bytes, by kind (all_reduce ...) and number of GPUs, as lines.

    There may be several implementations, such as NCCL and a custom all-reduce in a CUDA graph. The
    fastest one counts at each size, since engines choose by size.
    """

    lines: Mapping[tuple[str, int], tuple[Line, ...]] = field(default_factory=dict)

    def at(self, kind: str, gpus: int, message: FloatArray) -> tuple[FloatArray, BoolArray] | None:
        """Return the seconds for messages of ``message`` bytes, and the mask of measured sizes.

        None if this kind was not measured at all.
        """
        lines = self.lines.get((kind, gpus))
        if not lines:
            return None
        seconds = np.min([curve.at(message) for curve in lines], axis=0)
        inside = np.any([curve.inside(message) for curve in lines], axis=0)
        return seconds, inside
