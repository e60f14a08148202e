"""Remove bins that are no demand: outages, the backlog after them, and single outliers.

Removed bins become gaps and are listed. ``forecasting.outages`` finds most outages. Zeros in a row
in a series that is hardly ever zero are an outage too, if the next bin has a backlog. Other zeros
stay, since a service may be idle. An outlier is one bin several times above every other bin. A peak
that occurs twice is a pattern. The latest bins are never outliers, since a surge may begin there.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forecasting.arrays import BoolArray, FloatArray, IntArray
from forecasting.outages import find_outages, find_runs, may_have_outages, outage_mask

RARE_ZEROS = 0.05  # largest share of zero bins in a series in which zeros can be an outage
BACKLOG_FACTOR = 2.0  # a bin after an outage above this multiple of the mean before is a backlog
BINS_BEFORE = 8  # bins before an outage in that mean
OUTLIER_FACTOR = 5.0  # an outlier is above this multiple of the next largest bin
MIN_OBSERVED = 48  # observed bins that a series needs for outliers and rare zeros
SETTLED_BINS = 4  # bins that must follow an outlier


class Reason(StrEnum):
    """Why a bin was removed."""

    OUTAGE = "outage"
    BACKLOG = "backlog after an outage"
    OUTLIER = "several times above every other bin"


@dataclass(frozen=True, slots=True)
class CleanedBin:
    """A bin that was removed because it is no demand."""

    bin: int  # index in the series
    amount: float  # observed amount
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Cleaned:
    """The amounts of a panel with gaps for the bins that are no demand.

    Masks are True where a bin was removed. They have the shape of ``values``.
    """

    values: FloatArray  # [series, bins], NaN where removed
    outage: BoolArray
    backlog: BoolArray
    outlier: BoolArray

    def bins(self, row: int, original: FloatArray) -> tuple[CleanedBin, ...]:
        """Return the removed bins of series ``row`` in order of time.

        ``original [bins]`` are the amounts of the series before cleaning.
        """
        removed = []
        for mask, reason in (
            (self.outage, Reason.OUTAGE),
            (self.backlog, Reason.BACKLOG),
            (self.outlier, Reason.OUTLIER),
        ):
            for t in np.flatnonzero(mask[row]).tolist():
                removed.append(CleanedBin(t, float(original[t]), reason))
        return tuple(sorted(removed, key=lambda cleaned: cleaned.bin))


def clean(values: FloatArray, bin_s: float) -> Cleaned:
    """Replace the bins of ``values [series, bins]`` that are no demand by gaps (NaN).

    The result depends on the given bins only. To clean as of a moment, pass the bins up to it.
    """
    has_enough_bins = (~np.isnan(values)).sum(axis=1) >= MIN_OBSERVED
    outage, backlog = _outages_and_backlogs(values, bin_s, has_enough_bins)
    demand = np.where(outage | backlog, np.nan, values)
    outlier = _find_outliers(demand) & has_enough_bins[:, None]
    removed = outage | backlog | outlier
    return Cleaned(np.where(removed, np.nan, values), outage, backlog, outlier)


def _outages_and_backlogs(
    values: FloatArray, bin_s: float, has_enough_bins: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Return the masks of outages and of the backlogs after them, both ``[series, bins]``.

    ``values`` are ``[series, bins]``. If at most RARE_ZEROS of a series' bins are zero, and it
    ``has_enough_bins [series]``, its zeros before a backlog count as an outage.
    """
    outage, backlog = np.zeros((2, *values.shape), bool)
    is_zero = values == 0
    zero_share = is_zero.sum(axis=1) / np.maximum((~np.isnan(values)).sum(axis=1), 1)
    zeros_are_rare = has_enough_bins & (zero_share <= RARE_ZEROS)
    may_have_outage = may_have_outages(values)
    for row in np.flatnonzero(zero_share > 0):
        if may_have_outage[row]:
            outage[row] = outage_mask(find_outages(values[row], bin_s), values.shape[1])
        _mark_backlogs(values[row], is_zero[row], zeros_are_rare[row], outage[row], backlog[row])
    return outage, backlog


def newly_cleaned(values: FloatArray, bin_s: float, since: int) -> tuple[IntArray, IntArray]:
    """Return (series, bins): the indices of the bins of ``values [series, bins]`` to remove.

    To save time, only series with suspect bins from bin ``since`` on are cleaned. Suspect bins are
    zeros before the last bin, and bins far above all bins before ``since``.
    """
    late = values[:, since:]
    has_zero = (late[:, :-1] == 0).any(axis=1)
    largest_before = np.fmax.reduce(values[:, :since], axis=1, initial=0.0)
    largest_late = np.fmax.reduce(late, axis=1, initial=-1.0)
    suspect_series = np.flatnonzero(has_zero | (largest_late > OUTLIER_FACTOR * largest_before))
    suspect_values = values[suspect_series]
    removed = np.isnan(clean(suspect_values, bin_s).values) & ~np.isnan(suspect_values)
    row, bins = np.nonzero(removed)
    return suspect_series[row], np.asarray(bins, np.int64)


def _mark_backlogs(
    values: FloatArray,
    is_zero: BoolArray,
    zeros_are_rare: bool,
    outage: BoolArray,
    backlog: BoolArray,
) -> None:
    """Mark in ``backlog`` the bins of one series in which a backlog arrived after an outage.

    A backlog is a bin with more than BACKLOG_FACTOR times the mean of the bins before the outage.
    All arrays are ``[bins]``. ``outage`` and ``backlog`` are changed in place: if
    ``zeros_are_rare``, zeros before a backlog are marked in ``outage``.
    """
    suspect = outage | is_zero if zeros_are_rare else outage
    for first, end in find_runs(suspect).tolist():
        before = values[max(0, first - BINS_BEFORE) : first]
        before = before[~np.isnan(before)]
        if end < len(values) and before.size and values[end] > BACKLOG_FACTOR * before.mean():
            outage[first:end] = True
            backlog[end] = True


def _find_outliers(values: FloatArray) -> BoolArray:
    """Return the mask of bins that are several times above every other bin of their series.

    Each series, a row of ``values [series, bins]``, has at most one. The last ``SETTLED_BINS`` bins
    are none, because they may begin a lasting change.
    """
    amounts = np.where(np.isnan(values), -np.inf, values)
    outlier = np.zeros(values.shape, bool)
    if values.shape[1] <= SETTLED_BINS:
        return outlier
    largest_bin = amounts.argmax(axis=1)
    rows = np.arange(len(values))
    largest = amounts[rows, largest_bin]
    amounts[rows, largest_bin] = -np.inf
    second = amounts.max(axis=1)
    is_settled = largest_bin < values.shape[1] - SETTLED_BINS
    is_outlier = (second > 0) & (largest > OUTLIER_FACTOR * second) & is_settled
    outlier[rows[is_outlier], largest_bin[is_outlier]] = True
    return outlier
