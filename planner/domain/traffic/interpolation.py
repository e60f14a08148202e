"""Cut the bins of a demand file into shorter ones, for scaling intervals shorter than the bins.

The count since the start of the file is interpolated by cubic Hermite pieces. Its slope at an edge
is the harmonic mean of both bins' rates (Fritsch and Butland 1984, SIAM J. Sci. Stat. Comput. 5).
So it never falls, and every bin keeps its total.
"""

from dataclasses import replace

import numpy as np

from planner.inputs.ingest.store import DemandColumns
from simulation.arrays import FloatArray

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens", "cached_tokens")


def with_shorter_bins(columns: DemandColumns, bin_s: float) -> DemandColumns:
    """Return a series in bins of ``bin_s`` seconds, if its own are a multiple of that.

    Requests of a bin stay whole numbers. Tokens per request are those of the whole bin. A gap stays
    a gap. Other bins are returned unchanged.
    """
    parts = round(columns.bin_s / bin_s)
    if parts < 2 or abs(columns.bin_s / bin_s - parts) > 1e-6:
        return columns
    columns_by_name = {name: getattr(columns, name) for name in AMOUNTS}
    amounts = {name: values for name, values in columns_by_name.items() if values is not None}
    # One amount divides all, so that tokens per request do not change. It is requests, if counted.
    counted = (values for values in amounts.values() if not np.isnan(values).all())
    shares = _shares_of_parts(next(counted, columns.requests), parts)
    cut = {name: (values[:, None] * shares).ravel() for name, values in amounts.items()}
    return replace(columns, bin_s=columns.bin_s / parts, **cut)


def _shares_of_parts(totals: FloatArray, parts: int) -> FloatArray:
    """Return the share of each bin's total in its equal ``parts``, ``[bins, parts]``.

    ``totals [bins]`` are amounts; NaN is a gap, whose parts are equal. If all totals are whole
    numbers, so are the parts.
    """
    known = np.nan_to_num(totals)
    # A first or last bin, or one beside a gap, goes on at its own rate.
    before = np.r_[totals[:1], totals[:-1]]
    after = np.r_[totals[1:], totals[-1:]]
    slope_at_begin, slope_at_end = (
        _harmonic_mean(known, np.where(np.isnan(other), known, other)) for other in (before, after)
    )
    s = np.arange(parts + 1) / parts  # edges of the parts, in bins
    # Cubic Hermite piece: the count since the bin's begin, from 0 to the total, with these slopes.
    since_begin = (
        known[:, None] * (3 * s**2 - 2 * s**3)
        + slope_at_begin[:, None] * (s**3 - 2 * s**2 + s)
        + slope_at_end[:, None] * (s**3 - s**2)
    )
    if (known == np.round(known)).all():
        since_begin = np.round(since_begin)
    counts = np.diff(since_begin, axis=1)
    equal = np.full_like(counts, 1 / parts)
    return np.divide(counts, known[:, None], out=equal, where=known[:, None] > 0)


def _harmonic_mean(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the harmonic mean of two amounts >= 0, element by element; 0 if one of them is 0."""
    total = one + other
    return 2 * np.divide(one * other, total, out=np.zeros_like(total), where=total > 0)
