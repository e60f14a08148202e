"""Curves that only rise, through measured points: isotonic values, shape-preserving in between."""

from __future__ import annotations

import numpy as np
import scipy

from simulation.arrays import FloatArray


def isotonic(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The non-decreasing sequence nearest to ``values`` in weighted least squares (pool adjacent
    violators; Ayer et al. 1955)."""
    levels: list[list[float]] = []  # value, weight, points
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        levels.append([value, weight, 1])
        while len(levels) > 1 and levels[-2][0] > levels[-1][0]:
            upper, lower = levels.pop(), levels[-1]
            total = lower[1] + upper[1]
            lower[0] = (lower[0] * lower[1] + upper[0] * upper[1]) / total
            lower[1], lower[2] = total, lower[2] + upper[2]
    return np.repeat([v for v, _, _ in levels], [int(n) for _, _, n in levels])


def rising(grid: FloatArray, weights: FloatArray, passes: int = 20) -> FloatArray:
    """``grid`` made non-decreasing along both axes: isotonic by turns, then the running maximum
    over what rounding leaves. ``weights`` is of the same shape."""
    result = grid.copy()
    for _ in range(passes):
        before = result.copy()
        for j in range(result.shape[1]):
            result[:, j] = isotonic(result[:, j], weights[:, j])
        for i in range(result.shape[0]):
            result[i] = isotonic(result[i], weights[i])
        if np.allclose(before, result, rtol=1e-9, atol=0):
            break
    return np.maximum.accumulate(np.maximum.accumulate(result, axis=0), axis=1)


def between(x: FloatArray, y: FloatArray, where: FloatArray) -> FloatArray:
    """``y`` at ``where``: monotone cubic (PCHIP) through log y over log x, so that what rises
    between two knots rises everywhere between them; ``where`` within the knots, all values
    positive."""
    if x.size == 1:
        return np.full(where.shape, y[0])
    curve = scipy.interpolate.PchipInterpolator(np.log(x), np.log(y))
    return np.asarray(np.exp(curve(np.log(where))), np.float64)


def finer(x: FloatArray, between_knots: int) -> FloatArray:
    """``x`` with ``between_knots`` geometric steps inside each interval; the knots stay exact."""
    if x.size == 1:
        return x.copy()
    share = np.arange(between_knots + 1) / (between_knots + 1)
    steps = x[:-1, None] * (x[1:, None] / x[:-1, None]) ** share
    return np.append(steps.ravel(), x[-1])
