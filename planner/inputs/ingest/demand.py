"""Read a demand file: amounts per bin, checked and laid on a regular grid.

Absent bins become gaps. All cells are held in memory (a few tens of bytes each), because a grid
needs every row of a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import clock
from planner.inputs.ingest.checks import (
    Names,
    amounts,
    first_reasons,
    labels,
)
from planner.inputs.ingest.columns import (
    Amounts,
    DemandLayout,
    demand_layout,
)
from planner.inputs.ingest.grid import (
    AMOUNTS,
    Grid,
    bin_width,
    gap_counts,
    lay_out,
    numbered,
    totals,
)
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.reading import (
    Content,
    Reading,
    read_times,
)
from planner.inputs.ingest.report import (
    SeriesReport,
    moment,
    whole,
)
from planner.inputs.ingest.requests import clock_notes
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.source import base_name
from planner.inputs.ingest.store import write_demand

MAX_CELLS = 20_000_000


def read_demand_file(reading: Reading) -> Content:
    """Read every series of a demand file onto its grid.

    Raises IngestError also if rows contradict each other or no bin width is found.
    """
    layout = demand_layout(reading.table.columns, reading.options, reading.name)
    reader = _Reader(reading, layout)
    for batch in reading.table.batches(reader.columns):
        reader.take(batch)
        reading.on_batch()
    reading.tally.require_some(reader.rows)
    return reader.finish()


class _Reader:
    def __init__(self, reading: Reading, layout: DemandLayout) -> None:
        self._reading, self._layout = reading, layout
        self._clocks = {
            source.time: clock.decide(
                reading.table.probe, source.time, source.time_unit, name=reading.name
            )
            for source in layout.sources
        }
        self.names = {label: Names(label, reading.name) for label in LABELS}
        self.columns = list(
            dict.fromkeys(
                [
                    *(column for source in layout.sources for column in source.time),
                    *layout.labels.values(),
                    *(c for source in layout.sources for c in source.amounts.values()),
                ]
            )
        )
        self.rows = 0
        self._cells = 0
        self._offsets: set[str] = set()
        self._frames: list[pl.DataFrame] = []

    def take(self, batch: Batch) -> None:
        """Check one batch; a bad cell refuses its whole row."""
        frame = batch.frame
        times = {
            columns: read_times(self._reading, batch, when)
            for columns, when in self._clocks.items()
        }
        cells = {
            column: amounts(frame[column], column)
            for source in self._layout.sources
            for column in source.amounts.values()
        }
        bad, faults = first_reasons(
            [*(t.refused for t in times.values()), *(refused for _, refused in cells.values())],
            batch.lines,
            batch.text,
        )
        for fault in (*batch.faults, *faults):
            self._reading.tally.add(fault)
        self._reading.tally.close_batch()
        self.rows += batch.lines.size + sum(fault.lines.size for fault in batch.faults)
        keep = np.arange(frame.height) if bad is None else np.flatnonzero(~bad)
        if not keep.size:
            return
        named = {
            field: labels(frame[column].gather(keep))
            for field, column in self._layout.labels.items()
        }
        for number, source in enumerate(self._layout.sources):
            self._offsets |= times[source.time].offsets
            values = {
                field: pl.Series(cells[column][0][keep]) for field, column in source.amounts.items()
            }
            self._frames.append(
                pl.DataFrame(
                    {
                        "line": batch.lines[keep],
                        "source": pl.Series([number], dtype=pl.Int32).new_from_index(0, keep.size),
                        **{field: named.get(field, _blank(keep.size)) for field in _KEYS},
                        "ns": times[source.time].ns[keep],
                        **{field: values.get(field, _unknown(keep.size)) for field in AMOUNTS},
                    }
                )
            )
            self._cells += keep.size
        if self._cells > MAX_CELLS:
            raise IngestError(
                f"{self._reading.name} has more than {MAX_CELLS:,} bins; sum them over wider bins "
                "or split the file by series."
            )

    def finish(self) -> Content:
        """Lay the series on their grids, write them, and return the content."""
        grids, width_ns = self._grids()
        series = series_reports(grids, next(iter(self._clocks.values())).kind)
        if all(each.gaps == each.bins for each in series):
            columns = {c for source in self._layout.sources for c in source.amounts.values()}
            raise IngestError(
                f"{self._reading.name}: no row has a number in {' or '.join(sorted(columns))}; "
                "name the columns that hold the amounts."
            )
        write_demand(self._reading.folder, grids)
        for label, names in self.names.items():
            names.add(pl.Series([grid.identity[label] for grid in grids], dtype=pl.String))
        when = next(iter(self._clocks.values()))
        return Content(
            kind="demand",
            rows=self.rows,
            requests=total(grids, "requests"),
            clock=when,
            start_ns=min(grid.start_ns for grid in grids),
            end_ns=max(grid.end_ns for grid in grids),
            input_tokens=total(grids, "input_tokens"),
            output_tokens=total(grids, "output_tokens"),
            names=self.names,
            columns=self._layout.columns,
            notes=self._notes(),
            series=series,
            bin_s=whole(width_ns / 1e9),
        )

    def _grids(self) -> tuple[list[Grid], int]:
        """Return one grid per series, in order of appearance, and the width of their bins in ns."""
        options, name = self._reading.options, self._reading.name
        table, keys = numbered(pl.concat(self._frames), ["source", *_KEYS])
        width = bin_width(table["number"].to_numpy(), table["ns"].to_numpy(), name, options.bin_s)
        sources = [self._layout.sources[number] for number in keys["source"]]
        labels = keys.select(_KEYS).iter_rows(named=True)
        grids, faults = lay_out(
            table,
            [self._identity(of, source) for of, source in zip(labels, sources, strict=True)],
            width,
            name,
            self._reading.table.unit,
            zero=options.missing == "zero",
            rates=[source.rates for source in sources],
        )
        for fault in faults:
            self._reading.tally.add(fault)
        self._reading.tally.close_batch()
        return grids, width

    def _identity(
        self, labels: Mapping[str, str | None], source: Amounts
    ) -> Mapping[str, str | None]:
        """Return the name and the labels of a series."""
        parts = [labels["series"], *(labels[label] for label in LABELS), source.name]
        name = " / ".join(part for part in parts if part)
        return {
            "name": name or base_name(self._reading.name),
            **{label: self._reading.options.constant(label) or labels[label] for label in LABELS},
        }

    def _notes(self) -> tuple[str, ...]:
        notes = [self._layout.note] if self._layout.note else []
        for when in dict.fromkeys(self._clocks.values()):
            notes += [note for note in clock_notes(when, ()) if note not in notes]
        notes += clock_notes(clock.Clock((), (), True, "", ""), self._offsets)
        rates = sorted({s.amounts[field] for s in self._layout.sources for field in s.rates})
        if rates:
            notes.append(
                f"{' and '.join(rates)} {'are' if len(rates) > 1 else 'is'} per second; multiplied "
                "by the bin width."
            )
        return tuple(notes)


_KEYS = ("series", *LABELS)


def series_reports(grids: Sequence[Grid], kind: str) -> tuple[SeriesReport, ...]:
    """Return the report of each series."""
    sums = [totals(grids, field) for field in ("requests", "input_tokens", "output_tokens")]
    whole_sums = [[None if each is None else whole(each) for each in column] for column in sums]
    return tuple(
        SeriesReport(
            name=str(grid.identity["name"]),
            bins=grid.bins,
            requests=requests,
            gaps=unknown,
            bin_s=whole(grid.bin_ns / 1e9),
            start=moment(grid.start_ns, kind),
            end=moment(grid.end_ns, kind),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            **{label: grid.identity[label] for label in LABELS},
        )
        for grid, unknown, requests, input_tokens, output_tokens in zip(
            grids, gap_counts(grids).tolist(), *whole_sums, strict=True
        )
    )


def total(grids: Sequence[Grid], field: str) -> float | None:
    """Return the sum over the known bins of all series; None if no bin is known."""
    known = [each for each in totals(grids, field) if each is not None]
    return whole(sum(known)) if known else None


def _blank(rows: int) -> pl.Series:
    return pl.Series([None], dtype=pl.String).new_from_index(0, rows)


def _unknown(rows: int) -> pl.Series:
    return pl.Series([np.nan]).new_from_index(0, rows)
