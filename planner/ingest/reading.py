"""What a format of files is, what its reader is given, and what that hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import IngestError
from planner.ingest.checks import Names, Tally
from planner.ingest.clock import Clock, Times, read
from planner.ingest.names import compact
from planner.ingest.options import REQUEST_FIELDS, IngestOptions
from planner.ingest.report import SeriesReport
from planner.ingest.rows import Batch
from planner.ingest.tables import Table


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """One kind of file.

    ``columns`` names, by field, the columns it is told from others by, as :func:`names.compact`
    writes them; a field that is not there is found by its well-known names.
    """

    name: str  # how callers say it
    title: str  # in a form
    words: str  # in the guide
    read: Reader
    columns: Mapping[str, str] = field(default_factory=dict)
    written: str = ""  # Table.kind, where files of this kind come in no other
    suits: Callable[[Sequence[str]], bool] | None = None  # tells it where columns do not
    fields: tuple[str, ...] = REQUEST_FIELDS  # that columns can be mapped to
    unit: str = ""  # of its times, where they are numbers
    no_output: str = "no output tokens"  # why a request with none is refused

    def known_by(self, columns: Sequence[str], written: str) -> bool:
        """Whether a file with these columns is one."""
        if self.suits is not None:
            return self.suits(columns)
        names = {compact(column) for column in columns}
        fits = self.written in ("", written)
        return bool(self.columns) and fits and names.issuperset(self.columns.values())


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One file on its way into ``folder``, which becomes the store of its trace."""

    name: str  # of the file
    table: Table
    format: Format
    options: IngestOptions
    tally: Tally
    folder: Path
    on_batch: Callable[[], None]  # called after each batch; may raise to cancel


def read_times(reading: Reading, batch: Batch, when: Clock) -> Times:
    """Return the times of a batch; raise IngestError where a number is in another unit."""
    times = read(batch.frame, when)
    if (other := times.other_unit) is not None:
        line = batch.lines[other.row]
        raise IngestError(f"{reading.name}, {reading.table.unit} {line}: {other.words}")
    return times


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a file held; times in ns since the epoch or the trace's origin."""

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


# Checks the rows of a file, tallies those it refuses, and writes the others into the folder. Raises
# IngestError when none is accepted, or at the first that is refused in a strict reading.
Reader = Callable[[Reading], Content]
