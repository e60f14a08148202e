"""Draw samples from histograms."""

from __future__ import annotations

import numpy as np
import polars as pl

from simulation.arrays import FloatArray

SAMPLE = 1000  # values drawn from a histogram


def sample_of(histogram: pl.DataFrame, points: int = SAMPLE) -> FloatArray | None:
    """Return ``points`` values at evenly spaced ranks of a histogram; None if it is empty.

    ``histogram`` has the columns least, most and count of one quantity, over any number of bins.
    Within a bucket, values spread evenly on a logarithmic scale. The first bucket starts at a tenth
    of its bound, or at 1 if that is less. Values beyond the last finite bound are set to it, as no
    upper bound is known.
    """
    least, most, counts = _sum_buckets(histogram)
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


def _sum_buckets(histogram: pl.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bounds and counts of the non-empty buckets."""
    table = histogram.group_by("least", "most").agg(pl.col("count").sum())
    table = table.filter(pl.col("count") > 0).sort("most", "least")
    return table["least"].to_numpy(), table["most"].to_numpy(), table["count"].to_numpy()
