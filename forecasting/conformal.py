"""Quantiles of a forecast from the errors of past forecasts.

Split conformal prediction on log ratios of actual to forecast amounts (Vovk et al. 2005; Lei et
al. 2018, JASA 113). A score is such a log ratio. An origin is the time at which a past forecast
began. A level is the probability of a quantile. Levels adapt online as in adaptive conformal
inference (Gibbs and Candes 2021, NeurIPS): if a quantile was exceeded too often, a higher level is
read from past scores. So each quantile covers its share even while errors drift.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import scipy

from forecasting.arrays import FloatArray, IntArray

# Added to both sides of a ratio, as a share of the series' mean. Without it a quiet night with ten
# times its forecast would put the outermost quantile of a busy noon at ten times its forecast.
OFFSET = 0.1
FAR_OFFSET = 0.7  # beyond the window, where errors depend less on the time of day
# Forecasts whose amounts differ by more than this factor have errors of different kinds. Otherwise
# the return from an outage, at ten times its forecast, would put the band of every busy hour there.
COMPARABLE_FACTOR = 2.0
LEVEL_STEP = 0.03  # change of a level per past forecast
# Deviation of the logarithm of a day's demand over the day before's. Assumed: the median deviation
# of 20 public series that the bench does not use (docs/forecasting.md) is 0.28, and the quantiles
# 0.05 and 0.95 are at -0.44 and 0.38.
DAY_GROWTH = 0.25
# Observed ratios that the assumption counts as: the maximum likelihood of 16 clients of ServeGen.
PRIOR_RATIOS = 1.5
# Log amplitude of a daily rhythm that is not known yet: the median first harmonic of the 16 largest
# clients of ServeGen's m-large and m-mid and of Alibaba's GenTD26. The bench uses the totals of all
# clients, not these.
DAY_SWING = 0.43
# Days of history from which on methods are judged a day ahead: the second day repeats the first.
RHYTHM_DAYS = 2.0
PRIOR_DAYS = 7.0  # days of history from which on only the past gives quantiles
MAX_PRIOR_SCORES = 500
MAX_COMPARISONS = 1_000_000
FEWEST_SCORES = 20  # the outermost levels, 0.05 and 0.95, need one score in twenty beyond them


def log_ratio_scores(
    actual: FloatArray, forecast: FloatArray, scale: FloatArray, offset: float | FloatArray = OFFSET
) -> FloatArray:
    """Return the scores of forecasts: log ratios of actual to forecast amounts, NaN for gaps.

    ``scale`` is the mean amount per bin of each series. ``offset`` times ``scale`` is added to both
    amounts, so that zeros have a logarithm. All arrays broadcast.
    """
    return np.asarray(np.log((actual + offset * scale) / (forecast + offset * scale)))


def comparable_scores(
    past_scores: FloatArray, past_forecasts: FloatArray, forecast: FloatArray, scale: FloatArray
) -> FloatArray:
    """Return the ``past_scores`` of forecasts that are near ``forecast``, NaN for others.

    Near means within the factor COMPARABLE_FACTOR of ``forecast [series, column]``; a column is a
    step of the forecast, or its peak. ``past_forecasts`` are the amounts that were forecast, and
    both are ``[series, origin, column]``. A column with fewer than FEWEST_SCORES near forecasts
    keeps all scores. ``scale [series, 1]`` is the mean amount of each series.
    """
    ratio = log_ratio_scores(forecast[:, None], past_forecasts, scale[:, :, None])
    near = (np.abs(ratio) <= np.log(COMPARABLE_FACTOR)) & ~np.isnan(past_scores)
    has_few = near.sum(axis=1, keepdims=True) < FEWEST_SCORES
    return np.where(near | has_few, past_scores, np.nan)


def quantiles(
    forecast: FloatArray,
    past_scores: FloatArray,
    history: FloatArray,
    scale: FloatArray,
    levels: tuple[float, ...],
    *,
    adapt: bool = True,
    prior: FloatArray | None = None,
) -> FloatArray:
    """Return the quantiles of ``forecast [series, column]`` at each level.

    The result is ``[series, level, column]``. Columns are the steps of the forecast, or its peak.
    Quantiles rise with the level.

    - ``past_scores [series, origin, column]`` are the scores of past origins in order.
    - ``history [series, bin]`` are the observed amounts. A column with fewer than FEWEST_SCORES
      scores also uses the log ratios of these amounts to their median.
    - ``scale [series, 1]`` is the mean amount of each series.
    - ``prior [series, sample, column]`` are assumed log ratios that count as further scores.
    - ``adapt`` is False for forecasts further ahead than the window. Levels then do not adapt, and
      scores have FAR_OFFSET.
    """
    offset = OFFSET if adapt else FAR_OFFSET
    if not past_scores.shape[1]:  # no origin: one without known scores
        past_scores = np.full((len(past_scores), 1, past_scores.shape[2]), np.nan)
    if adapt:
        levels_to_read = _adapted_levels(past_scores, np.array(levels))
    else:
        shape = len(past_scores), 1, past_scores.shape[2]
        levels_to_read = np.tile(np.array(levels)[:, None], shape)
    # Log ratios of actual to forecast amounts at each level, [series, level, column].
    all_scores, by_sample = past_scores, forecast[:, None]
    if prior is not None:
        prior_scores = log_ratio_scores(
            by_sample * np.exp(prior), by_sample, scale[:, :, None], offset
        )
        all_scores = np.concatenate([past_scores, prior_scores], axis=1)
    log_ratio = _sample_quantiles(all_scores, levels_to_read)

    # Columns with few past scores also use the spread of the observed amounts.
    has_few = (~np.isnan(past_scores)).sum(axis=1) < FEWEST_SCORES  # [series, column]
    for row in np.flatnonzero(has_few.any(axis=1)):
        spread = _spread_scores(history[row], scale[row], offset)
        if spread.size:
            scores_of_few = all_scores[row][:, has_few[row]]
            log_ratio[row][:, has_few[row]] = _quantiles_with_history(scores_of_few, spread, levels)

    # From log ratios back to amounts. The scores are those of amounts with this offset added.
    added = offset * scale[:, None]
    return np.maximum(0.0, (forecast[:, None] + added) * np.exp(log_ratio) - added)


def _spread_scores(history: FloatArray, scale: FloatArray, offset: float) -> FloatArray:
    """Return the scores of the observed amounts ``history [bins]`` as forecasts of their median."""
    amounts = history[~np.isnan(history)]
    if not amounts.size:
        return amounts
    return log_ratio_scores(amounts, np.asarray(np.median(amounts)), scale, offset)


def _quantiles_with_history(
    scores: FloatArray, spread: FloatArray, levels: tuple[float, ...]
) -> FloatArray:
    """Return the quantiles of each column's known scores together with those in ``spread``.

    ``scores [origin, column]`` are those of one series; NaN: unknown. The result is ``[level,
    column]``. Columns with equally many known scores share one call.
    """
    result = np.empty((len(levels), scores.shape[1]))
    known_first = np.sort(scores, axis=0)  # NaN last
    count = (~np.isnan(scores)).sum(axis=0)
    for n in np.unique(count):
        same_count = np.flatnonzero(count == n)
        # Columns of one call, limited to save memory.
        columns_at_once = max(1, MAX_COMPARISONS // (int(n) + spread.size))
        for begin in range(0, same_count.size, columns_at_once):
            columns = same_count[begin : begin + columns_at_once]
            repeated_spread = np.repeat(spread[:, None], columns.size, axis=1)
            sample = np.concatenate([known_first[:n, columns], repeated_spread])
            result[:, columns] = np.quantile(sample, levels, axis=0)
    return result


def prior_share(days: float) -> float:
    """Return the weight of ``growth_prior`` with ``days`` of history: 1, falling to 0."""
    return max(0.0, 1.0 - days / PRIOR_DAYS)


def day_growth(values: FloatArray, day_bins: int) -> FloatArray:
    """Return the standard deviation of the log growth of demand from day to day, ``[series]``.

    ``values [series, bins]`` end with the last known bin. ``day_bins`` is the number of bins of a
    day, 0 if a day is not whole. The assumption DAY_GROWTH counts as PRIOR_RATIOS observed ratios
    (an inverse gamma prior).
    """
    demand = _mean_of_days(values, day_bins)
    today, yesterday = demand[:, 1:], demand[:, :-1]
    known = (today > 0) & (yesterday > 0)
    log_growth = np.log(np.where(known, today, 1.0) / np.where(known, yesterday, 1.0))
    # The mean square of observed ratios and of the assumed ones.
    squares = PRIOR_RATIOS * DAY_GROWTH**2 + (log_growth**2).sum(axis=1)
    return np.asarray(np.sqrt(squares / (PRIOR_RATIOS + known.sum(axis=1))))


def _mean_of_days(values: FloatArray, day_bins: int) -> FloatArray:
    """Return the mean of each whole day back from the end, ``[series, days]``; 0: unobserved."""
    series, bins = values.shape
    days = bins // day_bins if day_bins else 0
    by_day = values[:, bins - days * day_bins :].reshape(series, days, max(day_bins, 1))
    seen = ~np.isnan(by_day)
    return np.asarray(np.where(seen, by_day, 0.0).sum(axis=2) / np.maximum(seen.sum(axis=2), 1))


def growth_prior(
    history_days: float,
    past_count: int,
    growth: FloatArray,
    lead_days: FloatArray,
    rhythm_swing: float,
) -> FloatArray | None:
    """Return assumed scores to use while history is too short; None from PRIOR_DAYS of history on.

    They are ``[series, sample, column]``: log ratios of actual to forecast amounts. The ratios are
    quantiles of a normal distribution with the standard deviation ``growth [series]`` of a day's
    log growth. A daily rhythm of unknown phase with the log amplitude ``rhythm_swing`` is added.
    ``lead_days [column]`` are the days from the last known bin to each column. The number of
    samples rises with ``past_count``, the number of past forecasts, and falls with
    ``history_days``.
    """
    if history_days >= PRIOR_DAYS:
        return None
    # So many samples that their weight among the past scores is ``prior_share``.
    wanted_samples = past_count * (PRIOR_DAYS - history_days) / max(history_days, 1e-9)
    samples = int(np.clip(round(wanted_samples), FEWEST_SCORES, MAX_PRIOR_SCORES))
    standard_normal = scipy.special.ndtri((np.arange(samples) + 0.5) / samples)
    # The mean square change of a sinusoid of unknown phase.
    rhythm_variance = rhythm_swing**2 * (1.0 - np.cos(2.0 * np.pi * lead_days))
    deviation = np.sqrt(growth[:, None] ** 2 + rhythm_variance)  # [series, column]
    return np.asarray(deviation[:, None] * standard_normal[None, :, None], np.float64)


def _adapted_levels(past_scores: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the levels to read from past scores so that each quantile covers its share.

    ``levels`` are the shares to cover. The result begins with them, ``[series, level, column]``.
    After each past origin, a level moves down a little if the score of the origin was below the
    quantile at that level, else up. A score counts if enough earlier ones are known to rank it.
    ``past_scores`` are ``[series, origin, column]``; NaN: unknown.
    """
    series, _, columns = past_scores.shape
    adapted = np.broadcast_to(levels[:, None], (series, len(levels), columns)).copy()
    # All are [origin, series, column]: origins first, so that each step reads contiguous memory.
    past_scores = np.ascontiguousarray(past_scores.swapaxes(0, 1))
    known = ~np.isnan(past_scores)
    earlier_count: IntArray = np.cumsum(known, axis=0) - known
    can_rank = known & (earlier_count >= FEWEST_SCORES)
    share_below = _counts_below(past_scores) / np.maximum(earlier_count, 1)  # of earlier scores
    level_change = LEVEL_STEP * can_rank[:, :, None]  # [origin, series, 1, column]
    for origin in np.flatnonzero(can_rank.any(axis=(1, 2))):
        # Quantile tracking. A score is below the quantile if its rank is below the level.
        was_below = share_below[origin][:, None] < adapted
        adapted += level_change[origin] * (levels[:, None] - was_below)
    return np.clip(np.sort(adapted, axis=1), 0.0, 1.0)


def _counts_below(past_scores: FloatArray) -> IntArray:
    """Return how many scores of earlier origins are smaller than each score.

    ``past_scores`` and the result are ``[origin, series, column]``.
    """
    origins = len(past_scores)
    if origins * past_scores.size <= MAX_COMPARISONS:  # at once, which is faster for few series
        earlier = np.tri(origins, k=-1, dtype=bool)[:, :, None, None]
        return np.asarray(((past_scores[None] < past_scores[:, None]) & earlier).sum(axis=1))
    below = np.zeros(past_scores.shape, np.int64)
    for origin in range(1, origins):
        is_smaller = past_scores[:origin] < past_scores[origin]
        np.add.reduce(is_smaller, axis=0, out=below[origin])
    return below


def _sample_quantiles(scores: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the quantiles of the known scores of each series and column.

    ``scores`` are ``[series, score, column]``, NaN: unknown. ``levels`` and the result are
    ``[series, level, column]``. Without known scores, the result is 0.
    """
    ordered = np.sort(scores, axis=1)  # NaN last
    count = (~np.isnan(scores)).sum(axis=1)[:, None]
    last = np.maximum(count - 1, 0)
    # The quantile at a level is the score number level * (n + 1) of n, as in conformal prediction.
    position = np.clip(levels * (count + 1) - 1, 0, last)
    index = np.floor(position).astype(np.int64)
    lower = np.take_along_axis(ordered, index, axis=1)
    upper = np.take_along_axis(ordered, np.minimum(index + 1, last), axis=1)
    return np.where(count > 0, lower + (upper - lower) * (position - index), 0.0)


def widen_for_sampling(
    middle: FloatArray, quantiles: FloatArray, levels: Sequence[float], errors: FloatArray
) -> FloatArray:
    """Return ``quantiles [series, levels, steps]``, widened because demand is known from a sample.

    ``errors [series]`` is the standard error of sampling as a share of the forecast ``middle
    [series, steps]``. It is independent of the errors of past forecasts, so the squares of both
    deviations add up.
    """
    deviations = np.array([NormalDist().inv_cdf(level) for level in levels])[None, :, None]
    sampling_deviation = deviations * errors[:, None, None] * middle[:, None]
    forecast_deviation = np.abs(quantiles - middle[:, None])
    added = np.hypot(forecast_deviation, sampling_deviation) - forecast_deviation
    return np.asarray(np.maximum(quantiles + np.sign(deviations) * added, 0.0))
