"""Compute increases of counters per bin, despite resets, absent targets and missing scrapes.

Prometheus' own ``increase`` extrapolates to the edges of the range, so its bins do not add up to
the counter. Here the increase of a bin is its last scrape minus the last scrape of the bin before.
These bins add up, series by series.
"""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray

MOST_SPREAD = 6  # bins over which growth is spread evenly; in a longer gap, demand may have changed


@dataclass(frozen=True, slots=True, eq=False)
class Increases:
    """Increases of counters between scrapes, by series and bin, ``[series, bins]``.

    ``amount`` is 0 if the series is absent. ``missing`` marks bins of a long gap during which the
    series kept counting, so that the amount of each bin is unknown.
    """

    amount: FloatArray
    missing: BoolArray
    there: BoolArray  # scraped in the bin, or in a gap whose growth is spread


def increases(
    last: FloatArray,
    lowest: FloatArray | None = None,
    highest: FloatArray | None = None,
    *,
    targets: IntArray,
) -> Increases:
    """Return the increase of each series in each bin.

    ``last`` ``[series, bins + 1]`` holds the last scrape within each bin, NaN without one. Its
    first column is the bin before. ``lowest`` and ``highest`` have the same shape and hold the
    extremes of the bin's scrapes. ``targets`` ``[series]`` numbers the process of each series.

    - A counter that fell was reset. Its present value came after the reset. Its rise above the last
      scrape before (``highest``) came before the reset.
    - A series that was absent and returns with no smaller value is the same process with missing
      scrapes. Its growth is spread evenly over the bins between and the bin of its return. If these
      are more than MOST_SPREAD, they are unknown.
    - A series that returns smaller is a new process. Nothing was counted in between.
    - A new series of a target that was in the bin before (a label's first event) counts from 0.
    - A new series of a new target counts from its first scrape in the bin (``lowest``). The target
      may have run unseen for any time.
    """
    series, points = last.shape
    known = ~np.isnan(last)
    columns = np.arange(points)
    # Column of the last scrape before each column; -1: none.
    upto = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    before = np.concatenate([np.full((series, 1), -1), upto[:, :-1]], axis=1)
    earlier = np.take_along_axis(last, np.maximum(before, 0), axis=1)
    earlier[before < 0] = np.nan
    fell = known & (last < earlier)
    grew = known & (last >= earlier)
    first = known & (before < 0)
    adjacent = before == columns - 1

    amount = np.zeros((series, points))
    plain = grew & adjacent
    amount[plain] = (last - earlier)[plain]
    amount[fell] = last[fell]
    if highest is not None:
        lost = fell & adjacent & (highest > earlier)
        amount[lost] += (highest - earlier)[lost]
    alive = np.zeros((int(targets.max(initial=-1)) + 1, points), bool)
    np.logical_or.at(alive, targets, known)
    had = np.concatenate([np.zeros((len(alive), 1), bool), alive[:, :-1]], axis=1)[targets]
    born = first & had
    amount[born] = last[born]
    if lowest is not None:
        new = first & ~had
        amount[new] = (last - lowest)[new]

    missing, there = np.zeros((series, points), bool), known.copy()
    # A loop is fast enough, because few series return.
    for s, back in zip(*np.nonzero(grew & ~adjacent), strict=True):
        bins = slice(before[s, back] + 1, back + 1)
        count = back - before[s, back]
        if count <= MOST_SPREAD:
            amount[s, bins] = (last - earlier)[s, back] / count
            there[s, bins] = True
        else:
            missing[s, bins] = True
    return Increases(amount[:, 1:], missing[:, 1:], there[:, 1:])


def wants_extremes(last: FloatArray, targets: IntArray) -> bool:
    """Return whether ``increases`` needs the lowest and highest scrapes of each bin.

    It does if a counter fell or a new target appeared. The extremes cost two further queries.
    """
    known = ~np.isnan(last)
    if bool((np.diff(last, axis=1) < 0).any()):
        return True
    for target in np.unique(targets):
        seen = known[targets == target].any(axis=0)
        if seen.any() and not seen[0]:
            return True
    return False
