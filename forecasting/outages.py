"""Find outages: bins without a request that cannot be demand.

A run is a sequence of empty bins. It is an outage if the bins around it make an empty bin less
likely than 1e-9. Counts are assumed to be negative binomial with the mean and variance of these
bins, or Poisson if both are equal. Bins are tested one by one, and in sums of four and sixteen.
Bursty traffic, and traffic that fades out, has enough variance around a run to allow empty bins.
Times that are empty on most other days are closed hours, not outages. Runs of a day or more are
kept, since nothing shows what they are. A bin next to an outage belongs to it if its amount is as
unlikely, since it was observed in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import DemandSeries

SCALES = (1, 4, 16)  # bins per sum: an empty minute may be chance, an empty hour is not
NEIGHBOURS = 12  # bins compared on each side
PARTIAL_BINS = 1  # bins before a run that may be observed in part, and are not compared
BACKLOG_BINS = 2  # bins after a run that may hold a backlog, and are not compared
MIN_NEIGHBOURS = 3  # observed neighbours on each side
CHANCE_LIMIT = 1e-9  # probability: one false outage in a thousand series of a million bins
SMALLEST_LEVEL = -np.log(
    CHANCE_LIMIT
)  # mean of neighbours that makes an empty Poisson bin as unlikely
CLOSED_SHARE = 0.5  # from this share of other days with empty bins on, a time of day is closed
PASSES = 3  # outages near each other hide one another until the first are known
LOST_SHARE = 0.05  # largest share of lost series in a sum that is still known
BUSY_SHARE = 0.5  # share of bins above 0 of a busy series
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Bins whose amounts are no demand, since records are missing."""

    first: int  # index of the first bin
    bins: int  # number of bins
    expected: float  # mean amount per bin of the neighbours
    after: float | None  # amount of the next bin divided by ``expected``; above 1 with a backlog


def find_outages(values: FloatArray, bin_s: float) -> tuple[Outage, ...]:
    """Return the outages in ``values [bins]`` in order; NaN is a gap that is known already."""
    without_outages = np.array(values, dtype=np.float64)
    for _ in range(PASSES):
        found = _outage_runs(without_outages, bin_s)
        if not len(found):
            break
        for first, end in _extended_runs(without_outages, found).tolist():
            without_outages[first:end] = np.nan
    return _outages_of_runs(values, np.isnan(without_outages) & ~np.isnan(values))


def _outage_runs(values: FloatArray, bin_s: float) -> IntArray:
    """Return (first bin, end) of the empty runs that neither chance nor closed hours explain."""
    runs = find_runs(values == 0)
    improbable = np.zeros(len(runs), bool)
    for bins_per_sum in SCALES:
        improbable |= _improbable_runs(values, runs, bins_per_sum)
    is_short = (runs[:, 1] - runs[:, 0]) * bin_s < DAY_S
    suspect = runs[improbable & is_short]
    is_closed = [_is_closed(values, run, bin_s) for run in suspect.tolist()]
    return np.asarray(suspect[~np.array(is_closed, bool)])


def without_outages(series: DemandSeries) -> DemandSeries:
    """Return ``series`` with gaps in place of outages."""
    lost = outage_mask(find_outages(series.values, series.bin_s), series.bins)
    return replace(series, values=np.where(lost, np.nan, series.values))


def unknown_sums(rows: FloatArray, bin_s: float) -> BoolArray:
    """Return the mask of bins in which the sum over ``rows [series, bins]`` is not known.

    A sum is unknown in an outage of the sum itself. It is also unknown if busy series have an
    outage, and more than LOST_SHARE of the sum was expected from them.
    """
    total = rows.sum(axis=0)
    lost = outage_mask(find_outages(total, bin_s), len(total))
    if len(rows) == 1:
        return lost
    missing = np.zeros(len(total))
    for row in np.flatnonzero(may_have_outages(rows)):
        for outage in find_outages(rows[row], bin_s):
            missing[outage.first : outage.first + outage.bins] += outage.expected
    return np.asarray(lost | (missing > LOST_SHARE * (np.nan_to_num(total) + missing)))


def may_have_outages(rows: FloatArray) -> BoolArray:
    """Return the mask of busy series that have empty bins, ``[series]``.

    In a series that is mostly empty, an empty bin is no sign of an outage.
    """
    observed_count = (~np.isnan(rows)).sum(axis=1)
    filled = (rows > 0).sum(axis=1)
    return np.asarray((filled >= BUSY_SHARE * observed_count) & (rows == 0).any(axis=1))


def outage_mask(outages: Sequence[Outage], bins: int) -> BoolArray:
    """Return the mask of bins that are in an outage, ``[bins]``."""
    lost = np.zeros(bins, bool)
    for outage in outages:
        lost[outage.first : outage.first + outage.bins] = True
    return lost


def _improbable_runs(values: FloatArray, runs: IntArray, bins_per_sum: int) -> BoolArray:
    """Return the mask of the empty ``runs [run, 2]`` that chance does not explain.

    A run is (first bin, end), end exclusive. Chance does not explain it if the bins around it make
    an empty sum of ``bins_per_sum`` bins less likely than CHANCE_LIMIT.
    """
    improbable = np.zeros(len(runs), bool)
    if not len(runs) or (runs[:, 1] - runs[:, 0]).max() < bins_per_sum:
        return improbable
    covered = len(values) // bins_per_sum * bins_per_sum
    sums = values[:covered].reshape(-1, bins_per_sum).sum(axis=1)
    empty_sums = find_runs(sums == 0)  # [run, 2] in indices of sums, not of bins
    level, variance = _surrounding_statistics(sums, empty_sums)
    probability = _cumulative_probability(np.zeros(len(empty_sums)), level, variance)
    # At a lower level, an empty sum is likely enough at any variance.
    unlikely = (level > SMALLEST_LEVEL) & (probability < CHANCE_LIMIT)
    first_bins = empty_sums[unlikely, 0] * bins_per_sum
    # The run of a bin is the last one that begins at or before it.
    improbable[np.searchsorted(runs[:, 0], first_bins, side="right") - 1] = True
    return improbable


def find_runs(mask: BoolArray) -> IntArray:
    """Return (first bin, exclusive end) of each sequence of True in ``mask``, ``[runs, 2]``."""
    steps = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    return np.asarray(np.flatnonzero(steps).reshape(-1, 2), np.int64)


def _surrounding_statistics(values: FloatArray, runs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return (mean, variance) of the bins around each run, ``[runs]``; NaN if too few are observed.

    ``runs [runs, 2]`` are (first bin, end), end exclusive.
    """
    seen = ~np.isnan(values)
    # Sums of squares lose digits unless values are centred.
    centre = float(values[seen].mean()) if seen.any() else 0.0
    sums = _sums_before(values - centre)  # [3, bins + 1]: number, sum and sum of squares
    left_end = np.maximum(runs[:, 0] - PARTIAL_BINS, 0)
    left_begin = np.maximum(left_end - NEIGHBOURS, 0)
    right_begin = np.minimum(runs[:, 1] + BACKLOG_BINS, len(values))
    right_end = np.minimum(right_begin + NEIGHBOURS, len(values))
    left = sums[:, left_end] - sums[:, left_begin]
    right = sums[:, right_end] - sums[:, right_begin]
    has_enough = (left[0] >= MIN_NEIGHBOURS) & (right[0] >= MIN_NEIGHBOURS)
    count, total, squares = left + right
    count = np.where(has_enough, count, np.nan)
    mean = total / count
    return mean + centre, np.maximum(squares / count - mean**2, 0.0)


def _sums_before(values: FloatArray) -> FloatArray:
    """Return number, sum and squares of the observed values before each bin, ``[3, bins + 1]``."""
    seen = ~np.isnan(values)
    amounts = np.where(seen, values, 0.0)
    sums = np.zeros((3, len(values) + 1))
    np.cumsum([seen, amounts, amounts**2], axis=1, out=sums[:, 1:])
    return sums


def _cumulative_probability(
    amounts: FloatArray, level: FloatArray, variance: FloatArray
) -> FloatArray:
    """Return the probability that a bin has at most ``amounts``; 1 if the level is unknown.

    ``level`` is the expected amount of the bin. Counts are negative binomial if ``variance``
    exceeds it, else Poisson.
    """
    has_level = ~np.isnan(level) & (level > 0)
    mean = np.where(has_level, level, 1.0)
    overdispersed = has_level & (variance > mean * (1 + 1e-9))
    # Elsewhere, any variance above the mean: the binomial result is not used there.
    used_variance = np.where(overdispersed, variance, 2 * mean)
    count = np.floor(amounts)
    size = mean**2 / (used_variance - mean)  # of the negative binomial distribution
    binomial = scipy.special.betainc(size, count + 1, mean / used_variance)
    poisson = scipy.special.pdtr(count, mean)
    return np.asarray(np.where(has_level, np.where(overdispersed, binomial, poisson), 1.0))


def _is_closed(values: FloatArray, run: list[int], bin_s: float) -> bool:
    """Return whether the bins ``run`` (first, end) are mostly empty on other days too.

    They are then closed hours, and no outage.
    """
    bins_per_day = round(DAY_S / bin_s)
    if abs(bins_per_day * bin_s - DAY_S) > 1e-6 * DAY_S or len(values) <= bins_per_day:
        return False
    first, end = run
    days = len(values) // bins_per_day + 1
    to_other_days = bins_per_day * np.delete(np.arange(-days, days + 1), days)  # without 0
    bins = np.arange(first, end) + to_other_days[:, None]  # [day, bin of the run]
    amounts = values[bins[(bins >= 0) & (bins < len(values))]]
    amounts = amounts[~np.isnan(amounts)]
    return bool(amounts.size) and float((amounts == 0).mean()) >= CLOSED_SHARE


def _extended_runs(values: FloatArray, runs: IntArray) -> IntArray:
    """Return the runs, each extended by the next bin on either side if that was observed in part.

    ``runs [runs, 2]`` are (first bin, end), end exclusive.
    """
    level, variance = _surrounding_statistics(values, runs)

    def is_partial(bins: IntArray) -> BoolArray:
        """Return which of ``bins`` (one per run) have an unlikely small amount."""
        amounts = np.nan_to_num(values[np.clip(bins, 0, len(values) - 1)], nan=np.inf)
        return np.asarray(_cumulative_probability(amounts, level, variance) < CHANCE_LIMIT)

    first, end = runs[:, 0], runs[:, 1]
    # Begin a bin earlier where the bin before is partial, and end a bin later likewise.
    return np.stack([first - is_partial(first - 1), end + is_partial(end)], axis=1)


def _outages_of_runs(values: FloatArray, lost: BoolArray) -> tuple[Outage, ...]:
    """Return each sequence of True in ``lost [bins]`` as an outage, with its expected demand."""
    runs = find_runs(lost)  # rows of (first bin, end), end exclusive
    if not len(runs):
        return ()
    expected_demand, _ = _surrounding_statistics(np.where(lost, np.nan, values), runs)
    outages = []
    for (first, end), expected in zip(runs.tolist(), expected_demand.tolist(), strict=True):
        # Demand in the first bin after the outage, as a multiple of the expected demand.
        after = float(values[end]) / expected if end < len(values) and expected > 0 else np.nan
        outages.append(Outage(first, end - first, expected, None if np.isnan(after) else after))
    return tuple(outages)
