"""Measured collectives: seconds by message size, for each kind and number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Seconds at ascending sizes, both shape ``[n]``; read by interpolating their logarithms.

    Made monotone: a larger call never takes less time. Below the first size the first value holds,
    beyond the last one time grows in proportion; ``inside`` says which.
    """

    sizes: FloatArray
    seconds: FloatArray

    def at(self, size: FloatArray) -> FloatArray:
        where = np.log(np.maximum(size, 1e-9))
        known: FloatArray = np.exp(np.interp(where, np.log(self.sizes), np.log(self.seconds)))
        beyond = np.maximum(size / self.sizes[-1], 1.0)
        grown: FloatArray = known * beyond
        return grown

    def inside(self, size: FloatArray) -> BoolArray:
        return np.asarray((size >= self.sizes[0]) & (size <= self.sizes[-1]))


def line(sizes: FloatArray, seconds: FloatArray) -> Line:
    """The monotone line through points in any order; of repeated sizes the median counts."""
    order = np.argsort(sizes, kind="stable")
    unique, start = np.unique(sizes[order], return_index=True)
    values = seconds[order]
    if unique.size < sizes.size:
        values = np.array([np.median(group) for group in np.split(values, start[1:])])
    return Line(unique, monotone(values))


def monotone(seconds: FloatArray) -> FloatArray:
    """``seconds`` made non-decreasing along every axis, noise neither favoured up nor down: the
    geometric mean of the least monotone values above them and the largest below."""
    above, below = seconds, seconds
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    result: FloatArray = np.sqrt(above * below)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTable:
    """Lines over message bytes by kind (all_reduce ...) and number of GPUs.

    Where several implementations were measured (NCCL, a custom all-reduce in a CUDA graph), each
    size takes the faster one, as the engines choose by size.
    """

    lines: Mapping[tuple[str, int], tuple[Line, ...]] = field(default_factory=dict)

    def at(self, kind: str, gpus: int, message: FloatArray) -> tuple[FloatArray, BoolArray] | None:
        """Seconds, and whether the size was measured; None if nothing was for so many GPUs."""
        lines = self.lines.get((kind, gpus))
        if not lines:
            return None
        seconds = np.min([curve.at(message) for curve in lines], axis=0)
        inside = np.any([curve.inside(message) for curve in lines], axis=0)
        return seconds, inside
