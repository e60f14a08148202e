"""Draw paths of all series of a forecast together.

The marginals are the quantiles of the forecast. The dependence over steps and series is that of the
errors of one past origin: the ranks of its errors among those of all past origins (Clark et al.
2004, Journal of Hydrometeorology 5, the Schaake shuffle).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forecasting.arrays import FloatArray
from forecasting.conformal import FEWEST_SCORES
from forecasting.demand import DemandSeries
from forecasting.forecast import PanelForecast, interpolate_quantiles
from forecasting.panel import Panel
from forecasting.panel_forecaster import PanelForecaster


def panel_forecast(
    series: Sequence[DemandSeries], method: str, horizon_bins: int, steps: int
) -> PanelForecast:
    """Forecast ``series`` on the same bins, for ``joint_paths``."""
    return PanelForecaster(method, horizon_bins).fit(Panel.of(series)).predict(steps)


def joint_paths(forecast: PanelForecast, count: int, seed: int) -> FloatArray:
    """Return ``count`` paths of all series, ``[count, series, steps]``, amounts per bin.

    Beyond the outermost levels, quantiles continue linearly. With less than a week of history, a
    share of the paths has the same rank at all steps and series, as the prior for growth has. All
    paths have where fewer than FEWEST_SCORES past origins are over, in proportion.
    """
    rng = np.random.default_rng(seed)
    ranks = _path_ranks(forecast, count, rng)
    levels = np.asarray(forecast.levels)
    paths = np.empty(ranks.shape)
    for s, quantiles in enumerate(forecast.quantiles):
        paths[:, s] = _amounts(levels, quantiles, ranks[:, s])
    return np.clip(paths, 0.0, forecast.limit)


def _path_ranks(forecast: PanelForecast, count: int, rng: np.random.Generator) -> FloatArray:
    """Return levels in (0, 1) of every path, ``[count, series, steps]``, uniform in each cell."""
    scores = forecast.scores.swapaxes(0, 1)
    over = ~np.isnan(scores[:, :, -1]).all(axis=1)
    scores = scores[over]
    share = max(forecast.growth_share, 1.0 - len(scores) / FEWEST_SCORES)
    # Stratified, so that few paths have the marginals too.
    within = (rng.permutation(count) + rng.random(count)) / count
    ranks = np.broadcast_to(within[:, None, None], (count, *scores.shape[1:])).copy()
    of_past = np.flatnonzero(rng.random(count) >= share)
    if not of_past.size or not len(scores):
        return ranks
    turns = -(-of_past.size // len(scores))
    origins = np.concatenate([rng.permutation(len(scores)) for _ in range(turns)])[: of_past.size]
    known = ~np.isnan(scores)
    order = np.argsort(np.argsort(scores, axis=0, kind="stable"), axis=0, kind="stable")
    number = known.sum(axis=0)
    # One position within the rank for the whole path keeps its cells together.
    jitter = (rng.permutation(of_past.size) + rng.random(of_past.size)) / of_past.size
    drawn = (order[origins] + jitter[:, None, None]) / np.maximum(number, 1)
    seen = known[origins]
    mean = np.where(seen, drawn, 0.0).sum(axis=(1, 2)) / np.maximum(seen.sum(axis=(1, 2)), 1)
    ranks[of_past] = np.where(seen, drawn, mean[:, None, None])
    return ranks


def _amounts(levels: FloatArray, quantiles: FloatArray, ranks: FloatArray) -> FloatArray:
    """Return the quantiles ``[levels, steps]`` at ``ranks [count, steps]``."""
    steps = range(ranks.shape[1])
    each = [interpolate_quantiles(levels, quantiles[:, [k]], ranks[:, k])[:, 0] for k in steps]
    return np.stack(each, axis=1)
