"""Judge forecasts of the next day by pinball loss, against three baselines with quantiles.

From every sixth hour of a series' last half, with the bins known by then. Baselines are paths plus
the quantiles of their own past errors at the same lead time, from hourly origins:

- ``last-week``: last week repeated, the last day where less than LAST_WEEK_FROM_S is known;
- ``shape-times-level``: last week times the last day's total over the same day's a week before;
- ``holt-winters``: statsmodels' exponential smoothing with an additive season of a week from two
  weeks on, else of a day, parameters estimated again every week.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, forward_fill
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.naive import fill_by_phase
from forecasting.rules.registry import AUTO

HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
EVERY_S = 6 * HOUR_S  # between origins
LAST_WEEK_FROM_S = WEEK_S + 2 * DAY_S  # then a day of errors of last week is known at each lead
LEVELS = (0.5, 0.75, 0.9, 0.95)
LARGEST_LEVEL = 5.0  # of the last day over the same day a week before

Paths = Callable[[IntArray, int], FloatArray]  # origins and steps: [o, steps]
Baseline = Callable[[FloatArray, float], tuple[int, Paths]]  # bins: the first origin, its paths


@dataclass(frozen=True, slots=True)
class DayAhead:
    """Figures of one series. Pinball losses are means over LEVELS and bins over mean demand."""

    origins: int
    pinball: float  # of auto
    best: str  # baseline
    over_best: float
    baselines: dict[str, float]
    covered: dict[str, float]  # share of bins at or below auto's quantile, by level
    coverage80: float
    cpu_seconds: float  # of auto: the fit, and all updates and forecasts


def judge_day_ahead(values: FloatArray, bin_s: float) -> DayAhead | None:
    """Judge ``auto`` on ``values [bins]``; None if the last half is shorter than a day."""
    day, hour = round(DAY_S / bin_s), max(1, round(HOUR_S / bin_s))
    half = -(-(values.size // 2) // hour) * hour
    origins = np.arange(half, values.size - day + 1, max(1, round(EVERY_S / bin_s)))
    if not origins.size:
        return None
    actual = values[origins[:, None] + np.arange(day)]
    began = time.process_time()
    levels, quantiles = auto_quantiles(values, bin_s, origins, day)
    cpu_s = time.process_time() - began
    wanted = quantiles[:, [levels.index(level) for level in LEVELS]]
    tried: dict[str, Baseline] = {
        "last-week": last_week,
        "shape-times-level": shape_times_level,
        "holt-winters": HoltWinters(),
    }
    baselines = {
        name: pinball(actual, baseline_quantiles(baseline, values, bin_s, origins))
        for name, baseline in tried.items()
    }
    best = min(baselines, key=lambda name: baselines[name])
    loss = pinball(actual, wanted)
    low, high = quantiles[:, levels.index(0.1)], quantiles[:, levels.index(0.9)]
    seen = ~np.isnan(actual)
    return DayAhead(
        origins=len(origins),
        pinball=loss,
        best=best,
        over_best=loss / baselines[best],
        baselines=baselines,
        covered={
            f"{level:g}": float((actual <= wanted[:, i])[seen].mean())
            for i, level in enumerate(LEVELS)
        },
        coverage80=float(((low <= actual) & (actual <= high))[seen].mean()),
        cpu_seconds=cpu_s,
    )


def pinball(actual: FloatArray, quantiles: FloatArray) -> float:
    """Return the mean pinball loss at LEVELS over mean demand.

    ``actual`` has the shape ``[o, steps]``, NaN for gaps, and ``quantiles`` ``[o, LEVELS, steps]``.
    """
    over = actual[:, None] - quantiles
    level = np.array(LEVELS)[:, None]
    return float(np.nanmean(np.maximum(level * over, (level - 1) * over)) / np.nanmean(actual))


def auto_quantiles(
    values: FloatArray, bin_s: float, origins: IntArray, steps: int
) -> tuple[tuple[float, ...], FloatArray]:
    """Return levels and quantiles ``[o, levels, steps]``, judged on windows of an hour."""
    hour = max(1, round(HOUR_S / bin_s))
    batch = PanelForecaster(AUTO, hour).fit(Panel(0.0, bin_s, values[None, : origins[0]]))
    seen, quantiles, levels = int(origins[0]), [], ()
    for origin in origins.tolist():
        if origin > seen:
            batch.update(values[None, seen:origin])
            seen = origin
        predicted = batch.predict(steps)
        levels = predicted.levels
        quantiles.append(predicted.quantiles[0])
    return levels, np.stack(quantiles)


def baseline_quantiles(
    baseline: Baseline, values: FloatArray, bin_s: float, origins: IntArray
) -> FloatArray:
    """Return the path of the next day plus quantiles of its errors, ``[o, LEVELS, steps]``."""
    steps = round(DAY_S / bin_s)
    hour = max(1, round(HOUR_S / bin_s))
    result = np.empty((len(origins), len(LEVELS), steps))
    for i, origin in enumerate(origins.tolist()):
        known = values[:origin]
        first, paths = baseline(known, bin_s)
        path = paths(np.array([origin]), steps)[0]
        past = np.arange(origin - hour, first - 1, -hour)
        after = np.concatenate([known, np.full(steps, np.nan)])
        errors = after[past[:, None] + np.arange(steps)] - paths(past, steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a lead without any error
            added = np.nan_to_num(np.nanquantile(errors, LEVELS, axis=0))
        result[i] = np.maximum(0.0, path + added)
    return result


def _season(known: FloatArray, bin_s: float) -> int:
    return round((WEEK_S if known.size * bin_s >= LAST_WEEK_FROM_S else DAY_S) / bin_s)


def last_week(known: FloatArray, bin_s: float) -> tuple[int, Paths]:
    """Return the first origin, and the paths that repeat the last season."""
    season = _season(known, bin_s)
    filled = forward_fill(fill_by_phase(known[None], season))[0]

    def paths(origins: IntArray, steps: int) -> FloatArray:
        ahead = np.arange(steps)
        return filled[origins[:, None] + ahead - season * (1 + ahead // season)]

    return season, paths


def shape_times_level(known: FloatArray, bin_s: float) -> tuple[int, Paths]:
    season, day = _season(known, bin_s), round(DAY_S / bin_s)
    first, repeated = last_week(known, bin_s)
    if season == day:  # the last day has its own level
        return first, repeated
    filled = forward_fill(fill_by_phase(known[None], season))[0]
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(filled))])

    def paths(origins: IntArray, steps: int) -> FloatArray:
        last = sums[origins] - sums[origins - day]
        before = sums[origins - season] - sums[origins - season - day]
        level = np.where(before > 0, last / np.where(before > 0, before, 1.0), 1.0)
        return repeated(origins, steps) * np.minimum(level, LARGEST_LEVEL)[:, None]

    return season + day, paths


class HoltWinters:
    """Estimate the two gains once a week, then follow."""

    def __init__(self) -> None:
        self.fitted = 0
        self.season = 0
        self.gains: dict[str, float] = {}

    def __call__(self, known: FloatArray, bin_s: float) -> tuple[int, Paths]:
        week, day = round(WEEK_S / bin_s), round(DAY_S / bin_s)
        season = week if known.size >= 2 * week else day
        filled = np.nan_to_num(forward_fill(fill_by_phase(known[None], season))[0])
        model = ExponentialSmoothing(
            filled, seasonal="add", seasonal_periods=season, initialization_method="heuristic"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its optimiser
            if season != self.season or known.size - self.fitted >= week:
                found = model.fit().params
                self.gains = {
                    name: float(found[name]) for name in ("smoothing_level", "smoothing_seasonal")
                }
                self.season, self.fitted = season, known.size
            fit = model.fit(**self.gains, optimized=False)
        level, seasonal = np.asarray(fit.level), np.asarray(fit.season)

        def paths(origins: IntArray, steps: int) -> FloatArray:
            ahead = np.arange(steps)
            phase = origins[:, None] + ahead - season * (1 + ahead // season)
            return np.maximum(0.0, level[origins - 1][:, None] + seasonal[phase])

        return 2 * season if known.size >= 4 * season else season, paths
