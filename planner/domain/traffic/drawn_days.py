"""Draw days from the joint distribution of the forecast.

Each path has the demand of every series in every bin of a window. Its deviation from the forecast
is that of one past day, for all series and bins together. So errors stay together over hours,
models and regions, and the paths contain the growth and the uncertainty of the forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries
from forecasting.errors import ForecastError
from forecasting.forecast import Forecast
from forecasting.selection import forecaster
from planner.domain.random_streams import (
    Stream,
    generator,
)
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.traffic import (
    AMOUNTS,
    Traffic,
    merge,
)
from planner.domain.traffic.window import (
    DAY_S,
    Window,
)
from simulation.arrays import FloatArray, IntArray
from simulation.synthesis import EmpiricalLengths
from simulation.trace import Trace

PAST_DAYS = 14  # most past days whose forecast errors are resampled
# Prior for the logarithm of a day's requests over its forecast, worth PRIOR_DAYS observed days.
# Assumed: the total of a day deviates by 15% (standard deviation) from a day-ahead forecast.
PRIOR_SPREAD = 0.15
PRIOR_DAYS = 3
MOST = 4.0  # largest factor of one bin on its forecast


@dataclass(frozen=True, slots=True, eq=False)
class DrawnDays:
    """Paths of demand over a window and its lead time, in requests.

    ``requests`` has the shape ``[paths, keys, bins]``, in bins of ``Demand.bin_s`` from
    ``start_s`` on. ``days`` is the number of past days whose errors were known.
    """

    start_s: float
    requests: FloatArray
    days: int


def draw_days(traffic: Traffic, window: Window, method: str, paths: int, seed: int) -> DrawnDays:
    """Return ``paths`` equally likely paths of demand from the first decision of ``window`` on.

    The total of a day deviates from the forecast by a log-normal factor. Its spread combines the
    errors of past days with a prior (``PRIOR_SPREAD``). The factors are stratified, so few paths
    cover the distribution. Bins deviate from the total as on one past day, drawn at random.
    """
    demand = traffic.demand
    start_s = float(window.origins_s[0])
    bins = round((window.end_s - start_s) / window.bin_s)
    lead = round((window.start_s - start_s) / window.bin_s)
    means = np.zeros((len(demand.keys), bins))
    errors = np.full((PAST_DAYS, len(demand.keys), bins), np.nan)
    for k, key in enumerate(demand.keys):
        series = demand.series(k, REQUESTS)
        described = traffic.described(key.model, key.region, {key.tier}, REQUESTS, window)
        now, past = _forecasts(series, start_s, bins, method)
        means[k] = now.mean
        if described is not None:
            means[k, lead:] = described
        for day, forecast in past.items():
            actual = series.window(forecast.start_s, forecast.start_s + bins * series.bin_s).values
            if len(actual) == bins:
                floor = max(1e-9, 0.05 * float(np.mean(forecast.mean)))
                errors[day - 1, k] = actual / np.maximum(forecast.mean, floor)
    if window.ahead:
        means[:, lead:] *= window.grown
    known = [day for day in range(PAST_DAYS) if not np.isnan(errors[day]).all()]
    rng = generator(seed, Stream.DRAWN)
    totals = _total_errors(errors[known], means)
    spread = _spread(totals)
    centre = float(np.sum(np.log(totals))) / (len(totals) + PRIOR_DAYS)
    strata = (rng.permutation(paths) + 0.5) / paths
    factors = np.exp(centre + spread * _normal_quantile(strata))
    shapes = [errors[day] / total for day, total in zip(known, totals, strict=True)]
    out = np.empty((paths, *means.shape))
    for path, factor in enumerate(factors):
        shape = shapes[rng.integers(len(shapes))] if shapes else np.ones_like(means)
        shape = np.clip(np.where(np.isnan(shape), 1.0, shape), 0.0, MOST)
        total = (shape * means).sum()
        shape = shape * (means.sum() / total) if total > 0 else shape
        out[path] = means * factor * shape
    return DrawnDays(start_s, out, len(known))


def _forecasts(
    series: DemandSeries, start_s: float, bins: int, method: str
) -> tuple[Forecast, dict[int, Forecast]]:
    """Return the forecast from ``start_s`` on, and those made one to PAST_DAYS days earlier.

    A forecast is only made if its bins are over before ``start_s``. Days without enough history
    are left out. Raises ForecastError if not even the last value is known.
    """
    first = int(np.ceil(bins * series.bin_s / DAY_S))
    days = [
        day
        for day in range(PAST_DAYS, first - 1, -1)
        if start_s - day * DAY_S >= series.start_s + DAY_S
    ]
    for tried, back in ((method, days), (method, []), ("last-value", [])):
        origins = [*(start_s - day * DAY_S for day in back), start_s]
        try:
            *past, now = rolling_forecasts(
                series, forecaster(tried, horizon_bins=bins), origins, bins
            )
        except ForecastError:
            if tried == "last-value":
                raise
            continue
        return now, dict(zip(back, past, strict=True))
    raise AssertionError("the last attempt returns or raises")


def _total_errors(errors: FloatArray, means: FloatArray) -> FloatArray:
    """Return the total of each past day over its forecast, ``[days]``, weighted as ``means``."""
    seen = ~np.isnan(errors)
    weights = np.where(seen, means, 0.0)
    totals = (np.where(seen, errors, 0.0) * weights).sum(axis=(1, 2))
    return np.asarray(np.clip(totals / np.maximum(weights.sum(axis=(1, 2)), 1e-12), 0.05, MOST))


def _spread(totals: FloatArray) -> float:
    """Return the standard deviation of the logarithm of a day's total over its forecast."""
    squares = float(np.sum(np.log(totals) ** 2)) + PRIOR_DAYS * PRIOR_SPREAD**2
    return float(np.sqrt(squares / (len(totals) + PRIOR_DAYS)))


def _normal_quantile(shares: FloatArray) -> FloatArray:
    return np.array([NormalDist().inv_cdf(float(share)) for share in shares])


def with_path(demand: Demand, days: DrawnDays, path: int) -> Demand:
    """Return ``demand`` with its bins from ``days.start_s`` on replaced by one path.

    Tokens keep their mean per request of the bins before. Bins after the path are left out, and
    so are those that the demand does not have: a plan ahead of the trace knows none of them.
    """
    first = round((days.start_s - demand.start_s) / demand.bin_s)
    bins = min(demand.bins - first, days.requests.shape[2])
    if bins <= 0:
        return demand
    before = demand.requests[:, :first]
    drawn = days.requests[path][:, :bins]
    arrays: dict[str, Any] = {}
    for name in AMOUNTS:
        amounts = getattr(demand, name)[:, :first]
        requests = np.nansum(before, axis=1)
        each = np.divide(
            np.nansum(amounts, axis=1), requests, out=np.ones_like(requests), where=requests > 0
        )
        if name == REQUESTS:
            each = np.ones_like(each)
        arrays[name] = np.concatenate([amounts, drawn * each[:, None]], axis=1)
    return replace(demand, **arrays)


def requests_of_path(
    traffic: Traffic, window: Window, days: DrawnDays, path: int, pattern: Trace, seed: int,
    *, cells: int = 1,
) -> Trace:  # fmt: skip
    """Return requests of a path in ``window``, arranged within each bin as those of ``pattern``.

    ``pattern`` has requests of a window of equal length. They are thinned or repeated to the
    number of the path, so that bursts, lengths and prefixes stay as they were. In bins where the
    pattern has none, arrivals are uniform and lengths are drawn from the model's requests.
    """
    demand, bin_s = traffic.demand, window.bin_s
    rng = generator(seed, Stream.DRAWN, path)
    lead = round((window.start_s - days.start_s) / bin_s)
    wanted = days.requests[path][:, lead:] / cells
    counts = np.floor(wanted + rng.random(wanted.shape)).astype(np.int64)
    bins = counts.shape[1]
    pieces: list[Trace] = []
    pattern_bin = np.minimum(pattern.arrival_s // bin_s, bins - 1).astype(np.int64)
    for k, key in enumerate(demand.keys):
        place = (
            traffic.models.index(key.model),
            traffic.regions.index(key.region),
            traffic.tiers.index(key.tier),
        )
        same = (
            (pattern.model == place[0]) & (pattern.region == place[1]) & (pattern.tier == place[2])
        )
        rows = np.flatnonzero(same)
        there = np.bincount(pattern_bin[rows], minlength=bins)[:bins]
        pieces.append(_resampled(pattern, rows, pattern_bin[rows], counts[k], window, rng))
        missing = np.where(there == 0, counts[k], 0)
        if missing.any():
            edges = np.repeat(np.arange(bins) * bin_s, missing)
            arrival = np.sort(edges + rng.random(len(edges)) * bin_s)
            isl, osl = EmpiricalLengths(*traffic.lengths[place[0]]).sample(len(arrival), rng)
            codes = [np.full(len(arrival), code, np.int16) for code in place]
            pieces.append(
                replace(
                    pattern.rows(slice(0)), arrival_s=arrival, input_tokens=isl,
                    output_tokens=osl, model=codes[0], region=codes[1], tier=codes[2],
                    start_s=window.start_s, blocks=None,
                )
            )  # fmt: skip
    if any(piece.blocks is None for piece in pieces if len(piece)):
        pieces = [replace(piece, blocks=None) for piece in pieces]
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return replace(pattern.rows(slice(0)), start_s=window.start_s, provenance="drawn")
    return merge(pieces, "drawn from the forecast")


def _resampled(
    pattern: Trace,
    rows: IntArray,
    bin_of: IntArray,
    counts: IntArray,
    window: Window,
    rng: np.random.Generator,
) -> Trace:
    """Return ``counts [bins]`` of the requests ``rows`` of a pattern, each bin from its own.

    All requests of a bin are repeated as often as they fit, and the rest is drawn without
    repetition. A repeated request arrives within a tenth of a bin of the original.
    """
    bins = len(counts)
    there = np.bincount(bin_of, minlength=bins)[:bins]
    order = np.lexsort((rng.random(len(rows)), bin_of))  # by bin, at random within
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(there) - there, there)
    sizes, wanted = there[bin_of[order]], counts[bin_of[order]]
    copies = wanted // sizes + (rank < wanted % sizes)
    picked = np.repeat(rows[order], copies)
    bin_start = np.repeat(bin_of[order], copies) * window.bin_s
    again = np.arange(len(picked)) - np.repeat(np.cumsum(copies) - copies, copies) > 0
    moved = pattern.arrival_s[picked]
    jitter = rng.uniform(-0.05, 0.05, len(picked)) * window.bin_s
    moved = np.where(again, moved + jitter, moved)
    moved = np.clip(moved, bin_start, bin_start + window.bin_s * (1 - 1e-9))
    sort = np.argsort(moved, kind="stable")
    rows = picked[sort]
    columns = ("input_tokens", "output_tokens", "model", "region", "tier")
    return replace(
        pattern,
        arrival_s=moved[sort],
        start_s=window.start_s,
        blocks=None if pattern.blocks is None else pattern.blocks.rows(rows),
        **{name: getattr(pattern, name)[rows] for name in columns},
    )
