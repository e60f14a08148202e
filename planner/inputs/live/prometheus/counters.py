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

    ``last`` ``[series, bins + 1]`` is the last scrape within each bin, NaN without one. Its first
    column is the bin before. ``lowest`` and ``highest`` have the same shape: the smallest and the
    largest scrape in the bin. ``targets`` ``[series]`` is the number of the process of each series.

    - A counter that fell was reset. Its present value was counted after the reset, and its rise
      above
      the last scrape before (``highest``) before the reset.
    - A series that returns after missing scrapes with no smaller value is the same process. Its
      growth
      is spread evenly over the bins in between and the bin of its return. If these are more than
      MOST_SPREAD bins, they are unknown.
    - A series that returns with a smaller value is a new process. Nothing was counted in between.
    - A new series of a target that was seen in the bin before counts from 0: a label's first event.
    - A new series of a new target counts from its first scrape in the bin (``lowest``), because the
      target may have run unseen before.
    """
    series, points = last.shape
    scraped = ~np.isnan(last)
    columns = np.arange(points)
    # Column of the last scrape before each column; -1: none.
    latest_column = np.maximum.accumulate(np.where(scraped, columns, -1), axis=1)
    previous_column = np.hstack([np.full((series, 1), -1), latest_column[:, :-1]])
    previous = np.take_along_axis(last, np.maximum(previous_column, 0), axis=1)
    previous[previous_column < 0] = np.nan
    fell = scraped & (last < previous)
    grew = scraped & (last >= previous)
    is_first = scraped & (previous_column < 0)
    adjacent = previous_column == columns - 1

    amount = np.zeros((series, points))
    plain = grew & adjacent
    amount[plain] = (last - previous)[plain]
    amount[fell] = last[fell]
    if highest is not None:
        grew_before_reset = fell & adjacent & (highest > previous)
        amount[grew_before_reset] += (highest - previous)[grew_before_reset]
    alive = np.zeros((int(targets.max(initial=-1)) + 1, points), bool)  # [targets, points]
    np.logical_or.at(alive, targets, scraped)
    alive_before = np.hstack([np.zeros((len(alive), 1), bool), alive[:, :-1]])[targets]
    new_label = is_first & alive_before
    amount[new_label] = last[new_label]
    if lowest is not None:
        new_target = is_first & ~alive_before
        amount[new_target] = (last - lowest)[new_target]

    missing, is_known = np.zeros((series, points), bool), scraped.copy()
    # A loop is fast enough, because few series return.
    for row, column in zip(*np.nonzero(grew & ~adjacent), strict=True):
        gap = slice(previous_column[row, column] + 1, column + 1)
        bins = gap.stop - gap.start
        if bins <= MOST_SPREAD:
            amount[row, gap] = (last - previous)[row, column] / bins
            is_known[row, gap] = True
        else:
            missing[row, gap] = True
    return Increases(amount[:, 1:], missing[:, 1:], is_known[:, 1:])


def wants_extremes(last: FloatArray, targets: IntArray) -> bool:
    """Return whether ``increases`` needs the lowest and highest scrapes of each bin.

    It does if a counter fell or a new target appeared. The extremes cost two further queries.
    The arguments are as in ``increases``.
    """
    if bool((np.diff(last, axis=1) < 0).any()):
        return True
    scraped = ~np.isnan(last)
    by_target = (scraped[targets == target].any(axis=0) for target in np.unique(targets))
    return any(bool(bins.any() and not bins[0]) for bins in by_target)
