"""Bins without a request that cannot be demand: nobody counted there.

A run of empty bins is an outage where the bins on both sides of it leave no room for chance: with
their mean and variance a bin would be empty less than once in 10^9 (negative binomial counts, which
are Poisson where the variance is the mean), bins being taken one by one, by four and by sixteen.
Traffic that comes in bursts, or goes to nothing by itself, has neighbours that vary enough to allow
for it; what is empty at the same time on other days is closed, not broken; a run of a day or more
is left as it is, since nothing tells. A bin beside an outage that is as unlikely low is a part of
it: it was counted for a moment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.demand import DemandSeries

SCALES = (1, 4, 16)  # bins taken together: minutes without a request may be chance, an hour is not
NEIGHBOURS = 12  # bins looked at on either side
PARTS = 1  # bins before that may have been counted in part, which are not looked at
BACKLOG = 2  # bins after that may hold what was held up
LEAST = 3  # of them observed on either side, or nothing is said
CHANCE = 1e-9  # of an empty bin: a series of a million bins has one by chance in a thousand
AMPLE = -np.log(CHANCE)  # mean that neighbours must have: an empty Poisson bin is then as unlikely
CLOSED = 0.5  # of the other days that are empty at that time, from which on it is a habit
PASSES = 3  # outages close to each other hide one another until the first are known
SHARE = 0.05  # of a sum that may be lost with single series before it is not known
BUSY = 0.5  # of a series' bins that must have something
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Bins ``first`` to ``first + bins`` of a series, which are not demand."""

    first: int
    bins: int
    expected: float  # amount per bin that the neighbours had
    after: float | None  # amount of the bin after it over ``expected``: above 1 it was made up for


def outages(values: FloatArray, bin_s: float) -> tuple[Outage, ...]:
    """Outages of a series of amounts per bin, in order; NaN is a gap that is known already."""
    left = np.array(values, dtype=np.float64)
    for _ in range(PASSES):
        runs = _runs(left == 0)
        improbable = np.zeros(len(runs), bool)
        for factor in SCALES:
            improbable |= _improbable(left, runs, factor)
        improbable &= (runs[:, 1] - runs[:, 0]) * bin_s < DAY_S
        odd = [i for i in np.flatnonzero(improbable) if not _habit(left, runs[i].tolist(), bin_s)]
        if not odd:
            break
        for first, end in _with_edges(left, runs[odd]).tolist():
            left[first:end] = np.nan
    return _described(values, np.isnan(left) & ~np.isnan(values))


def without_outages(series: DemandSeries) -> DemandSeries:
    """The series with a gap where it has an outage."""
    lost = marked(outages(series.values, series.bin_s), series.bins)
    return replace(series, values=np.where(lost, np.nan, series.values))


def lost_bins(rows: FloatArray, bin_s: float) -> BoolArray:
    """Bins, ``[bins]``, of which the sum over ``rows`` (``[series, bins]``) is not known for what
    its series have lost: the sum itself is an outage, or single series are that had a share of it.

    Series that are empty most of the time are not asked: their zeros say nothing.
    """
    total = rows.sum(axis=0)
    lost = marked(outages(total, bin_s), len(total))
    if len(rows) == 1:
        return lost
    missing = np.zeros(len(total))
    for row in rows:
        if busy(row):
            for outage in outages(row, bin_s):
                missing[outage.first : outage.first + outage.bins] += outage.expected
    return np.asarray(lost | (missing > SHARE * (np.nan_to_num(total) + missing)))


def busy(values: FloatArray) -> bool:
    """Whether most bins of a series have something."""
    known = values[~np.isnan(values)]
    return bool(known.size) and float((known > 0).mean()) >= BUSY


def marked(outages: Sequence[Outage], bins: int) -> BoolArray:
    """Which of ``bins`` bins are in an outage."""
    lost = np.zeros(bins, bool)
    for outage in outages:
        lost[outage.first : outage.first + outage.bins] = True
    return lost


def _improbable(values: FloatArray, runs: IntArray, factor: int) -> BoolArray:
    """Which runs hold an empty bin of ``factor`` bins that its own neighbours rule out."""
    improbable = np.zeros(len(runs), bool)
    if not len(runs) or (runs[:, 1] - runs[:, 0]).max() < factor:
        return improbable
    covered = len(values) // factor * factor
    sums = values[:covered].reshape(-1, factor).sum(axis=1)
    empty = _runs(sums == 0)
    level, spread = _neighbours(sums, empty)
    ample = level > AMPLE
    empty, level, spread = empty[ample], level[ample], spread[ample]
    odd = empty[_chance(np.zeros(len(empty)), level, spread) < CHANCE, 0] * factor
    improbable[np.searchsorted(runs[:, 0], odd, side="right") - 1] = True
    return improbable


def _runs(marked: BoolArray) -> IntArray:
    steps = np.diff(np.concatenate(([0], marked.astype(np.int8), [0])))
    return np.asarray(np.flatnonzero(steps).reshape(-1, 2), np.int64)


def _neighbours(values: FloatArray, runs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the bins around each run; NaN where too few are known."""
    seen = ~np.isnan(values)
    centre = float(values[seen].mean()) if seen.any() else 0.0  # else squares lose their digits
    off = np.where(seen, values - centre, 0.0)
    sums = [np.concatenate(([0.0], np.cumsum(part))) for part in (seen, off, off**2)]
    first, end = np.maximum(runs[:, 0] - PARTS, 0), np.minimum(runs[:, 1] + BACKLOG, len(values))
    before = np.maximum(first - NEIGHBOURS, 0), first
    behind = end, np.minimum(end + NEIGHBOURS, len(values))
    sides = [[total[to] - total[fro] for total in sums] for fro, to in (before, behind)]
    count, total, squares = (a + b for a, b in zip(*sides, strict=True))
    enough = (sides[0][0] >= LEAST) & (sides[1][0] >= LEAST)
    count = np.where(enough, count, np.nan)
    mean = total / count
    return mean + centre, np.maximum(squares / count - mean**2, 0.0)


def _chance(amounts: FloatArray, level: FloatArray, spread: FloatArray) -> FloatArray:
    """Probability of no more than ``amounts`` in a bin; 1 where nothing is known."""
    known = ~np.isnan(level) & (level > 0)
    mean = np.where(known, level, 1.0)
    over = known & (spread > mean * (1 + 1e-9))
    variance = np.where(over, spread, 2 * mean)
    gamma = scipy.stats.nbinom.cdf(np.floor(amounts), mean**2 / (variance - mean), mean / variance)
    chance = np.where(over, gamma, scipy.stats.poisson.cdf(np.floor(amounts), mean))
    return np.asarray(np.where(known, chance, 1.0))


def _habit(values: FloatArray, run: list[int], bin_s: float) -> bool:
    """Whether the same time of other days is mostly empty too."""
    per_day = round(DAY_S / bin_s)
    if abs(per_day * bin_s - DAY_S) > 1e-6 * DAY_S or len(values) <= per_day:
        return False
    first, end = run
    days = np.arange(-(end // per_day) - 1, len(values) // per_day + 1)
    places = np.arange(first, end)[None, :] + per_day * days[days != 0][:, None]
    others = values[places[(places >= 0) & (places < len(values))]]
    others = others[~np.isnan(others)]
    return bool(others.size) and float((others == 0).mean()) >= CLOSED


def _with_edges(values: FloatArray, runs: IntArray) -> IntArray:
    """The runs with a bin on either side that was counted in part."""
    level, spread = _neighbours(values, runs)
    out = runs.copy()
    for side, step in ((0, -1), (1, 0)):
        beside = runs[:, side] + step
        amounts = values[np.clip(beside, 0, len(values) - 1)]
        part = _chance(np.nan_to_num(amounts, nan=np.inf), level, spread) < CHANCE
        out[:, side] += np.where(part, -1 if side == 0 else 1, 0)
    return out


def _described(values: FloatArray, lost: BoolArray) -> tuple[Outage, ...]:
    runs = _runs(lost)
    if not len(runs):
        return ()
    level, _ = _neighbours(np.where(lost, np.nan, values), runs)
    described = []
    for (first, end), expected in zip(runs.tolist(), level.tolist(), strict=True):
        after = float(values[end]) / expected if end < len(values) and expected > 0 else np.nan
        described.append(Outage(first, end - first, expected, None if np.isnan(after) else after))
    return tuple(described)
