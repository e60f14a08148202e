"""Describe when requests come: hours and weekdays, autocorrelation, bursts by time scale."""

from pathlib import Path

import numpy as np
import polars as pl

from planner.domain.trace_statistics.figures import Burstiness, Rhythm
from planner.domain.traffic.window import DAY_S, HOUR_S, UTC_CLOCK
from planner.domain.traffic.window_rank import WEEK_S
from planner.inputs.ingest.store import scan_requests
from simulation.arrays import FloatArray

SCALES_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0)  # widths of bins
STEADY_SPAN_S = 600.0  # span in which the rate is assumed to be steady
MIN_BINS = 10  # fewest bins of a width
MAX_FINE_BINS = 20_000_000  # most bins of the narrowest width
MAX_BINS_PER_REQUEST = 100  # most bins per request: with more, nearly all are empty
ALWAYS_ALLOWED_BINS = 1_000_000  # bins that are always allowed, because they are cheap
WEEKDAY_OF_EPOCH = 3  # 1 January 1970 was a Thursday; Monday is 0
FIRST_WEEKEND_DAY = 5


def autocorrelation(values: FloatArray, lag: int) -> float | None:
    """Return the Pearson correlation between bins that are ``lag`` bins apart.

    None if there are too few pairs of known bins, or if the values do not vary.
    """
    if lag < 1 or len(values) < 2 * lag:
        return None
    before, after = values[:-lag], values[lag:]
    both_known = ~np.isnan(before) & ~np.isnan(after)
    before, after = before[both_known], after[both_known]
    if len(before) < MIN_BINS or not before.std() > 0 or not after.std() > 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def coarser_sums(values: FloatArray, factor: int) -> FloatArray:
    """Return sums of ``factor`` bins each; a sum with a gap (NaN) is a gap.

    Bins at the end that do not fill a sum are dropped.
    """
    complete = len(values) // factor * factor
    return np.asarray(values[:complete].reshape(-1, factor).sum(axis=1))


def day_and_week(values: FloatArray, bin_s: float) -> tuple[float, float | None, float | None]:
    """Return (width of the compared bins in s, autocorrelation after a day, and after a week).

    The width is an hour if an hour is a whole number of bins, else ``bin_s``. An autocorrelation is
    None if a day is not a whole number of bins, or if it is not known.
    """
    bins_per_hour = max(1, round(HOUR_S / bin_s))
    if abs(bins_per_hour * bin_s - HOUR_S) < 1e-6:
        values, bin_s = coarser_sums(values, bins_per_hour), HOUR_S
    bins_per_day = round(DAY_S / bin_s)
    if abs(bins_per_day * bin_s - DAY_S) >= 1e-6 * DAY_S:
        return bin_s, None, None
    day = autocorrelation(values, bins_per_day)
    return bin_s, day, autocorrelation(values, round(WEEK_S / bin_s))


def rhythm(values: FloatArray, start_s: float, bin_s: float, clock: str) -> Rhythm:
    """Return the mean rates of ``values [bins]`` by hour and weekday.

    A bin of ``bin_s`` seconds counts in the hour in which it starts. Bins wider than an hour do not
    show the hour, so all its rates are then None.
    """
    compared_bin_s, after_day, after_week = day_and_week(values, bin_s)
    amount, seconds = _by_hour_of_week(values, start_s, bin_s, clock)
    by_hour = _rates(amount.sum(axis=0), seconds.sum(axis=0))
    known_hours = [(rate, hour) for hour, rate in enumerate(by_hour) if rate is not None]
    high = low = peak_hour = trough_hour = None
    if len(known_hours) == 24:
        (high, peak_hour), (low, trough_hour) = max(known_hours), min(known_hours)
    return Rhythm(
        bin_s=compared_bin_s,
        autocorrelation_day=after_day,
        autocorrelation_week=after_week,
        weekday_hour=tuple(map(_rates, amount, seconds)),
        hour=by_hour,
        peak_hour=peak_hour,
        trough_hour=trough_hour,
        peak_to_trough=high / low if high and low else None,
        weekend_to_weekday=_weekend_to_weekday(amount, seconds) if clock == UTC_CLOCK else None,
    )


def _by_hour_of_week(
    values: FloatArray, start_s: float, bin_s: float, clock: str
) -> tuple[FloatArray, FloatArray]:
    """Return (amount, observed seconds) by weekday and hour, each ``[7, 24]``."""
    starts_s = start_s + bin_s * np.arange(len(values))
    first_weekday = WEEKDAY_OF_EPOCH if clock == UTC_CLOCK else 0
    weekday = (starts_s // DAY_S + first_weekday) % 7
    hour = starts_s % DAY_S // HOUR_S
    counted = ~np.isnan(values) & (bin_s <= HOUR_S)
    hour_of_week = (weekday * 24 + hour)[counted].astype(np.int64)
    amount = np.bincount(hour_of_week, values[counted], 7 * 24)
    seconds = np.bincount(hour_of_week, minlength=7 * 24) * float(bin_s)
    return np.reshape(amount, (7, 24)).astype(float), np.reshape(seconds, (7, 24)).astype(float)


def _weekend_to_weekday(amount: FloatArray, seconds: FloatArray) -> float | None:
    """Return the mean rate of weekends over that of weekdays; None if either is unknown."""
    (weekday_rate,) = _rates(amount[:FIRST_WEEKEND_DAY].sum(), seconds[:FIRST_WEEKEND_DAY].sum())
    (weekend_rate,) = _rates(amount[FIRST_WEEKEND_DAY:].sum(), seconds[FIRST_WEEKEND_DAY:].sum())
    if not weekday_rate or weekend_rate is None:
        return None
    return weekend_rate / weekday_rate


def _rates(amount: FloatArray, seconds: FloatArray) -> tuple[float | None, ...]:
    """Return ``amount`` per second of ``seconds``, item by item; None for no seconds."""
    amounts, times_s = np.atleast_1d(amount).tolist(), np.atleast_1d(seconds).tolist()
    return tuple(
        total / time_s if time_s else None for total, time_s in zip(amounts, times_s, strict=True)
    )


def burstiness(values: FloatArray, bin_s: float) -> list[Burstiness]:
    """Return the variation of amounts per bin, for bins of ``bin_s`` s and of each wider width.

    Widths that are not a whole number of bins, or have too few bins, are left out.
    """
    rows = []
    wider_s = [scale_s for scale_s in SCALES_S if scale_s > bin_s]
    for width_s in (bin_s, *wider_s):
        factor = round(width_s / bin_s)
        if abs(factor * bin_s - width_s) > 1e-6 * width_s:
            continue
        sums = coarser_sums(values, factor)
        if np.count_nonzero(~np.isnan(sums)) >= MIN_BINS:
            rows.append(_variation(sums, width_s))
    return rows


def _variation(sums: FloatArray, width_s: float) -> Burstiness:
    """Return the variation of ``sums``, the amounts per bin of ``width_s`` s; NaN: gap.

    ``within_10_min`` is the variance over the mean within spans of STEADY_SPAN_S.
    """
    known = sums[~np.isnan(sums)]
    mean = float(known.mean())
    variance = float(known.var(ddof=1))
    return Burstiness(
        bin_s=width_s,
        bins=len(known),
        dispersion=variance / mean if mean else None,
        within_10_min=_variance_over_mean(sums, round(STEADY_SPAN_S / width_s)),
        peak_to_mean=float(known.max()) / mean if mean else None,
        cv=variance**0.5 / mean if mean else None,
        empty=float((known == 0).mean()),
    )


def _variance_over_mean(sums: FloatArray, bins: int) -> float | None:
    """Return variance over mean within spans of ``bins`` bins, weighted by the amount in each.

    The variance is that around the mean of a span, so the daily cycle does not count. None if there
    are too few bins.
    """
    if bins < MIN_BINS or len(sums) < bins:
        return None
    spans = sums[: len(sums) // bins * bins].reshape(-1, bins)  # [span, bin]
    spans = spans[~np.isnan(spans).any(axis=1)]  # without gaps
    sum_of_means = float(spans.mean(axis=1).sum()) if len(spans) else 0.0
    sum_of_variances = float(spans.var(axis=1, ddof=1).sum())
    return sum_of_variances / sum_of_means if sum_of_means else None


def fine_counts(store: Path, span_s: float) -> tuple[FloatArray, float]:
    """Return the requests per bin of a stored trace, and the width of the bins in seconds.

    Bins begin at the first request; the last one is left out, because it is incomplete. The width
    is the narrowest of ``SCALES_S`` with few enough bins for ``span_s``, the length of the trace.
    """
    report, scan = scan_requests(store)
    # Few requests over a long time say nothing about seconds, so bins are limited by requests, too.
    max_bins = min(
        MAX_FINE_BINS, max(ALWAYS_ALLOWED_BINS, MAX_BINS_PER_REQUEST * (report.requests or 0))
    )
    width = next((scale for scale in SCALES_S if span_s / scale <= max_bins), SCALES_S[-1])
    table = (
        scan.group_by((pl.col("arrival_s") / width).floor().cast(pl.Int64).alias("bin"))
        .len()
        .collect(engine="streaming")
    )
    counts = np.zeros(int(table["bin"].max()) + 1)  # type: ignore[arg-type]
    counts[table["bin"].to_numpy()] = table["len"].to_numpy()
    return counts[: max(1, len(counts) - 1)], width


def interarrival_cv(store: Path) -> float | None:
    """Return the coefficient of variation (CV) of the times between requests of a stored trace.

    None if there are too few requests, or if they all arrive at once.
    """
    _, scan = scan_requests(store)
    times = pl.col("arrival_s").diff()
    mean, std = scan.select(times.mean().alias("mean"), times.std().alias("std")).collect().row(0)
    return std / mean if mean and std is not None else None
