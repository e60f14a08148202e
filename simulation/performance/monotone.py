"""Rising curves through measured points: isotonic values and monotone interpolation."""

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray

PASSES = 20  # of isotonic regression along both axes


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the non-decreasing sequence nearest to ``values`` in weighted least squares."""
    return np.asarray(scipy.optimize.isotonic_regression(values, weights=weights).x)


def rising(grid: FloatArray, weights: FloatArray) -> FloatArray:
    """Return ``grid [n, m]`` made non-decreasing along both axes.

    ``weights`` has the same shape. Isotonic regression alternates between the axes for at most
    PASSES passes. A running maximum then removes decreases that are left.
    """
    result = grid.copy()
    for _ in range(PASSES):
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
    """Return ``x`` with ``between_knots`` geometric steps in each interval; knots stay exact."""
    if x.size == 1:
        return x.copy()
    share = np.arange(between_knots + 1) / (between_knots + 1)
    steps = x[:-1, None] * (x[1:, None] / x[:-1, None]) ** share
    return np.append(steps.ravel(), x[-1])


def medians(keys: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the distinct rows of ``keys``, and the median and count of ``values`` for each."""
    distinct, group, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    middle = scipy.ndimage.median(values, group.ravel(), np.arange(counts.size))
    return distinct, np.asarray(middle), counts.astype(np.float64)


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
    distinct, middle, _ = medians(sizes, seconds)
    return Line(distinct, monotone(middle))


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
