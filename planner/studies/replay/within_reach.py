"""Which regions' demand may be served in which others, where ways between them are closed."""

from __future__ import annotations

import numpy as np

from simulation.arrays import BoolArray

MOST_SETS = 1_000


def sides(open_ways: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Sets of home regions ``[k, r]`` and the regions ``[k, r]`` that each of these may be served
    in, of which demand is carried wherever it is asked for if and only if no set asks for more than
    its regions carry together (Hall); ``open_ways[home, region]``, home's own always.

    With every way open that is one set, of all. Sets that share no region need not be looked at
    together. Where there are too many, every region is held to what it carries itself, which is
    more than is needed.
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
