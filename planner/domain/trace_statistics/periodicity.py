"""Describe when requests come: hours and weekdays, autocorrelation, bursts by time scale."""

from pathlib import Path

import numpy as np
import polars as pl

from planner.domain.trace_statistics.figures import Burstiness, Rhythm
from planner.domain.traffic.window import DAY_S, HOUR_S, UTC_CLOCK
from planner.domain.traffic.window_rank import WEEK_S
from planner.inputs.ingest.store import scan_requests
from simulation.arrays import FloatArray

SCALES_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0)
LOCAL_S = 600.0  # span in which the rate is assumed to be steady
LEAST_BINS = 10  # fewest bins of a scale
MAX_FINE = 20_000_000  # most bins of the finest scale
SPARSE = 100  # most bins per request of the finest scale: with more, nearly all are empty
ENOUGH_FINE = 1_000_000  # so many bins are always allowed, because they are cheap
WEEKDAY_OF_EPOCH = 3  # 1 January 1970 was a Thursday; Monday is 0
WEEKEND = 5


def autocorrelation(values: FloatArray, lag: int) -> float | None:
    """Return the Pearson correlation between bins that are ``lag`` bins apart.

    Returns None if there are too few known pairs, or if the values do not vary.
    """
    if lag < 1 or len(values) < 2 * lag:
        return None
    before, after = values[:-lag], values[lag:]
    both_known = ~np.isnan(before) & ~np.isnan(after)
    before, after = before[both_known], after[both_known]
    if len(before) < LEAST_BINS or not before.std() > 0 or not after.std() > 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def coarser_sums(values: FloatArray, factor: int) -> FloatArray:
    """Return sums of ``factor`` bins each; a gap makes its sum a gap.

    An incomplete last sum is dropped.
    """
    covered = len(values) // factor * factor
    return np.asarray(values[:covered].reshape(-1, factor).sum(axis=1))


def day_and_week(values: FloatArray, bin_s: float) -> tuple[float, float | None, float | None]:
    """Return the compared bin width (s), and the autocorrelations at a day's and a week's distance.

    The width is an hour if whole bins make an hour. Autocorrelations are None if bins do not divide
    a day, or if they are not known.
    """
    factor = max(1, round(HOUR_S / bin_s))
    if abs(factor * bin_s - HOUR_S) < 1e-6:
        values, bin_s = coarser_sums(values, factor), HOUR_S
    lags = [round(span / bin_s) for span in (DAY_S, WEEK_S)]
    is_whole_day = abs(lags[0] * bin_s - DAY_S) < 1e-6 * DAY_S
    day, week = (autocorrelation(values, lag) if is_whole_day else None for lag in lags)
    return bin_s, day, week


def rhythm(values: FloatArray, start_s: float, bin_s: float, clock: str) -> Rhythm:
    """Return mean ``values`` by hour and weekday; each bin of ``bin_s`` counts where it starts."""
    width, day, week = day_and_week(values, bin_s)
    begin = start_s + bin_s * np.arange(len(values))
    shift = WEEKDAY_OF_EPOCH if clock == UTC_CLOCK else 0
    weekday = (np.floor(begin / DAY_S).astype(np.int64) + shift) % 7
    hour = (begin % DAY_S // HOUR_S).astype(np.int64)
    seen = ~np.isnan(values)
    if bin_s > HOUR_S:
        seen = np.zeros_like(seen)  # wider bins do not show the hour
    hour_of_week = weekday * 24 + hour
    amount = np.bincount(hour_of_week[seen], values[seen], 168).reshape(7, 24)
    seconds = np.bincount(hour_of_week[seen], minlength=168).reshape(7, 24) * float(bin_s)

    by_hour = _rates(amount.sum(axis=0), seconds.sum(axis=0))
    known_hours = [(rate, h) for h, rate in enumerate(by_hour) if rate is not None]
    high = low = peak_hour = trough_hour = None
    if len(known_hours) == 24:
        (high, peak_hour), (low, trough_hour) = max(known_hours), min(known_hours)
    weekday_rate = weekend_rate = None
    if clock == UTC_CLOCK:
        (weekday_rate,) = _rates(amount[:WEEKEND].sum(), seconds[:WEEKEND].sum())
        (weekend_rate,) = _rates(amount[WEEKEND:].sum(), seconds[WEEKEND:].sum())
    return Rhythm(
        bin_s=width,
        autocorrelation_day=day,
        autocorrelation_week=week,
        weekday_hour=tuple(_rates(amount[day], seconds[day]) for day in range(7)),
        hour=by_hour,
        peak_hour=peak_hour,
        trough_hour=trough_hour,
        peak_to_trough=high / low if high and low else None,
        weekend_to_weekday=weekend_rate / weekday_rate
        if weekday_rate and weekend_rate is not None
        else None,
    )


def _rates(amount: FloatArray, seconds: FloatArray) -> tuple[float | None, ...]:
    """Return amounts per second; None where no second was observed."""
    pairs = zip(np.atleast_1d(amount).tolist(), np.atleast_1d(seconds).tolist(), strict=True)
    return tuple(total / time if time else None for total, time in pairs)


def burstiness(values: FloatArray, bin_s: float) -> list[Burstiness]:
    """Return the variation of amounts per bin, for every bin width of whole bins."""
    scales = []
    for scale in (bin_s, *(s for s in SCALES_S if s > bin_s)):
        factor = round(scale / bin_s)
        if abs(factor * bin_s - scale) > 1e-6 * scale:
            continue
        sums = coarser_sums(values, factor)
        known_sums = sums[~np.isnan(sums)]
        if len(known_sums) >= LEAST_BINS:
            scales.append(_at_scale(sums, known_sums, scale))
    return scales


def _at_scale(sums: FloatArray, known: FloatArray, scale: float) -> Burstiness:
    """Return the variation of ``sums`` over bins of ``scale`` seconds.

    ``known`` are the sums without gaps.
    """
    mean = float(known.mean())
    variance = float(known.var(ddof=1))
    return Burstiness(
        bin_s=scale,
        bins=len(known),
        dispersion=variance / mean if mean else None,
        within_10_min=_variance_over_mean(sums, round(LOCAL_S / scale)),
        peak_to_mean=float(known.max()) / mean if mean else None,
        cv=variance**0.5 / mean if mean else None,
        empty=float((known == 0).mean()),
    )


def _variance_over_mean(sums: FloatArray, bins: int) -> float | None:
    """Return variance over mean within runs of ``bins`` bins, weighted by the amount in each run.

    Each run has its own mean, which removes the daily cycle. Returns None if there are too few
    bins.
    """
    if bins < LEAST_BINS or len(sums) < bins:
        return None
    runs = sums[: len(sums) // bins * bins].reshape(-1, bins)
    runs = runs[~np.isnan(runs).any(axis=1)]
    means = float(runs.mean(axis=1).sum()) if len(runs) else 0.0
    return float(runs.var(axis=1, ddof=1).sum()) / means if means else None


def fine_counts(store: Path, span_s: float) -> tuple[FloatArray, float]:
    """Return the requests per bin of a stored trace, and the width of the bins in seconds.

    Bins begin at the first request; an incomplete last bin is left out. The width is the narrowest
    of SCALES_S with at most MAX_FINE bins. More than ENOUGH_FINE bins need a request for every
    SPARSE of them: three requests in 54 years say nothing about seconds.
    """
    report, scan = scan_requests(store)
    max_bins = min(MAX_FINE, max(ENOUGH_FINE, SPARSE * (report.requests or 0)))
    width = next((w for w in SCALES_S if span_s / w <= max_bins), SCALES_S[-1])
    table = (
        scan.group_by((pl.col("arrival_s") / width).floor().cast(pl.Int64).alias("bin"))
        .len()
        .collect(engine="streaming")
    )
    counts = np.zeros(int(table["bin"].max()) + 1)  # type: ignore[arg-type]
    counts[table["bin"].to_numpy()] = table["len"].to_numpy()
    return counts[: max(1, len(counts) - 1)], width  # the last bin is incomplete


def interarrival_cv(store: Path) -> float | None:
    """Return standard deviation over mean of gaps between requests; None: no gaps, or all are 0."""
    _, scan = scan_requests(store)
    gaps = pl.col("arrival_s").diff()
    row = scan.select(gaps.mean().alias("mean"), gaps.std().alias("std")).collect().row(0)
    mean, spread = row
    return spread / mean if mean and spread is not None else None
