"""Quantiles from what past forecasts missed by, kept at their shares as errors change.

Split conformal prediction on log ratios of what came to what was forecast (Vovk et al. 2005; Lei
et al. 2018, JASA 113), with the levels followed online as in adaptive conformal inference (Gibbs
and Candes 2021, NeurIPS): where more came above a quantile than its share, its level rises, so
that over time the share above it is right however the errors drift.
"""

from __future__ import annotations

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray

# Of a series' mean, added to both sides of a ratio: amounts of a tenth of it and less say little of
# how far off larger ones are. A quiet night with ten times what was forecast would else have a busy
# noon's outermost quantile at ten times its forecast.
BESIDE = 0.1
STEP = 0.03  # of a level, for each past forecast
FEWEST = 20  # scores: the outermost levels, 0.05 and 0.95, need one in twenty beyond them


def scores(actual: FloatArray, forecast: FloatArray, scale: FloatArray) -> FloatArray:
    """Log ratios, NaN where nothing came to be compared; ``scale`` broadcasts against both."""
    return np.log((actual + BESIDE * scale) / (forecast + BESIDE * scale))


def quantiles(
    forecast: FloatArray,
    past: FloatArray,
    history: FloatArray,
    scale: FloatArray,
    levels: tuple[float, ...],
) -> FloatArray:
    """``forecast [s, c]`` at each level: [s, levels, c], rising with the level.

    ``past [s, o, c]`` are the scores of past origins, in order. Where a column has fewer than
    FEWEST of them, the ``history [s, n]`` itself joins them, as log ratios to its median: a band
    as wide as it. ``scale`` is ``[s, 1]``.
    """
    if not past.shape[1]:
        past = np.full((len(past), 1, past.shape[2]), np.nan)
    known = ~np.isnan(past)
    count = known.sum(axis=1)
    followed = _followed(past, known, np.array(levels))
    ordered = np.sort(past, axis=1)  # NaN last
    ratio = _at(ordered, count, followed)
    few = count < FEWEST
    for row, column in zip(*np.nonzero(few), strict=True):
        amounts = history[row, ~np.isnan(history[row])]
        if amounts.size:
            spread = scores(amounts, np.median(amounts), scale[row])
            sample = np.concatenate([past[row, known[row, :, column], column], spread])
            ratio[row, :, column] = np.quantile(sample, levels)
    amount = (forecast[:, None] + BESIDE * scale[:, None]) * np.exp(ratio)
    return np.maximum(0.0, amount - BESIDE * scale[:, None])


def _followed(past: FloatArray, known: BoolArray, levels: FloatArray) -> FloatArray:
    """The level of the sample at which each asked level's share was kept: [s, levels, c].

    The rank of a score among those before it says whether a quantile of a level, taken then, was
    exceeded.
    """
    series, _, columns = past.shape
    now = np.broadcast_to(levels[:, None], (series, len(levels), columns)).copy()
    # Origins first: each step then runs along memory.
    past, known = np.ascontiguousarray(past.swapaxes(0, 1)), known.swapaxes(0, 1)
    before: IntArray = np.cumsum(known, axis=0) - known
    ranked = known & (before >= FEWEST)
    for o in np.flatnonzero(ranked.any(axis=(1, 2))):
        below = np.add.reduce(past[:o] < past[o], axis=0, dtype=np.int32)
        rank = below / np.maximum(before[o], 1)
        now += np.where(ranked[o][:, None], STEP * (levels[:, None] - (rank[:, None] < now)), 0.0)
    return np.clip(np.sort(now, axis=1), 0.0, 1.0)


def _at(ordered: FloatArray, count: IntArray, levels: FloatArray) -> FloatArray:
    """Quantiles ``levels [s, l, c]`` of columns whose first ``count [s, c]`` rows are known."""
    last = np.maximum(count - 1, 0)[:, None]
    # of n scores the share (n + 1) level lies below the next one
    position = np.clip(levels * (count[:, None] + 1) - 1, 0, last)
    low = np.floor(position).astype(np.int64)
    left = np.take_along_axis(ordered, low, axis=1)
    right = np.take_along_axis(ordered, np.minimum(low + 1, last), axis=1)
    return np.where(count[:, None] > 0, left + (right - left) * (position - low), 0.0)
