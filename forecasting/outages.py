"""Find outages: bins without a request that cannot be demand.

A run of empty bins is an outage if the bins around it make an empty bin less likely than 1e-9.
Counts are negative binomial with the mean and variance of these bins, or Poisson if both are equal.
Bins are tested one by one, and in sums of four and sixteen. Bursty traffic, and traffic that fades
out, has enough variance around a run to allow empty bins. Times that are empty on most other days
are closed hours, not outages. Runs of a day or more are kept, since nothing shows what they are. A
bin next to an outage belongs to it if it is as unlikely low, since it was observed in part.
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
FEWEST = 3  # observed neighbours on each side
CHANCE = 1e-9  # of an empty bin: one false outage in a thousand series of a million bins
SMALLEST_LEVEL = -np.log(CHANCE)  # mean of neighbours that makes an empty Poisson bin as unlikely
CLOSED = 0.5  # share of the other days that are empty at that time, from which it is closed
PASSES = 3  # outages near each other hide one another until the first are known
LOST_SHARE = 0.05  # largest share of lost series in a sum that is still known
BUSY = 0.5  # share of bins above 0 of a busy series
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Outage:
    """``bins`` bins from ``first`` on whose amounts are no demand, since records are missing."""

    first: int
    bins: int
    expected: float  # mean amount per bin of the neighbours
    after: float | None  # amount of the next bin over ``expected``: above 1 with a backlog


def find_outages(values: FloatArray, bin_s: float) -> tuple[Outage, ...]:
    """Return the outages of ``values [bins]`` in order; NaN is a gap that is known already."""
    without_outages = np.array(values, dtype=np.float64)
    for _ in range(PASSES):
        runs = _runs(without_outages == 0)
        improbable = np.zeros(len(runs), bool)
        for factor in SCALES:
            improbable |= _improbable_runs(without_outages, runs, factor)
        improbable &= (runs[:, 1] - runs[:, 0]) * bin_s < DAY_S
        lost = [
            i
            for i in np.flatnonzero(improbable)
            if not _is_closed(without_outages, runs[i].tolist(), bin_s)
        ]
        if not lost:
            break
        for first, end in _extended_runs(without_outages, runs[lost]).tolist():
            without_outages[first:end] = np.nan
    return _outages_of_runs(values, np.isnan(without_outages) & ~np.isnan(values))


def without_outages(series: DemandSeries) -> DemandSeries:
    """Return ``series`` with gaps in place of outages."""
    lost = outage_mask(find_outages(series.values, series.bin_s), series.bins)
    return replace(series, values=np.where(lost, np.nan, series.values))


def unknown_sums(rows: FloatArray, bin_s: float) -> BoolArray:
    """Return the mask of bins where the sum over ``rows [series, bins]`` is not known, ``[bins]``.

    A sum is unknown in an outage of the sum itself. It is also unknown if busy series with an
    outage would have had more than LOST_SHARE of it. Zeros of other series do not show an outage.
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
    return np.asarray((filled >= BUSY * observed_count) & (rows == 0).any(axis=1))


def outage_mask(outages: Sequence[Outage], bins: int) -> BoolArray:
    """Return the mask of bins that are in an outage, ``[bins]``."""
    lost = np.zeros(bins, bool)
    for outage in outages:
        lost[outage.first : outage.first + outage.bins] = True
    return lost


def _improbable_runs(values: FloatArray, runs: IntArray, bins_per_sum: int) -> BoolArray:
    """Return the mask of empty ``runs [n, 2]`` that chance does not explain.

    A run is (first bin, end), end exclusive. The probability that a sum of ``bins_per_sum`` bins
    within the run is empty follows from the bins around it. It must be below CHANCE.
    """
    improbable = np.zeros(len(runs), bool)
    if not len(runs) or (runs[:, 1] - runs[:, 0]).max() < bins_per_sum:
        return improbable
    covered = len(values) // bins_per_sum * bins_per_sum
    sums = values[:covered].reshape(-1, bins_per_sum).sum(axis=1)
    empty = _runs(sums == 0)
    level, variance = _surrounding_statistics(sums, empty)
    busy = level > SMALLEST_LEVEL
    empty, level, variance = empty[busy], level[busy], variance[busy]
    unlikely = _cumulative_probability(np.zeros(len(empty)), level, variance) < CHANCE
    first_bins = empty[unlikely, 0] * bins_per_sum
    # The run of a bin is the last one that begins at or before it.
    improbable[np.searchsorted(runs[:, 0], first_bins, side="right") - 1] = True
    return improbable


def _runs(mask: BoolArray) -> IntArray:
    """Return first bin and end (exclusive) of each run of True, ``[runs, 2]``."""
    steps = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    return np.asarray(np.flatnonzero(steps).reshape(-1, 2), np.int64)


def _surrounding_statistics(values: FloatArray, runs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of the bins around each run; NaN if too few are observed."""
    seen = ~np.isnan(values)
    # Sums of squares lose digits unless values are centred.
    centre = float(values[seen].mean()) if seen.any() else 0.0
    deviations = np.where(seen, values - centre, 0.0)
    sums = [np.concatenate(([0.0], np.cumsum(part))) for part in (seen, deviations, deviations**2)]
    first = np.maximum(runs[:, 0] - PARTIAL_BINS, 0)
    end = np.minimum(runs[:, 1] + BACKLOG_BINS, len(values))
    before = np.maximum(first - NEIGHBOURS, 0), first
    after = end, np.minimum(end + NEIGHBOURS, len(values))
    # Count, sum and sum of squares of the neighbours on each side, from running sums.
    (count_before, *amounts_before), (count_after, *amounts_after) = (
        [running[stop] - running[start] for running in sums] for start, stop in (before, after)
    )
    total, squares = (a + b for a, b in zip(amounts_before, amounts_after, strict=True))
    enough = (count_before >= FEWEST) & (count_after >= FEWEST)
    count = np.where(enough, count_before + count_after, np.nan)
    mean = total / count
    return mean + centre, np.maximum(squares / count - mean**2, 0.0)


def _cumulative_probability(
    amounts: FloatArray, level: FloatArray, variance: FloatArray
) -> FloatArray:
    """Return the probability of at most ``amounts`` in a bin, 1 where the level is unknown.

    ``level`` is the expected amount of the bin. Counts are negative binomial if ``variance``
    exceeds it, else Poisson.
    """
    has_level = ~np.isnan(level) & (level > 0)
    mean = np.where(has_level, level, 1.0)
    overdispersed = has_level & (variance > mean * (1 + 1e-9))
    used_variance = np.where(overdispersed, variance, 2 * mean)
    most, size = np.floor(amounts), mean**2 / (used_variance - mean)
    binomial = scipy.special.betainc(size, most + 1, mean / used_variance)
    chance = np.where(overdispersed, binomial, scipy.special.pdtr(most, mean))
    return np.asarray(np.where(has_level, chance, 1.0))


def _is_closed(values: FloatArray, run: list[int], bin_s: float) -> bool:
    """Return whether the bins ``run`` (first, end) are mostly 0 on other days too: no outage."""
    per_day = round(DAY_S / bin_s)
    if abs(per_day * bin_s - DAY_S) > 1e-6 * DAY_S or len(values) <= per_day:
        return False
    first, end = run
    days = np.arange(-(end // per_day) - 1, len(values) // per_day + 1)  # relative to that of run
    bins = np.arange(first, end)[None, :] + per_day * days[days != 0][:, None]
    others = values[bins[(bins >= 0) & (bins < len(values))]]
    others = others[~np.isnan(others)]
    return bool(others.size) and float((others == 0).mean()) >= CLOSED


def _extended_runs(values: FloatArray, runs: IntArray) -> IntArray:
    """Return the runs, each with the next bin on either side if that was observed in part only."""
    level, variance = _surrounding_statistics(values, runs)
    extended = runs.copy()
    for side, step in ((0, -1), (1, 0)):
        edge = runs[:, side] + step
        amounts = values[np.clip(edge, 0, len(values) - 1)]
        partial = (
            _cumulative_probability(np.nan_to_num(amounts, nan=np.inf), level, variance) < CHANCE
        )
        extended[:, side] += np.where(partial, -1 if side == 0 else 1, 0)
    return extended


def _outages_of_runs(values: FloatArray, lost: BoolArray) -> tuple[Outage, ...]:
    """Describe the runs of True in ``lost`` as outages, with the demand expected there."""
    runs = _runs(lost)
    if not len(runs):
        return ()
    level, _ = _surrounding_statistics(np.where(lost, np.nan, values), runs)
    described = []
    for (first, end), expected in zip(runs.tolist(), level.tolist(), strict=True):
        after = float(values[end]) / expected if end < len(values) and expected > 0 else np.nan
        described.append(Outage(first, end - first, expected, None if np.isnan(after) else after))
    return tuple(described)
