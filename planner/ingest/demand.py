"""A demand file: amounts per bin, checked and laid on a regular grid in which absent bins are gaps.

The file's cells are held in memory (a few tens of bytes each), since a grid needs all of a series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.ingest import clock
from planner.ingest.checks import Names, Tally, amounts, first_reasons, labels
from planner.ingest.columns import Amounts, DemandLayout
from planner.ingest.grid import AMOUNTS, MAX_BINS, Grid, bin_width, lay_out
from planner.ingest.options import LABELS, IngestOptions
from planner.ingest.requests import clock_notes
from planner.ingest.rows import Batch, Fault
from planner.ingest.source import base_name
from planner.ingest.tables import Table

MAX_CELLS = 20_000_000


@dataclass(frozen=True, slots=True, eq=False)
class DemandFound:
    """What a demand file held."""

    rows: int
    clock: clock.Clock
    grids: tuple[Grid, ...]  # one per series, in order of appearance
    bin_ns: int
    names: dict[str, Names]
    notes: tuple[str, ...]


def read_demand_file(
    table: Table,
    layout: DemandLayout,
    options: IngestOptions,
    name: str,
    tally: Tally,
    on_batch: Callable[[], None],
) -> DemandFound:
    """Every series of a demand file on its grid.

    Raises IngestError when no row is accepted, when rows contradict each other, when no bin width
    can be found, or at the first refused row of a strict reading.
    """
    reader = _Reader(table, layout, options, name, tally)
    for batch in table.batches(reader.columns):
        reader.take(batch)
        on_batch()
    tally.require_some(reader.rows)
    return reader.finish()


class _Reader:
    def __init__(
        self,
        table: Table,
        layout: DemandLayout,
        options: IngestOptions,
        name: str,
        tally: Tally,
    ) -> None:
        self._layout, self._options, self._name, self._tally = layout, options, name, tally
        self._unit = table.unit
        self._clocks = {
            source.time: clock.decide(table.probe, source.time, source.time_unit, name=name)
            for source in layout.sources
        }
        self.names = {label: Names(label, name) for label in LABELS}
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
        """Check one batch; a row is refused whole when any of its cells is."""
        frame = batch.frame
        times = {columns: clock.read(frame, when) for columns, when in self._clocks.items()}
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
            self._tally.add(fault)
        self._tally.close_batch()
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
                f"{self._name} has more than {MAX_CELLS:,} bins; sum them over wider bins or split "
                "the file by series."
            )

    def finish(self) -> DemandFound:
        options = self._options
        table = pl.concat(self._frames)
        groups = table.partition_by(["source", *_KEYS], maintain_order=True)
        width = bin_width([group["ns"].to_numpy() for group in groups], self._name, options.bin_s)
        grids: list[Grid] = []
        late: dict[int, Fault] = {}  # by line: several series of one row fail together
        for group in groups:
            source = self._layout.sources[int(group["source"][0])]
            grid, faults = lay_out(
                group,
                self._identity(group, source),
                width,
                self._name,
                self._unit,
                room=MAX_BINS - sum(done.bins for done in grids),
                zero=options.missing == "zero",
                rates=source.rates,
            )
            grids.append(grid)
            for fault in faults:
                late |= {line: fault for line in fault.lines.tolist() if line not in late}
        for fault in dict.fromkeys(late.values()):
            self._tally.add(fault.only([late[line] is fault for line in fault.lines.tolist()]))
        self._tally.close_batch()
        for grid in grids:
            for label, names in self.names.items():
                names.add(pl.Series([grid.identity[label]], dtype=pl.String))
        return DemandFound(
            rows=self.rows,
            clock=next(iter(self._clocks.values())),
            grids=tuple(grids),
            bin_ns=width,
            names=self.names,
            notes=self._notes(),
        )

    def _identity(self, group: pl.DataFrame, source: Amounts) -> Mapping[str, str | None]:
        """Name and labels of a series."""
        own = {field: group[field][0] for field in _KEYS}
        parts = [own["series"], *(own[label] for label in LABELS), source.name]
        name = " / ".join(part for part in parts if part)
        return {
            "name": name or base_name(self._name),
            **{label: self._options.constant(label) or own[label] for label in LABELS},
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


def _blank(rows: int) -> pl.Series:
    return pl.Series([None], dtype=pl.String).new_from_index(0, rows)


def _unknown(rows: int) -> pl.Series:
    return pl.Series([np.nan]).new_from_index(0, rows)
