"""Read a request file: check rows, sort them by arrival and write them as Parquet parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import clock
from planner.inputs.ingest.checks import (
    Names,
    first_reasons,
    labels,
    numbers,
    token_counts,
)
from planner.inputs.ingest.columns import (
    RequestLayout,
    request_layout,
)
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.ordering import (
    Part,
    put_in_order,
)
from planner.inputs.ingest.reading import (
    Content,
    Reading,
    read_times,
)
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.store import REQUESTS
from simulation.arrays import IntArray


@dataclass(slots=True)
class _Totals:
    rows: int = 0
    accepted: int = 0
    late: int = 0  # rows with an earlier arrival than a previous row
    first_ns: int = 0
    latest_ns: int = 0
    start_ns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    no_utility: int = 0  # requests without a utility, in a file with utilities
    parts: list[Part] = field(default_factory=list)
    offsets: set[str] = field(default_factory=set)


def read_request_file(reading: Reading) -> Content:
    """Read one row per request into part-00000.parquet and on, in order of arrival."""
    table, format = reading.table, reading.format
    layout = request_layout(table.columns, reading.options, reading.name, format.columns)
    ids = layout.fields.get("hash_ids")
    if ids is not None and table.kind == "csv":
        raise IngestError(
            f"{reading.name}: hash_ids are lists, which CSV cannot hold; give them as JSON lines "
            "or Parquet."
        )
    when = clock.decide(
        table.probe, layout.arrival, layout.arrival_unit, name=reading.name, default=format.unit
    )
    reader = _Reader(reading, layout, when)
    columns = list(dict.fromkeys([*when.columns, *reader.columns]))
    for batch in table.batches(columns, ids=ids):
        reader.take(batch)
        reading.on_batch()
    reading.tally.require_some(reader.totals.rows)
    return reader.finish()


class _Reader:
    def __init__(self, reading: Reading, layout: RequestLayout, when: clock.Clock) -> None:
        self._reading, self._layout, self._clock = reading, layout, when
        self._folder = reading.folder / REQUESTS
        self._folder.mkdir()
        self.names = {label: Names(label, reading.name) for label in LABELS}
        self.columns = [c for f, c in layout.fields.items() if f != "hash_ids"]
        self.totals = _Totals()

    def take(self, batch: Batch) -> None:
        """Check one batch and write its accepted rows as one part."""
        totals, frame = self.totals, batch.frame
        times = read_times(self._reading, batch, self._clock)
        limit = self._reading.options.max_tokens
        fields = self._layout.fields
        prompt, bad_in = token_counts(
            frame[fields["input_tokens"]], "input tokens", limit, "input tokens zero"
        )
        answer, bad_out = token_counts(
            frame[fields["output_tokens"]],
            "output tokens",
            limit,
            self._reading.format.no_output,
        )
        bad, faults = first_reasons([times.refused, bad_in, bad_out], batch.lines, batch.text)
        for fault in (*batch.faults, *faults):
            self._reading.tally.add(fault)
        self._reading.tally.close_batch()
        totals.rows += batch.lines.size + sum(fault.lines.size for fault in batch.faults)
        totals.offsets |= times.offsets
        ns = times.ns
        if bad is not None:
            ns, prompt, answer, frame = ns[~bad], prompt[~bad], answer[~bad], frame.filter(~bad)
        if ns.size:
            totals.input_tokens += int(prompt.sum())
            totals.output_tokens += int(answer.sum())
            self._write(ns, prompt, answer, frame)

    def _write(self, ns: IntArray, prompt: IntArray, answer: IntArray, frame: pl.DataFrame) -> None:
        """Write the accepted rows of a batch as one part, sorted by arrival."""
        totals = self.totals
        if not totals.accepted:
            totals.first_ns = totals.start_ns = totals.latest_ns = int(ns[0])
        latest = np.maximum.accumulate(np.concatenate(([totals.latest_ns], ns)))
        late = int((ns < latest[:-1]).sum())
        part = pl.DataFrame(
            {
                "arrival_s": (ns - totals.first_ns) / 1e9,
                "input_tokens": prompt.astype(np.int32),
                "output_tokens": answer.astype(np.int32),
                **{label: self._label(label, frame) for label in LABELS},
            }
        )
        if "hash_ids" in self._layout.fields:
            part = part.with_columns(frame[self._layout.fields["hash_ids"]].alias("hash_ids"))
        if "utility" in self._layout.fields:
            part = part.with_columns(self._utility(frame[self._layout.fields["utility"]]))
        # Most files are in order, so sort only parts with late rows.
        if late:
            part = part.sort("arrival_s", maintain_order=True)
            totals.start_ns = min(totals.start_ns, int(ns.min()))
        totals.late += late
        totals.latest_ns = int(latest[-1])
        totals.accepted += ns.size
        totals.parts.append(Part.write(part, self._folder, len(totals.parts)))

    def _utility(self, column: pl.Series) -> pl.Series:
        """Return the worth of serving each request; null without a number."""
        number, _ = numbers(column)
        self.totals.no_utility += int((~np.isfinite(number)).sum())
        known = np.where(np.isfinite(number), number, np.nan)
        return pl.Series("utility", known).fill_nan(None)

    def _label(self, label: str, frame: pl.DataFrame) -> pl.Series:
        """Return a label column: the caller's fixed label, the file's column, or null."""
        constant = self._reading.options.constant(label)
        column = self._layout.fields.get(label)
        if constant is not None or column is None:
            values = pl.Series(label, [constant], dtype=pl.String)
            if constant is not None:
                self.names[label].add(values)
            return values.new_from_index(0, frame.height)
        values = labels(frame[column])
        self.names[label].add(values)
        return values.alias(label)

    def finish(self) -> Content:
        """Put all parts in order of arrival and return the content."""
        totals = self.totals
        shift_s = (totals.start_ns - totals.first_ns) / 1e9
        put_in_order(totals.parts, self._folder, shift_s, on_range=self._reading.on_batch)
        return Content(
            kind="requests",
            rows=totals.rows,
            requests=totals.accepted,
            clock=self._clock,
            start_ns=totals.start_ns,
            end_ns=totals.latest_ns,
            input_tokens=totals.input_tokens,
            output_tokens=totals.output_tokens,
            names=self.names,
            columns=self._layout.columns,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        totals = self.totals
        notes = clock_notes(self._clock, totals.offsets)
        if totals.late:
            notes.append(
                f"Sorted {totals.late:,} row{'s' * (totals.late > 1)} that arrived before a row "
                "above them."
            )
        if totals.no_utility:
            column = self._layout.fields["utility"]
            notes.append(f"{totals.no_utility:,} requests have no utility (column {column}).")
        for label, column in self._layout.fields.items():
            if label in self.names and (blank := self.names[label].blank):
                notes.append(f"{blank:,} requests have no {label} (column {column}).")
        return tuple(notes)


def clock_notes(when: clock.Clock, offsets: Sequence[str] | set[str]) -> list[str]:
    """Return the assumptions about the times, as sentences."""
    notes = [when.note] if when.note else []
    if len(offsets) > 1:
        notes.append(
            f"Times carry {len(offsets)} different offsets ({', '.join(sorted(offsets)[:5])}); "
            "all were converted to UTC."
        )
    elif offsets and "+00:00" not in offsets:
        notes.append(f"Times carry the offset {min(offsets)}; converted to UTC.")
    return notes
