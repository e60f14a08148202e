"""Rising curves through measured points: isotonic values and monotone interpolation."""

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray

MAX_PASSES = 20  # of isotonic regression along both axes


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the non-decreasing sequence nearest to ``values`` in weighted least squares."""
    return np.asarray(scipy.optimize.isotonic_regression(values, weights=weights).x)


def rising(grid: FloatArray, weights: FloatArray) -> FloatArray:
    """Return ``grid [n, m]`` made non-decreasing along both axes.

    ``weights`` has the same shape. Isotonic regression alternates between the axes for at most
    MAX_PASSES passes. A running maximum then removes decreases that are left.
    """
    result = grid.copy()
    for _ in range(MAX_PASSES):
        before = result.copy()
        for j in range(result.shape[1]):
            result[:, j] = isotonic(result[:, j], weights[:, j])
        for i in range(result.shape[0]):
            result[i] = isotonic(result[i], weights[i])
        if np.allclose(before, result, rtol=1e-9, atol=0):
            break
    return np.maximum.accumulate(np.maximum.accumulate(result, axis=0), axis=1)


def interpolate(x: FloatArray, y: FloatArray, where: FloatArray) -> FloatArray:
    """Return ``y`` at ``where`` by monotone cubics (PCHIP) of log y over log x.

    If y rises between two knots, it rises everywhere between them. All values must be positive, and
    ``where`` must be within the knots.
    """
    if x.size == 1:
        return np.full(where.shape, y[0])
    curve = scipy.interpolate.PchipInterpolator(np.log(x), np.log(y))
    return np.asarray(np.exp(curve(np.log(where))), np.float64)


def finer(x: FloatArray, between_knots: int) -> FloatArray:
    """Return the knots ``x`` with ``between_knots`` further ones in each interval.

    The new knots are spaced geometrically. Those of ``x`` stay exact.
    """
    share = np.arange(between_knots + 1) / (between_knots + 1)
    knots = x[:-1, None] * (x[1:, None] / x[:-1, None]) ** share
    return np.append(knots.ravel(), x[-1])


def medians(keys: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the distinct rows of ``keys``, and the median and the count of ``values`` for each.

    ``keys`` has shape ``[n]`` or ``[n, columns]``, and ``values`` shape ``[n]``.
    """
    distinct, group, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    middle = scipy.ndimage.median(values, group.ravel(), np.arange(counts.size))
    return distinct, np.asarray(middle), counts.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class TimeCurve:
    """Seconds of calls at ascending sizes, ``[n]`` each, interpolated in logarithms.

    A larger call never takes less time. A call below the first size takes the seconds of that size.
    Beyond the last size, seconds grow in proportion to the size.
    """

    sizes: FloatArray
    seconds: FloatArray

    def at(self, size: FloatArray) -> FloatArray:
        """Return the seconds at each size."""
        log_size = np.log(np.maximum(size, 1e-9))
        interpolated = np.exp(np.interp(log_size, np.log(self.sizes), np.log(self.seconds)))
        return np.asarray(interpolated * np.maximum(size / self.sizes[-1], 1.0))

    def inside(self, size: FloatArray) -> BoolArray:
        """Return the mask of sizes within the measured ones."""
        return np.asarray((size >= self.sizes[0]) & (size <= self.sizes[-1]))


def monotone_curve(sizes: FloatArray, seconds: FloatArray) -> TimeCurve:
    """Return the non-decreasing curve of ``seconds`` over ``sizes``, points in any order.

    Repeated sizes count once, with their median.
    """
    distinct, middle, _ = medians(sizes, seconds)
    return TimeCurve(distinct, monotone(middle))


def monotone(seconds: FloatArray) -> FloatArray:
    """Return ``seconds`` made non-decreasing along every axis.

    The result is the geometric mean of two bounds: the smallest monotone values at or above
    ``seconds``, and the largest at or below. So noise raises as much as it lowers.
    """
    above, below = seconds, seconds
    for axis in range(seconds.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        from_end = np.flip(below, axis)
        below = np.flip(np.minimum.accumulate(from_end, axis=axis), axis)
    result: FloatArray = np.sqrt(above * below)
    return result
