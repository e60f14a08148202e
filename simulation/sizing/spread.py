"""Represent distributions of times as weighted points, for the closed forms of ``batch_queue``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy

from simulation.arrays import FloatArray

TAIL_POINTS = 28  # points of an exponential distribution
MAX_ADDED_POINTS = 96  # most points of each of two times to add
GATHERED_TO = 512  # points to which very many are reduced
TAIL_DECADES = 3.5  # reach of the tail: its last slice begins at the 1 - 10**-3.5 quantile


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A distribution of a time: values in seconds and the share of requests at each.

    Weights sum to 1, and values ascend.
    """

    values: FloatArray
    weights: FloatArray

    @property
    def mean(self) -> float:
        """Return the mean in seconds."""
        return float(self.values @ self.weights)

    def quantile(self, share: float) -> float:
        """Return the smallest value that ``share`` of the requests do not exceed; NaN if empty."""
        if not len(self.values):
            return float("nan")
        index = int(np.searchsorted(np.cumsum(self.weights), share - 1e-12))
        return float(self.values[min(index, len(self.values) - 1)])

    def share_within(self, limit: float | None) -> float:
        """Return the share of requests that do not exceed ``limit``; 1 without a limit."""
        if limit is None or not len(self.values):
            return 1.0
        return float(self.weights[: np.searchsorted(self.values, limit, "right")].sum())


def spread(values: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> Spread:
    """Return the distribution with these points, in any order and shape.

    Weights are normalised. Values and weights broadcast against each other.
    """
    points, shares = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if points.shape != shares.shape:
        points, shares = np.broadcast_arrays(points, shares)
    points, shares = points.ravel(), shares.ravel()
    order = np.argsort(points, kind="stable")
    total = shares.sum()
    return Spread(points[order], shares[order] / total if total > 0 else shares[order])


def unit_exponential() -> tuple[FloatArray, FloatArray]:
    """Return points and weights of an exponential distribution with the exact mean 1.

    Points are denser in the upper tail.
    """
    # Quantile levels of slices
    edges = np.append(1.0 - np.logspace(0.0, -TAIL_DECADES, TAIL_POINTS), 1.0)
    weights = np.diff(edges)
    # Share of the mean that values below each edge have.
    mean_below = scipy.special.gammainc(2.0, scipy.special.gammaincinv(1.0, edges))
    return np.diff(mean_below) / weights, weights


def thin(spread: Spread, points: int) -> Spread:
    """Return ``spread`` reduced to at most ``points`` points, half of them for its upper tenth."""
    if len(spread.values) <= points:
        return spread
    level = np.cumsum(spread.weights) - spread.weights / 2  # quantile level of each point
    # The group of a point is the last one that begins at or below its level. Rounding may put
    # points of almost no weight below the first edge.
    group = np.maximum(np.searchsorted(_edges(points), level, "right") - 1, 0)
    weights = np.bincount(group, spread.weights, points).astype(np.float64)
    sums = np.bincount(group, spread.weights * spread.values, points)
    used = weights > 0
    return Spread(sums[used] / weights[used], weights[used])


@cache
def _edges(points: int) -> FloatArray:
    """Return the lower quantile of each of ``points`` groups, half of them in the upper tenth."""
    half = points // 2
    tail = np.logspace(-1.0, -TAIL_DECADES, points - half)  # probability beyond each edge
    return np.append(np.linspace(0.0, 0.9, half, endpoint=False), 1.0 - tail)


def spread_of_many(values: FloatArray, weights: FloatArray) -> Spread:
    """Return the distribution of very many points without sorting.

    Its points are the means of the values in each of ``GATHERED_TO`` equal intervals.
    """
    low, high = float(values.min()), float(values.max())
    interval = ((values - low) * (GATHERED_TO / max(high - low, 1e-300))).astype(np.int64)
    interval = np.minimum(interval, GATHERED_TO - 1)  # the largest value belongs to the last one
    mass = np.bincount(interval, weights, GATHERED_TO)
    sums = np.bincount(interval, weights * values, GATHERED_TO)
    used = mass > 0
    return Spread(sums[used] / mass[used], mass[used] / mass.sum())


def shift(spread: Spread, seconds: float) -> Spread:
    """Return the distribution with ``seconds`` added to each value."""
    return Spread(spread.values + seconds, spread.weights)


def sum_of(first: Spread, second: Spread) -> Spread:
    """Return the distribution of the sum of two independent times."""
    # Adding zero must not thin the other spread.
    if len(first.values) == 1 and not first.values[0]:
        return second
    if len(second.values) == 1 and not second.values[0]:
        return first
    a, b = thin(first, MAX_ADDED_POINTS), thin(second, MAX_ADDED_POINTS)
    return spread(a.values[:, None] + b.values, a.weights[:, None] * b.weights)


def mix(parts: Sequence[tuple[float, Spread]]) -> Spread:
    """Return the mixture of the distributions ``parts``: pairs (weight, distribution)."""
    return spread(
        np.concatenate([part.values for _, part in parts]),
        np.concatenate([weight * part.weights for weight, part in parts]),
    )
