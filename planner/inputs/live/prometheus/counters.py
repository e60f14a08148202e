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

    - A counter that fell was reset. Its present value was counted after the reset. The rise to
      ``highest`` above the last scrape before was counted before it.
    - A series that returns after missing scrapes with no smaller value is the same process. Its
      growth is spread evenly over the bins in between and the bin of its return. If these are more
      than MOST_SPREAD bins, they are unknown.
    - A series that returns with a smaller value is a new process. Nothing was counted in between.
    - A new series of a target that was seen in the bin before counts from 0: a label's first event.
    - A new series of a new target counts from its first scrape in the bin (``lowest``), because the
      target may have run unseen before.
    """
    scraped = ~np.isnan(last)
    previous, previous_column = _previous_scrapes(last)
    adjacent = previous_column == np.arange(last.shape[1]) - 1
    fell = scraped & (last < previous)
    grew = scraped & (last >= previous)
    is_first = scraped & (previous_column < 0)

    amount = np.where(grew & adjacent, last - previous, 0.0)
    amount[fell] = last[fell]
    if highest is not None:
        rose_before_reset = fell & adjacent & (highest > previous)
        amount[rose_before_reset] += (highest - previous)[rose_before_reset]
    target_seen_before = _target_seen_before(scraped, targets)
    new_label = is_first & target_seen_before
    amount[new_label] = last[new_label]
    if lowest is not None:
        new_target = is_first & ~target_seen_before
        amount[new_target] = (last - lowest)[new_target]

    missing, is_known = np.zeros(last.shape, bool), scraped.copy()
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


def _previous_scrapes(last: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the scrape before each one of ``last [series, points]``, and its column.

    Without one, the value is NaN and the column is -1.
    """
    columns = np.where(np.isnan(last), -1, np.arange(last.shape[1]))
    latest_column = np.maximum.accumulate(columns, axis=1)
    column = np.hstack([np.full((len(last), 1), -1), latest_column[:, :-1]])
    previous = np.take_along_axis(last, np.maximum(column, 0), axis=1)
    previous[column < 0] = np.nan
    return previous, column


def _target_seen_before(scraped: BoolArray, targets: IntArray) -> BoolArray:
    """Return whether any series of the same target was scraped at the point before.

    The shape is that of ``scraped [series, points]``. ``targets [series]`` are numbers.
    """
    seen = np.zeros((int(targets.max(initial=-1)) + 1, scraped.shape[1]), bool)
    np.logical_or.at(seen, targets, scraped)
    seen_before = np.hstack([np.zeros((len(seen), 1), bool), seen[:, :-1]])
    return np.asarray(seen_before[targets])


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
