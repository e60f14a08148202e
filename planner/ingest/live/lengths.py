"""Histograms read back: a sample of what they counted, and the share within a limit."""

from __future__ import annotations

import numpy as np
import polars as pl

from simulation.arrays import FloatArray

SAMPLE = 1000  # points that stand for a histogram


def sample_of(most: FloatArray, counts: FloatArray, points: int = SAMPLE) -> FloatArray:
    """``points`` values at even steps of the distribution that ``counts [buckets]`` in buckets up
    to ``most [buckets]`` (ascending) tell of.

    Within a bucket values spread evenly on a logarithmic scale, from 1 in a first one; what lies
    past the last finite bound is taken at it, as nothing says how far it went.
    """
    bounds = np.array(most, np.float64)
    finite = bounds[np.isfinite(bounds)]
    bounds[~np.isfinite(bounds)] = finite[-1] if finite.size else 1.0
    upper = np.log(np.maximum(bounds, 1e-9))
    lower = np.concatenate([[min(0.0, float(upper[0]))], upper[:-1]])
    reached = np.cumsum(counts)
    total = reached[-1]
    if not total > 0:
        raise ValueError("an empty histogram has no sample")
    at = (np.arange(points) + 0.5) / points * total
    bucket = np.searchsorted(reached, at)
    inside = (at - (reached[bucket] - counts[bucket])) / counts[bucket]
    values = np.exp(lower[bucket] + inside * (upper[bucket] - lower[bucket]))
    return np.asarray(values, np.float64)


def quantile(histogram: pl.DataFrame, share: float) -> float | None:
    """The value that ``share`` of the counted do not exceed; None where nothing was counted.
    ``histogram`` has columns most and count, of one quantity, any number of bins."""
    most, counts = _summed(histogram)
    if not counts.sum() > 0:
        return None
    points = sample_of(most, counts)
    return float(np.quantile(points, share))


def share_within(histogram: pl.DataFrame, limit: float) -> float | None:
    """The share of the counted within ``limit``, straight lines between bounds; None of none."""
    most, counts = _summed(histogram)
    total = counts.sum()
    if not total > 0:
        return None
    finite = np.isfinite(most)
    at = np.concatenate([[0.0], most[finite]])
    reached = np.concatenate([[0.0], np.cumsum(counts)[finite]])
    return float(np.interp(limit, at, reached) / total)


def _summed(histogram: pl.DataFrame) -> tuple[FloatArray, FloatArray]:
    table = histogram.group_by("most").agg(pl.col("count").sum()).sort("most")
    return table["most"].to_numpy(), table["count"].to_numpy()
