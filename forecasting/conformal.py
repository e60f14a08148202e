"""Quantiles of a forecast from the errors of past forecasts.

Split conformal prediction on log ratios of actual to forecast amounts (Vovk et al. 2005; Lei et
al. 2018, JASA 113). Levels adapt online as in adaptive conformal inference (Gibbs and Candes 2021,
NeurIPS): a level rises when its quantile is exceeded too often, so that each quantile keeps its
share while errors drift.
"""

from __future__ import annotations

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray

# Added to both sides of a ratio, as a share of the series' mean. Without it a quiet night with ten
# times its forecast would put the outermost quantile of a busy noon at ten times its forecast.
OFFSET = 0.1
LEVEL_STEP = 0.03  # change of a level per past forecast
# Deviation of the logarithm of a day's demand over the day before's. Assumed: the median deviation
# of 20 public series that the bench does not use (docs/forecasting.md) is 0.28, and the quantiles
# 0.05 and 0.95 are at -0.44 and 0.38.
DAY_GROWTH = 0.25
PRIOR_DAYS = 7.0  # of history, from which on the past alone gives quantiles
MOST_PRIOR_SCORES = 500
FEWEST_SCORES = 20  # the outermost levels, 0.05 and 0.95, need one score in twenty beyond them


def log_ratio_scores(actual: FloatArray, forecast: FloatArray, scale: FloatArray) -> FloatArray:
    """Return log ratios of actual to forecast amounts, NaN for gaps.

    ``scale`` is the mean of each series and broadcasts against both.
    """
    return np.log((actual + OFFSET * scale) / (forecast + OFFSET * scale))


def quantiles(
    forecast: FloatArray,
    past: FloatArray,
    history: FloatArray,
    scale: FloatArray,
    levels: tuple[float, ...],
    *,
    adapt: bool = True,
    prior: FloatArray | None = None,
) -> FloatArray:
    """Return ``forecast [s, c]`` at each level: ``[s, levels, c]``, rising with the level.

    ``past [s, o, c]`` holds the scores of past origins in order. A column with fewer than
    FEWEST_SCORES of them also uses ``history [s, n]``, as log ratios to its median. ``scale`` has
    the shape ``[s, 1]``. Without ``adapt``, levels are not adapted. ``prior [n]`` holds scores that
    every column has in addition.
    """
    if not past.shape[1]:
        past = np.full((len(past), 1, past.shape[2]), np.nan)
    observed = ~np.isnan(past)
    count = observed.sum(axis=1)
    few = count < FEWEST_SCORES
    adapted = np.tile(np.array(levels)[:, None], (len(past), 1, past.shape[2]))
    if adapt:
        adapted = _adapted_levels(past, observed, np.array(levels))
    if prior is not None:
        added = np.broadcast_to(prior[:, None], (len(past), len(prior), past.shape[2]))
        past, observed = (
            np.concatenate([past, added], axis=1),
            np.pad(observed, ((0, 0), (0, len(prior)), (0, 0)), constant_values=True),
        )
        count = count + len(prior)
    ordered = np.sort(past, axis=1)  # NaN last
    ratio = _sample_quantiles(ordered, count, adapted)
    for row, column in zip(*np.nonzero(few), strict=True):
        amounts = history[row, ~np.isnan(history[row])]
        if amounts.size:
            spread = log_ratio_scores(amounts, np.median(amounts), scale[row])
            sample = np.concatenate([past[row, observed[row, :, column], column], spread])
            ratio[row, :, column] = np.quantile(sample, levels)
    amount = (forecast[:, None] + OFFSET * scale[:, None]) * np.exp(ratio)
    return np.maximum(0.0, amount - OFFSET * scale[:, None])


def prior_share(days: float) -> float:
    """Return the share of the prior for growth with ``days`` of history."""
    return max(0.0, 1.0 - days / PRIOR_DAYS)


def growth_prior(days: float, count: int) -> FloatArray | None:
    """Return prior scores for a history of ``days`` with ``count`` past forecasts, ``[n]``.

    They are the quantiles of a normal distribution of the growth from a day to the next. Their
    share falls from 1 at no history to 0 at PRIOR_DAYS, where the result is None.
    """
    if days >= PRIOR_DAYS:
        return None
    wanted = count * (PRIOR_DAYS - days) / max(days, 1e-9)
    n = int(np.clip(round(wanted), FEWEST_SCORES, MOST_PRIOR_SCORES))
    return np.asarray(DAY_GROWTH * scipy.special.ndtri((np.arange(n) + 0.5) / n), np.float64)


def _adapted_levels(past: FloatArray, observed: BoolArray, levels: FloatArray) -> FloatArray:
    """Return the sample levels that kept the share of each level: ``[s, levels, c]``.

    The rank of a score among those before it shows whether the quantile was exceeded.
    """
    series, _, columns = past.shape
    adapted = np.broadcast_to(levels[:, None], (series, len(levels), columns)).copy()
    # Origins first, so that each step reads contiguous memory.
    past, observed = np.ascontiguousarray(past.swapaxes(0, 1)), observed.swapaxes(0, 1)
    before: IntArray = np.cumsum(observed, axis=0) - observed
    ranked = observed & (before >= FEWEST_SCORES)
    for o in np.flatnonzero(ranked.any(axis=(1, 2))):
        below = np.add.reduce(past[:o] < past[o], axis=0, dtype=np.int32)
        rank = below / np.maximum(before[o], 1)
        change = LEVEL_STEP * (levels[:, None] - (rank[:, None] < adapted))
        adapted += np.where(ranked[o][:, None], change, 0.0)
    return np.clip(np.sort(adapted, axis=1), 0.0, 1.0)


def _sample_quantiles(ordered: FloatArray, count: IntArray, levels: FloatArray) -> FloatArray:
    """Return quantiles ``levels [s, l, c]`` of columns that have ``count [s, c]`` known rows."""
    last = np.maximum(count - 1, 0)[:, None]
    # Of n scores the share (n + 1) level lies below the next one.
    position = np.clip(levels * (count[:, None] + 1) - 1, 0, last)
    low = np.floor(position).astype(np.int64)
    left = np.take_along_axis(ordered, low, axis=1)
    right = np.take_along_axis(ordered, np.minimum(low + 1, last), axis=1)
    return np.where(count[:, None] > 0, left + (right - left) * (position - low), 0.0)
