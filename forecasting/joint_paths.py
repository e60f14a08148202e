"""Draw random paths of demand, of all series together.

A path is one possible course of the demand. At each step, the amounts of all paths of a series have
the quantiles of its forecast. An origin is the time at which a past forecast began. Its errors
decide how steps and series depend on each other: a path repeats the ranks of these errors among
those of all past origins (Clark et al. 2004, Journal of Hydrometeorology 5, the Schaake shuffle).
"""

from collections.abc import Sequence

import numpy as np
import scipy

from forecasting.arrays import FloatArray, IntArray
from forecasting.conformal import FEWEST_SCORES
from forecasting.demand import DemandSeries, Panel
from forecasting.forecast import PanelForecast, interpolate_quantiles
from forecasting.harmonics import DAY_S
from forecasting.panel_forecaster import PanelForecaster


def panel_forecast(
    series: Sequence[DemandSeries], method: str, horizon_bins: int, steps: int
) -> PanelForecast:
    """Return the forecast of ``series``, which have equal bins, for ``joint_paths``."""
    return PanelForecaster(method, horizon_bins).fit(Panel.of(series)).predict(steps)


def joint_paths(forecast: PanelForecast, count: int, seed: int) -> FloatArray:
    """Return ``count`` random paths of all series, ``[count, series, steps]``, in amounts per bin.

    Most paths repeat the errors of a past origin (the time at which a forecast began). At each step
    and series, an error has a rank among those of all past origins, and the path takes the quantile
    of that rank. Other paths follow the prior for growth (see ``_prior_ranks``). Their share is the
    weight of that prior, or larger if fewer than FEWEST_SCORES past origins are complete. Quantiles
    continue linearly beyond the outermost levels.
    """
    rng = np.random.default_rng(seed)
    ranks = _path_ranks(forecast, count, rng)
    levels = np.asarray(forecast.levels)
    paths = np.empty(ranks.shape)
    for s, quantiles in enumerate(forecast.quantiles):
        paths[:, s] = _amounts(levels, quantiles, ranks[:, s])
    return np.clip(paths, 0.0, forecast.limit)


def _path_ranks(forecast: PanelForecast, count: int, rng: np.random.Generator) -> FloatArray:
    """Return the quantile level of each path at each step, ``[count, series, steps]``, in (0, 1).

    Levels are uniform over the paths. A path has the ranks of the errors of one past origin, or
    those of the prior for growth.
    """
    scores = forecast.scores.swapaxes(0, 1)  # [origins, series, steps]
    is_complete = ~np.isnan(scores[:, :, -1]).all(axis=1)
    scores = scores[is_complete]
    prior_share = max(forecast.growth_share, 1.0 - len(scores) / FEWEST_SCORES)
    ranks = _prior_ranks(forecast, count, rng)
    from_past = np.flatnonzero(rng.random(count) >= prior_share)
    if from_past.size and len(scores):
        ranks[from_past] = _past_ranks(scores, from_past.size, rng)
    return ranks


def _past_ranks(scores: FloatArray, count: int, rng: np.random.Generator) -> FloatArray:
    """Return the quantile levels of paths from past scores, ``[count, series, steps]``.

    Each path has the ranks of one origin of ``scores [origins, series, steps]``. Where that score
    is NaN, the level is the mean of the path.
    """
    # The origin of each path. Each past origin is used equally often, in random order.
    repetitions = -(-count // len(scores))
    shuffled = [rng.permutation(len(scores)) for _ in range(repetitions)]
    origin = np.concatenate(shuffled)[:count]
    # Rank of that origin's score among those of all origins, as a level. The position within the
    # rank is one for the whole path, so that its series and steps move together.
    known = ~np.isnan(scores)
    jitter = _stratified_uniform(count, rng)[:, None, None]
    level = (_ranks_over_rows(scores)[origin] + jitter) / np.maximum(known.sum(axis=0), 1)
    is_known = known[origin]
    known_sum = np.where(is_known, level, 0.0).sum(axis=(1, 2))
    mean: FloatArray = known_sum / np.maximum(is_known.sum(axis=(1, 2)), 1)
    return np.where(is_known, level, mean[:, None, None])


def _stratified_uniform(count: int, rng: np.random.Generator) -> FloatArray:
    """Return ``count`` random numbers, one in each of as many equal parts of (0, 1)."""
    return np.asarray((rng.permutation(count) + rng.random(count)) / count)


def _ranks_over_rows(values: FloatArray) -> IntArray:
    """Return the rank of each value among those of all rows, from 0; NaN has the last ranks."""
    order = np.argsort(values, axis=0, kind="stable")
    return np.argsort(order, axis=0, kind="stable")  # the inverse of the order


def _prior_ranks(forecast: PanelForecast, count: int, rng: np.random.Generator) -> FloatArray:
    """Return the quantile level of each path at each step by the prior for growth.

    The result is ``[count, series, steps]``. With a known daily rhythm, a path has one
    level at all steps and series. Otherwise all series of a path also follow a daily
    sinusoid of random phase from the last known bin on.
    """
    series, steps = forecast.mean.shape
    level_of_path = _stratified_uniform(count, rng)[:, None, None]  # of a path
    if not forecast.swing:
        return np.broadcast_to(level_of_path, (count, series, steps)).copy()
    phase = 2 * np.pi * rng.random((count, 1, 1))
    angle = 2 * np.pi * (np.arange(steps) + 0.5) * forecast.bin_s / DAY_S
    rhythm = forecast.swing * (np.sin(angle + phase) - np.sin(phase))
    log_ratio = forecast.growth[:, None] * scipy.special.ndtri(level_of_path) + rhythm
    return np.asarray((_ranks_over_rows(log_ratio) + rng.random((count, 1, 1))) / count)


def _amounts(levels: FloatArray, quantiles: FloatArray, ranks: FloatArray) -> FloatArray:
    """Return the amounts at ``ranks [count, steps]`` from ``quantiles [levels, steps]``."""
    amounts = np.empty(ranks.shape)
    for step in range(ranks.shape[1]):
        quantiles_of_step = quantiles[:, [step]]
        amounts[:, step] = interpolate_quantiles(levels, quantiles_of_step, ranks[:, step])[:, 0]
    return amounts
