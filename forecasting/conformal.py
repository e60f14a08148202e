"""Quantiles of a forecast from the errors of past forecasts.

Split conformal prediction on log ratios of actual to forecast amounts (Vovk et al. 2005; Lei et
al. 2018, JASA 113). Levels adapt online as in adaptive conformal inference (Gibbs and Candes 2021,
NeurIPS): a level rises when its quantile is exceeded too often, so that each quantile keeps its
share while errors drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray

# Added to both sides of a ratio, as a share of the series' mean. Without it a quiet night with ten
# times its forecast would put the outermost quantile of a busy noon at ten times its forecast.
OFFSET = 0.1
FAR_OFFSET = 0.7  # beyond the window, where errors depend less on the time of day
LEVEL_STEP = 0.03  # change of a level per past forecast
# Deviation of the logarithm of a day's demand over the day before's. Assumed: the median deviation
# of 20 public series that the bench does not use (docs/forecasting.md) is 0.28, and the quantiles
# 0.05 and 0.95 are at -0.44 and 0.38.
DAY_GROWTH = 0.25
# Observed ratios that the assumption counts as: the maximum likelihood of 16 clients of ServeGen.
PRIOR_RATIOS = 1.5
PRIOR_DAYS = 7.0  # of history, from which on the past alone gives quantiles
MOST_PRIOR_SCORES = 500
MOST_COMPARISONS = 1_000_000
FEWEST_SCORES = 20  # the outermost levels, 0.05 and 0.95, need one score in twenty beyond them


def log_ratio_scores(
    actual: FloatArray,
    forecast: FloatArray,
    scale: FloatArray,
    offset: float | FloatArray = OFFSET,
) -> FloatArray:
    """Return log ratios of actual to forecast amounts, NaN for gaps.

    ``scale`` is the mean of each series. It and ``offset`` broadcast against both.
    """
    return np.asarray(np.log((actual + offset * scale) / (forecast + offset * scale)))


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
    the shape ``[s, 1]``. ``prior [s, n]`` holds log ratios of demand that every column of a
    series has in addition. Without ``adapt``, beyond the window, levels are not adapted and scores
    have FAR_OFFSET.
    """
    offset = OFFSET if adapt else FAR_OFFSET
    if not past.shape[1]:
        past = np.full((len(past), 1, past.shape[2]), np.nan)
    observed = ~np.isnan(past)
    count = observed.sum(axis=1)
    few = count < FEWEST_SCORES
    adapted = np.tile(np.array(levels)[:, None], (len(past), 1, past.shape[2]))
    if adapt:
        adapted = _adapted_levels(past, observed, np.array(levels))
    if prior is not None:
        grown = forecast[:, None] * np.exp(prior)[:, :, None]
        added = log_ratio_scores(grown, forecast[:, None], scale[:, :, None], offset)
        past, observed = (
            np.concatenate([past, added], axis=1),
            np.pad(observed, ((0, 0), (0, prior.shape[1]), (0, 0)), constant_values=True),
        )
        count = count + prior.shape[1]
    ordered = np.sort(past, axis=1)  # NaN last
    ratio = _sample_quantiles(ordered, count, adapted)
    for row, column in zip(*np.nonzero(few), strict=True):
        amounts = history[row, ~np.isnan(history[row])]
        if amounts.size:
            spread = log_ratio_scores(amounts, np.median(amounts), scale[row], offset)
            sample = np.concatenate([past[row, observed[row, :, column], column], spread])
            ratio[row, :, column] = np.quantile(sample, levels)
    amount = (forecast[:, None] + offset * scale[:, None]) * np.exp(ratio)
    return np.maximum(0.0, amount - offset * scale[:, None])


def prior_share(days: float) -> float:
    """Return the share of the prior for growth with ``days`` of history."""
    return max(0.0, 1.0 - days / PRIOR_DAYS)


def day_growth(values: FloatArray, day: int) -> FloatArray:
    """Return the deviation of a day's logarithm of demand over the day before's, ``[s]``.

    ``values [s, bins]`` end with the last known bin. A day has ``day`` bins, 0 if unknown. The
    prior has an inverse gamma distribution: DAY_GROWTH counts as PRIOR_RATIOS observed ratios.
    """
    days = values.shape[1] // day if day else 0
    by_day = values[:, values.shape[1] - days * day :].reshape(len(values), days, max(day, 1))
    seen = ~np.isnan(by_day)
    total = np.where(seen, by_day, 0.0).sum(axis=2) / np.maximum(seen.sum(axis=2), 1)
    known = (total[:, 1:] > 0) & (total[:, :-1] > 0)
    ratio = np.where(known, total[:, 1:], 1.0) / np.where(known, total[:, :-1], 1.0)
    squares = PRIOR_RATIOS * DAY_GROWTH**2 + (np.log(ratio) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(squares / (PRIOR_RATIOS + known.sum(axis=1))))


def growth_prior(days: float, count: int, deviation: FloatArray) -> FloatArray | None:
    """Return prior scores for a history of ``days`` with ``count`` past forecasts, ``[s, n]``.

    They are the quantiles of a normal distribution of the growth from a day to the next, with
    ``deviation [s]``. Their share falls from 1 at no history to 0 at PRIOR_DAYS, where the result
    is None.
    """
    if days >= PRIOR_DAYS:
        return None
    wanted = count * (PRIOR_DAYS - days) / max(days, 1e-9)
    n = int(np.clip(round(wanted), FEWEST_SCORES, MOST_PRIOR_SCORES))
    normal = scipy.special.ndtri((np.arange(n) + 0.5) / n)
    return np.asarray(deviation[:, None] * normal, np.float64)


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
    share = _counts_below(past) / np.maximum(before, 1)
    steps = LEVEL_STEP * ranked[:, :, None]
    for o in np.flatnonzero(ranked.any(axis=(1, 2))):
        adapted += steps[o] * (levels[:, None] - (share[o][:, None] < adapted))
    return np.clip(np.sort(adapted, axis=1), 0.0, 1.0)


def _counts_below(past: FloatArray) -> IntArray:
    """Return how many scores before each one of ``past [o, s, c]`` are smaller."""
    origins = len(past)
    if origins * past.size <= MOST_COMPARISONS:  # at once, which is faster for few series
        earlier = np.tri(origins, k=-1, dtype=bool)[:, :, None, None]
        return np.asarray(((past[None] < past[:, None]) & earlier).sum(axis=1))
    below = np.zeros(past.shape, np.int64)
    for o in range(1, origins):
        np.add.reduce(past[:o] < past[o], axis=0, out=below[o])
    return below


def _sample_quantiles(ordered: FloatArray, count: IntArray, levels: FloatArray) -> FloatArray:
    """Return quantiles ``levels [s, l, c]`` of columns that have ``count [s, c]`` known rows."""
    last = np.maximum(count - 1, 0)[:, None]
    # Of n scores the share (n + 1) level lies below the next one.
    position = np.clip(levels * (count[:, None] + 1) - 1, 0, last)
    low = np.floor(position).astype(np.int64)
    left = np.take_along_axis(ordered, low, axis=1)
    right = np.take_along_axis(ordered, np.minimum(low + 1, last), axis=1)
    return np.where(count[:, None] > 0, left + (right - left) * (position - low), 0.0)


def widened(
    middle: FloatArray, quantiles: FloatArray, levels: Sequence[float], errors: FloatArray
) -> FloatArray:
    """Return quantiles ``[series, levels, steps]`` that include an error of the level.

    ``errors [series]`` is the standard error over ``middle [series, steps]``. It is independent of
    the errors of past forecasts, so that squares add up.
    """
    z = np.array([NormalDist().inv_cdf(level) for level in levels])[None, :, None]
    further = z * errors[:, None, None] * middle[:, None]
    away = np.abs(quantiles - middle[:, None])
    return np.asarray(np.maximum(quantiles + np.sign(z) * (np.hypot(away, further) - away), 0.0))
