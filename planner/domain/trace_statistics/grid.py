"""Put the amounts of a trace on one grid of series and bins.

A series is the traffic with one model, region and tier. An amount is a number of requests or
tokens. A gap is a bin whose amount is not known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from forecasting.demand import DemandSeries
from planner.domain.trace_statistics.figures import LABEL_KINDS, UNLABELLED
from planner.domain.traffic.window import DAY_S
from planner.domain.traffic.window_rank import ALL
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.report import IngestReport
from planner.inputs.ingest.store import (
    DemandColumns,
    bin_requests,
    label_code,
    read_demand,
    scan_requests,
)
from simulation.arrays import BoolArray, FloatArray, IntArray

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
WIDTHS_S = (1, 10, 60, 300, 900, 3600)
MAX_BINS = 20_000  # per series of a request trace: enough for a week of minutes
MAX_CELLS = 4_000_000  # most series times bins of a file of requests
MAX_DEMAND_CELLS = 20_000_000  # most series times bins of a file of counts: 0.6 GB


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The amounts of all series, on common bins."""

    names: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]  # [series] by kind of label, one of LABEL_KINDS
    start_s: float
    bin_s: float
    amounts: dict[str, FloatArray]  # [series, bins] by field; NaN: gap; 0 outside ``present``
    present: BoolArray  # [series, bins] from the first to the last bin of a series

    @property
    def bins(self) -> int:
        """Return the number of bins."""
        return int(self.present.shape[1])

    @property
    def edges_s(self) -> FloatArray:
        """Return the start of each bin in seconds, ``[bins]``."""
        return np.asarray(self.start_s + self.bin_s * np.arange(self.bins), np.float64)

    @property
    def unit(self) -> str:
        """Return "requests", or the field of tokens if requests are not counted."""
        return next(iter(self.amounts))

    def sum_over_series(self, field: str, rows: IntArray | slice = slice(None)) -> FloatArray:
        """Return the sum of the amount ``field`` over series (``rows``), ``[bins]``.

        A bin is a gap (NaN) if one of the series has a gap there, or if none is present.
        """
        total = self.amounts[field][rows].sum(axis=0)
        return np.asarray(np.where(self.present[rows].any(axis=0), total, np.nan))

    def total(self, field: str) -> DemandSeries:
        """Return the sum of the amount ``field`` over all series, as a demand series."""
        return DemandSeries(ALL, self.start_s, self.bin_s, self.sum_over_series(field), field)

    def groups(self, most: int) -> Iterator[tuple[str, str, IntArray]]:
        """Yield (kind, label, indices of its series) for all series, then for single labels.

        Of each kind, only the ``most`` labels with the largest amounts are yielded.
        """
        yield "all", "all", np.arange(len(self.names))
        for by in self.labels:
            names, codes = self.codes(by)
            for code, name in enumerate(names[:most]):
                yield by, name, np.flatnonzero(codes == code)

    def codes(self, by: str) -> tuple[tuple[str, ...], IntArray]:
        """Return (labels of the kind ``by``, index of each series' label among them).

        Labels with the largest amounts come first.
        """
        labels, label_of_series = np.unique(np.array(self.labels[by]), return_inverse=True)
        series_amounts = np.nansum(self.amounts[self.unit], axis=1)
        label_amounts = np.bincount(label_of_series, series_amounts, len(labels))
        largest_first = np.argsort(-label_amounts, kind="stable")
        rank_of_label = np.argsort(largest_first)  # the inverse permutation
        return tuple(labels[largest_first].tolist()), rank_of_label[label_of_series]


def demand_grid(columns: Sequence[DemandColumns]) -> Grid:
    """Return the grid of demand series, read from a file or counted from requests."""
    start_s, bin_s, first_bins, bins = _common_bins(columns)
    spans = [
        slice(first, first + len(series.requests))
        for first, series in zip(first_bins, columns, strict=True)
    ]
    present = np.zeros((len(columns), bins), bool)
    for row, span in enumerate(spans):
        present[row, span] = True
    amounts: dict[str, FloatArray] = {}
    for field in AMOUNTS:
        values = np.where(present, np.nan, 0.0)  # a gap where the file has no amount
        for row, series in enumerate(columns):
            if getattr(series, field) is not None:
                values[row, spans[row]] = getattr(series, field)
        if np.isfinite(values[present]).any():
            amounts[field] = values
    names = tuple(series.name for series in columns)
    return Grid(names, _labels(columns), start_s, bin_s, amounts, present)


def _labels(columns: Sequence[DemandColumns]) -> dict[str, tuple[str, ...]]:
    """Return the label of each series by kind, such as "model", for each kind that the file has."""
    labels = {}
    for kind in LABELS:
        stated = [getattr(series, kind) for series in columns]
        if any(stated):
            labels[kind] = tuple(label or UNLABELLED for label in stated)
    # Series names add information only if several series have the same labels.
    names = tuple(series.name for series in columns)
    combinations = {tuple(getattr(series, kind) for kind in LABELS) for series in columns}
    if len(set(names)) > len(combinations):
        labels["series"] = names
    return {kind: labels[kind] for kind in LABEL_KINDS if kind in labels}


def _common_bins(columns: Sequence[DemandColumns]) -> tuple[float, float, list[int], int]:
    """Return (start_s, bin_s, first bin of each series, number of bins) of bins for all series."""
    bin_s = columns[0].bin_s  # the same in all series
    start_s = min(series.start_s for series in columns)
    first_bins = [round((series.start_s - start_s) / bin_s) for series in columns]
    ends = [first + len(series.requests) for first, series in zip(first_bins, columns, strict=True)]
    return start_s, bin_s, first_bins, max(ends)


def merge_bins(columns: Sequence[DemandColumns]) -> Sequence[DemandColumns]:
    """Return the series with bins merged until there are at most ``MAX_DEMAND_CELLS`` in all.

    A merged bin with a gap is a gap. Before and after its own bins, a series counts as 0.
    """
    start_s, bin_s, first_bins, bins = _common_bins(columns)
    # Number of bins to merge into one.
    factor = ceil(bins * len(columns) / MAX_DEMAND_CELLS)
    if factor == 1:
        return columns
    # A day must be a whole number of bins, or days could not be ranked.
    while factor * bin_s < DAY_S and DAY_S % (factor * bin_s):
        factor += 1
    merged = []
    for first_bin, series in zip(first_bins, columns, strict=True):
        # Fill the first and the last merged bin with zeros.
        before = first_bin % factor
        after = -(before + len(series.requests)) % factor  # up to a multiple of ``factor``
        sums = {}
        for field in AMOUNTS:
            values = getattr(series, field)
            if values is not None:
                padded = np.pad(values, (before, after))
                sums[field] = padded.reshape(-1, factor).sum(axis=1)
        begin_s = start_s + (first_bin - before) * bin_s
        merged.append(replace(series, start_s=begin_s, bin_s=factor * bin_s, **sums))
    return merged


def stored_grid(store: Path, report: IngestReport) -> Grid:
    """Return the grid of the trace stored in the folder ``store``.

    A demand file keeps its bins, merged if there are too many. Requests are counted in bins of the
    narrowest round width that leaves few enough.
    """
    if report.kind == "demand":
        return demand_grid(merge_bins(read_demand(store)))
    _, scan = scan_requests(store)
    series = int(scan.select(label_code(report).n_unique()).collect(engine="streaming").item())
    return demand_grid(bin_requests(store, base_width(report.end_s - report.start_s, series)))


def base_width(span_s: float, series: int = 1) -> float:
    """Return the narrowest width of ``WIDTHS_S`` with few enough bins in ``span_s``, or a day."""
    bins = min(MAX_BINS, MAX_CELLS // max(1, series))
    return next((width for width in WIDTHS_S if span_s / width <= bins), 86_400)
