"""Amounts per series and bin on one grid, from either kind of trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forecasting.demand import DemandSeries
from planner.ingest.options import LABELS
from planner.ingest.report import IngestReport
from planner.ingest.store import DemandColumns, bin_requests, label_code, read_demand, scan_requests
from planner.studies.character.values import BY, UNSAID
from planner.studies.traffic.ranking import ALL
from planner.studies.traffic.window import DAY_S
from simulation.arrays import BoolArray, FloatArray, IntArray

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
WIDTHS_S = (1, 10, 60, 300, 900, 3600)
MAX_BINS = 20_000  # of a trace of requests: a week by the minute
MAX_CELLS = 4_000_000  # of all its series together
MAX_DEMAND_CELLS = 20_000_000  # of all series of a file of counts: 0.6 GB


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """``amounts[field]`` has shape ``[series, bins]``: NaN is a gap, and 0 before the first and
    after the last bin of a series, where ``present`` is false."""

    names: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]  # of each series, by one of BY
    start_s: float
    bin_s: float
    amounts: dict[str, FloatArray]
    present: BoolArray

    @property
    def bins(self) -> int:
        return int(self.present.shape[1])

    @property
    def edges_s(self) -> FloatArray:
        return np.asarray(self.start_s + self.bin_s * np.arange(self.bins), np.float64)

    @property
    def unit(self) -> str:
        """Requests, or the tokens that are counted where requests are not."""
        return next(iter(self.amounts))

    def summed(self, field: str, rows: IntArray | slice = slice(None)) -> FloatArray:
        """Sum over series, ``[bins]``; a gap in one is a gap, and so is where there is none."""
        total = self.amounts[field][rows].sum(axis=0)
        return np.asarray(np.where(self.present[rows].any(axis=0), total, np.nan))

    def total(self, field: str) -> DemandSeries:
        return DemandSeries(ALL, self.start_s, self.bin_s, self.summed(field), field)

    def codes(self, by: str) -> tuple[tuple[str, ...], IntArray]:
        """Labels in order of their amounts, the largest first, and each series' place in them."""
        names, codes = np.unique(np.array(self.labels[by]), return_inverse=True)
        sums = np.bincount(codes, np.nansum(self.amounts[self.unit], axis=1), len(names))
        order = np.argsort(-sums, kind="stable")
        return tuple(names[order].tolist()), np.argsort(order)[codes]


def demand_grid(columns: Sequence[DemandColumns]) -> Grid:
    """The series of a file, or of bins that requests were counted in."""
    bin_s = columns[0].bin_s
    start_s = min(series.start_s for series in columns)
    places = [round((series.start_s - start_s) / bin_s) for series in columns]
    bins = max(place + len(s.requests) for place, s in zip(places, columns, strict=True))
    present = np.zeros((len(columns), bins), bool)
    for row, (place, series) in enumerate(zip(places, columns, strict=True)):
        present[row, place : place + len(series.requests)] = True
    amounts: dict[str, FloatArray] = {}
    for field in AMOUNTS:
        values = np.where(present, np.nan, 0.0)
        for row, (place, series) in enumerate(zip(places, columns, strict=True)):
            column = getattr(series, field)
            if column is not None:
                values[row, place : place + len(column)] = column
        if np.isfinite(values[present]).any():
            amounts[field] = values
    named = {label: [getattr(series, label) for series in columns] for label in LABELS}
    labels = {
        label: tuple(name or UNSAID for name in names)
        for label, names in named.items()
        if any(names)
    }
    names = tuple(series.name for series in columns)
    if len(set(names)) > len(set(zip(*named.values(), strict=True))):
        labels["series"] = names
    ordered = {by: labels[by] for by in BY if by in labels}
    return Grid(names, ordered, start_s, bin_s, amounts, present)


def joined(columns: Sequence[DemandColumns]) -> Sequence[DemandColumns]:
    """Return the series with as many bins summed into one as MAX_DEMAND_CELLS asks for.

    With a gap in it a sum is a gap. Beyond its own bins a series counts as nothing.
    """
    bin_s = columns[0].bin_s
    start_s = min(series.start_s for series in columns)
    places = [round((series.start_s - start_s) / bin_s) for series in columns]
    bins = max(place + len(s.requests) for place, s in zip(places, columns, strict=True))
    factor = -(-bins * len(columns) // MAX_DEMAND_CELLS)
    if factor == 1:
        return columns
    # Whole bins to a day, so that days are told apart.
    while factor * bin_s < DAY_S and DAY_S % (factor * bin_s):
        factor += 1

    def sums(values: Any, place: int) -> Any:
        if values is None:
            return None
        before = place % factor
        after = -(before + len(values)) % factor
        return np.asarray(np.pad(values, (before, after)).reshape(-1, factor).sum(axis=1))

    return [
        replace(
            series,
            start_s=start_s + (place - place % factor) * bin_s,
            bin_s=factor * bin_s,
            requests=sums(series.requests, place),
            input_tokens=sums(series.input_tokens, place),
            output_tokens=sums(series.output_tokens, place),
            total_tokens=sums(series.total_tokens, place),
        )
        for place, series in zip(places, columns, strict=True)
    ]


def stored_grid(store: Path, report: IngestReport) -> Grid:
    """The grid of a stored trace: a demand file's own bins, some of them together where its series
    have too many, or requests counted in bins of a round width that tells minutes apart where the
    trace is not too long for it."""
    if report.kind == "demand":
        return demand_grid(joined(read_demand(store)))
    _, scan = scan_requests(store)
    series = int(scan.select(label_code(report).n_unique()).collect(engine="streaming").item())
    return demand_grid(bin_requests(store, base_width(report.end_s - report.start_s, series)))


def base_width(span_s: float, series: int = 1) -> float:
    """The narrowest of WIDTHS_S, or days, that leaves few enough bins."""
    bins = min(MAX_BINS, MAX_CELLS // max(1, series))
    return next((width for width in WIDTHS_S if span_s / width <= bins), 86_400)
