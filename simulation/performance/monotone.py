"""Rising curves through measured points: isotonic values and monotone interpolation."""

import numpy as np
import scipy

from simulation.arrays import FloatArray

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
