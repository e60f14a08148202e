"""Histograms read back: a sample of what they counted, and the share within a limit."""

from __future__ import annotations

import numpy as np
import polars as pl

from simulation.arrays import FloatArray

SAMPLE = 1000  # points that stand for a histogram


def sample_of(histogram: pl.DataFrame, points: int = SAMPLE) -> FloatArray | None:
    """``points`` values at even steps of the distribution that a histogram (columns least, most,
    count of one quantity, any number of bins) tells of; None where nothing was counted.

    Within a bucket values spread evenly on a logarithmic scale, in a first one from a tenth of its
    bound or from 1; what lies past the last finite bound is taken at it, as nothing says how far it
    went.
    """
    least, most, counts = _summed(histogram)
    if not counts.sum() > 0:
        return None
    upper = np.log(np.where(np.isfinite(most), most, np.maximum(least, 1e-9)))
    lower = np.log(np.where(least > 0, least, np.minimum(1.0, most / 10)))
    reached = np.cumsum(counts)
    ranks = (np.arange(points) + 0.5) / points * reached[-1]
    bucket = np.searchsorted(reached, ranks)
    inside = (ranks - (reached[bucket] - counts[bucket])) / counts[bucket]
    values = np.exp(lower[bucket] + inside * (upper[bucket] - lower[bucket]))
    return np.asarray(np.sort(values), np.float64)


def _summed(histogram: pl.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bounds and counts of the buckets in which something was counted."""
    table = histogram.group_by("least", "most").agg(pl.col("count").sum())
    table = table.filter(pl.col("count") > 0).sort("most", "least")
    return table["least"].to_numpy(), table["most"].to_numpy(), table["count"].to_numpy()
