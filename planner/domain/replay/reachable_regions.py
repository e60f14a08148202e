"""Find which regions can serve which others' demand if some routes are closed."""

from __future__ import annotations

import numpy as np

from simulation.arrays import BoolArray

MOST_SETS = 1_000


def region_sets(open_ways: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return sets of home regions ``[k, r]`` and the regions ``[k, r]`` that can serve each set.

    All demand can be served if and only if no set's demand exceeds the joint capacity of its
    regions (Hall). ``open_ways[home, region]`` says which routes are open; a region always serves
    itself.

    If every route is open there is one set, of all regions. Sets that share no region are not
    combined. Above MOST_SETS sets, each region has to serve its own demand, which is stricter.
    """
    reach = {_bits(row) for row in open_ways}
    served_in, fresh = set(reach), list(reach)
    while fresh:
        regions = fresh.pop()
        for other in reach:
            if regions & other and regions | other not in served_in:
                served_in.add(regions | other)
                fresh.append(regions | other)
        if len(served_in) > MOST_SETS:
            alone = np.eye(len(open_ways), dtype=np.bool_)
            return alone, alone
    where = np.arange(len(open_ways))
    into = np.array([[regions >> int(r) & 1 for r in where] for regions in sorted(served_in)], bool)
    homes = ~(open_ways[None] & ~into[:, None]).any(axis=2)
    return homes, into


def _bits(row: BoolArray) -> int:
    return sum(1 << int(r) for r in np.flatnonzero(row))
