"""Draw random paths of demand, of all series together.

At each step, the amounts of a series are distributed by the quantiles of its forecast. A past
origin decides how steps and series depend on each other: a path repeats the ranks of its errors
among those of all past origins (Clark et al. 2004, Journal of Hydrometeorology 5, the Schaake
shuffle).
"""

from collections.abc import Sequence

import numpy as np

from forecasting.arrays import FloatArray
from forecasting.conformal import FEWEST_SCORES
from forecasting.demand import DemandSeries, Panel
from forecasting.forecast import PanelForecast, interpolate_quantiles
from forecasting.panel_forecaster import PanelForecaster


def panel_forecast(
    series: Sequence[DemandSeries], method: str, horizon_bins: int, steps: int
) -> PanelForecast:
    """Return the forecast of ``series``, which share their bins, as ``joint_paths`` needs it."""
    return PanelForecaster(method, horizon_bins).fit(Panel.of(series)).predict(steps)


def joint_paths(forecast: PanelForecast, count: int, seed: int) -> FloatArray:
    """Return ``count`` random paths of all series, ``[count, series, steps]``, in amounts per bin.

    Most paths repeat the errors of a past origin. At each step and series, an error has a rank
    among those of all past origins, and the path takes the quantile of that rank. Other paths have
    one rank at all steps and series. The share of these paths is the weight of the prior for
    growth, or larger if fewer than FEWEST_SCORES past origins are complete. Quantiles continue
    linearly beyond the outermost levels.
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

    Levels are uniform over the paths. A path has the ranks of the errors of one past origin, or one
    level at all steps and series.
    """
    scores = forecast.scores.swapaxes(0, 1)  # [origins, series, steps]
    is_complete = ~np.isnan(scores[:, :, -1]).all(axis=1)
    scores = scores[is_complete]
    one_rank_share = max(forecast.growth_share, 1.0 - len(scores) / FEWEST_SCORES)
    # Stratified: each path has its own part of (0, 1), so that a few paths are uniform too.
    one_level = (rng.permutation(count) + rng.random(count)) / count
    ranks = np.broadcast_to(one_level[:, None, None], (count, *scores.shape[1:])).copy()
    from_past = np.flatnonzero(rng.random(count) >= one_rank_share)
    if not from_past.size or not len(scores):
        return ranks
    # Each past origin is used equally often, in random order.
    repetitions = -(-from_past.size // len(scores))
    shuffled = [rng.permutation(len(scores)) for _ in range(repetitions)]
    origins = np.concatenate(shuffled)[: from_past.size]
    known = ~np.isnan(scores)
    # The position in the order of positions is the rank of each origin's score.
    order = np.argsort(np.argsort(scores, axis=0, kind="stable"), axis=0, kind="stable")
    known_count = known.sum(axis=0)
    # One position within the rank for the whole path, so that its series and steps move together.
    jitter = (rng.permutation(from_past.size) + rng.random(from_past.size)) / from_past.size
    drawn = (order[origins] + jitter[:, None, None]) / np.maximum(known_count, 1)
    # Where the score of an origin is not known, use the mean level of its path.
    is_known = known[origins]
    known_sum = np.where(is_known, drawn, 0.0).sum(axis=(1, 2))
    mean = known_sum / np.maximum(is_known.sum(axis=(1, 2)), 1)
    ranks[from_past] = np.where(is_known, drawn, mean[:, None, None])
    return ranks


def _amounts(levels: FloatArray, quantiles: FloatArray, ranks: FloatArray) -> FloatArray:
    """Return the amounts at ``ranks [count, steps]`` from ``quantiles [levels, steps]``."""
    steps = range(ranks.shape[1])
    amount_by_step = [
        interpolate_quantiles(levels, quantiles[:, [k]], ranks[:, k])[:, 0] for k in steps
    ]
    return np.stack(amount_by_step, axis=1)
