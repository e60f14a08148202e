"""Increases of counters per bin from what was scraped: resets, absent targets, missing scrapes.

Prometheus' own ``increase`` stretches what it saw to the edges of the range, so that bins do not
add up to the counter. Here a bin's increase is the last scrape in it less the last one in the bin
before, so that bins add up, series by series.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Increases:
    """Of each series and bin, ``[series, bins]``. ``amount`` is 0 where the series is not there;
    ``missing`` where it counted on but was not scraped, so that nobody knows how much."""

    amount: FloatArray
    missing: BoolArray
    there: BoolArray  # scraped in the bin


def increases(
    last: FloatArray,
    lowest: FloatArray | None = None,
    highest: FloatArray | None = None,
    *,
    targets: IntArray,
) -> Increases:
    """``last [series, bins + 1]`` holds the last scrape within each bin, NaN where there was none;
    the first column is the bin before. ``lowest`` and ``highest``, of the same shape, are the least
    and the most that was scraped in the bin. ``targets [series]`` says which series come from one
    process.

    - A counter that fell began anew: what it shows now came since, and what it reached above its
      last scrape before (``highest``) came before.
    - A series that was away and comes back no smaller is the same process: its scrapes are missing,
      and the bins in between, with the one it comes back in, are unknown. Where it comes back
      smaller it is a new process, and nothing came while there was none.
    - A series seen for the first time counts from 0 where its target was there before (a label's
      first event); else, as nothing tells how long a target had run unseen, from its first scrape
      in the bin (``lowest``).
    """
    series, points = last.shape
    known = ~np.isnan(last)
    columns = np.arange(points)
    # Column of the last scrape before each one, -1 where there is none.
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

    missing = np.zeros((series, points), bool)
    for s, back in zip(*np.nonzero(grew & ~adjacent), strict=True):  # few: series that came back
        missing[s, before[s, back] + 1 : back + 1] = True
    amount[missing] = 0.0
    return Increases(amount[:, 1:], missing[:, 1:], known[:, 1:])


def wants_extremes(last: FloatArray, targets: IntArray) -> bool:
    """Whether ``increases`` could use what was lowest and highest in a bin: a counter fell, or a
    target came."""
    known = ~np.isnan(last)
    if bool((np.diff(last, axis=1) < 0).any()):
        return True
    for target in np.unique(targets):
        seen = known[targets == target].any(axis=0)
        if seen.any() and not seen[0]:
            return True
    return False
