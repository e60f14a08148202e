"""What a history holds that is no demand: outages with the backlog after them, and single bins
unlike any other. Such bins become gaps, and are listed.

An outage is what ``forecasting.outages`` rules out, bins beside it that were counted in part with
it; and, where bins are too few or too unlike for that, a run of zeros in a series that is otherwise
hardly ever zero, right after which more than usual arrives: what could not come, came later. Other
zeros stay: a service may well be idle. A stray is one bin several times above every other; what
happened twice is a pattern, and the latest bins are never strays, as a surge may be beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.outages import busy, marked, outages

RARE = 0.05  # share of observed bins that may be zero where a run of them can be an outage
SPIKE = 2.0  # times the mean of the bins around: what the first bin after an outage exceeds
AROUND = 8  # bins before the outage that this mean is of
STRAY = 5.0  # times the next largest bin
FEWEST = 48  # observed bins: of fewer none can be called unlike the others
SETTLED = 4  # bins that must follow a stray


class Reason(StrEnum):
    OUTAGE = "outage"
    BACKLOG = "backlog after an outage"
    STRAY = "several times above every other bin"


@dataclass(frozen=True, slots=True)
class CleanedBin:
    bin: int  # index in the series
    amount: float  # what was observed there
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Cleaned:
    values: FloatArray  # [series, bins], NaN where cleaned
    outage: BoolArray  # [series, bins]
    backlog: BoolArray
    stray: BoolArray

    def bins(self, row: int, original: FloatArray) -> tuple[CleanedBin, ...]:
        """Of one series, in order; ``original [bins]`` is what was observed."""
        marks = ((self.outage, Reason.OUTAGE), (self.backlog, Reason.BACKLOG),
                 (self.stray, Reason.STRAY))  # fmt: skip
        cleaned_bins = [
            CleanedBin(int(t), float(original[t]), reason)
            for mark, reason in marks
            for t in np.flatnonzero(mark[row])
        ]
        return tuple(sorted(cleaned_bins, key=lambda cleaned_bin: cleaned_bin.bin))


def cleaned(values: FloatArray, bin_s: float) -> Cleaned:
    """``values [series, bins]``, bins of ``bin_s`` seconds, without what is no demand; what comes
    later changes nothing, since each moment cleans only what it has seen."""
    outage, backlog = np.zeros(values.shape, bool), np.zeros(values.shape, bool)
    seen = ~np.isnan(values)
    zero = seen & (values == 0)
    share = zero.sum(1) / np.maximum(seen.sum(1), 1)
    enough = seen.sum(1) >= FEWEST
    for row in np.flatnonzero(share > 0):
        if busy(values[row]):
            outage[row] = marked(outages(values[row], bin_s), values.shape[1])
        rare = enough[row] and share[row] <= RARE
        _held_up(values[row], zero[row], rare, outage[row], backlog[row])
    stray = _strays(np.where(outage | backlog, np.nan, values)) & enough[:, None]
    gone = outage | backlog | stray
    return Cleaned(np.where(gone, np.nan, values), outage, backlog, stray)


def no_demand(values: FloatArray, bin_s: float, since: int) -> tuple[IntArray, IntArray]:
    """Rows and bins that are cleaned, of those series whose bins from ``since`` on give a reason to
    look: a zero after which something came, or a bin unlike what was before."""
    late = values[:, since:]
    most = np.fmax.reduce(values[:, :since], axis=1, initial=0.0)
    odd = (late[:, :-1] == 0).any(axis=1)
    odd |= np.fmax.reduce(late, axis=1, initial=-1.0) > STRAY * most
    rows = np.flatnonzero(odd)
    gone = np.isnan(cleaned(values[rows], bin_s).values) & ~np.isnan(values[rows])
    which, bins = np.nonzero(gone)
    return rows[which], np.asarray(bins, np.int64)


def _held_up(
    values: FloatArray, zero: BoolArray, rare: bool, outage: BoolArray, backlog: BoolArray
) -> None:
    """Marks in place the backlog after each outage of one series, and, where zeros are rare, as an
    outage those with a backlog after them."""
    lost = outage | zero if rare else outage
    edges = np.diff(np.concatenate([[0], lost.view(np.int8), [0]]))
    for first, after in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        before = values[max(0, first - AROUND) : first]
        before = before[~np.isnan(before)]
        if after < len(values) and before.size and values[after] > SPIKE * before.mean():
            outage[first:after] = True
            backlog[after] = True


def _strays(values: FloatArray) -> BoolArray:
    amounts = np.where(np.isnan(values), -np.inf, values)
    stray = np.zeros(values.shape, bool)
    if values.shape[1] <= SETTLED:
        return stray
    top = amounts.argmax(axis=1)
    rows = np.arange(len(values))
    largest = amounts[rows, top]
    amounts[rows, top] = -np.inf
    second = amounts.max(axis=1)
    lone = (second > 0) & (largest > STRAY * second) & (top < values.shape[1] - SETTLED)
    stray[rows[lone], top[lone]] = True
    return stray
