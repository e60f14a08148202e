"""Define the interface between a file format, its reader and the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import IngestError
from planner.inputs.ingest.checks import (
    Names,
    Tally,
)
from planner.inputs.ingest.clock import (
    Clock,
    Times,
    read,
)
from planner.inputs.ingest.names import compact
from planner.inputs.ingest.options import (
    REQUEST_FIELDS,
    IngestOptions,
)
from planner.inputs.ingest.report import SeriesReport
from planner.inputs.ingest.rows import Batch
from planner.inputs.ingest.tables import Table


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """One kind of file.

    ``columns`` maps fields to the columns that identify the format, in the form of
    :func:`names.compact`. Other fields are found by their well-known names.
    """

    name: str  # the value of the option ``format``
    title: str  # label in a form
    words: str  # description in the guide
    read: Reader
    columns: Mapping[str, str] = field(default_factory=dict)
    written: str = ""  # the only Table.kind of such files; "": any
    suits: Callable[[Sequence[str]], bool] | None = None  # detection that replaces ``columns``
    fields: tuple[str, ...] = REQUEST_FIELDS  # fields that columns can be mapped to
    unit: str = ""  # unit of numeric times
    no_output: str = "no output tokens"  # reason to refuse a request without output tokens

    def known_by(self, columns: Sequence[str], written: str) -> bool:
        """Return whether a file with these columns has this format."""
        if self.suits is not None:
            return self.suits(columns)
        names = {compact(column) for column in columns}
        fits = self.written in ("", written)
        return bool(self.columns) and fits and names.issuperset(self.columns.values())


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One file that is being read into ``folder``, the later store of its trace."""

    name: str  # name of the file
    table: Table
    format: Format
    options: IngestOptions
    tally: Tally
    folder: Path
    on_batch: Callable[[], None]  # called after each batch; may raise to cancel


def read_times(reading: Reading, batch: Batch, when: Clock) -> Times:
    """Return the times of a batch; raise IngestError if a number is in another unit."""
    times = read(batch.frame, when)
    if (other := times.other_unit) is not None:
        line = batch.lines[other.row]
        raise IngestError(f"{reading.name}, {reading.table.unit} {line}: {other.words}")
    return times


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The content of a file; times in ns since the epoch or the trace's origin."""

    kind: str  # "requests" or "demand"
    rows: int
    requests: float | None  # None: not counted
    clock: Clock
    start_ns: int
    end_ns: int
    input_tokens: float | None
    output_tokens: float | None
    names: Mapping[str, Names]  # by label
    columns: Mapping[str, str]  # field to the column it was read from
    notes: tuple[str, ...]
    series: tuple[SeriesReport, ...] = ()
    bin_s: float | None = None


# A reader checks the rows of a file, counts the refused ones and writes the others into the
# folder. It raises IngestError if no row is accepted, or at the first refused row of a strict
# reading.
Reader = Callable[[Reading], Content]
