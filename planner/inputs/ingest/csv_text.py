"""Parse CSV: the delimiter, the header, and blocks of lines as columns of text."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.blocks import Records, field_counts, has_stray_quote
from planner.inputs.ingest.names import check_names, compact_name
from planner.inputs.ingest.rows import Batch, RefusedRows
from simulation.arrays import BoolArray

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
WRONG_COUNT = "wrong number of fields"
MISQUOTED = "double quote inside a field"
_SAMPLE = 50  # records that vote on the delimiter
_NUMBER_OR_TIME = re.compile(r"^[\d\s:.+\-/TZ]*\d[\d\s:.+\-/TZ]*$")
_UNIT = re.compile(
    r"k|M|m|Mio|tsd|thousands?|millions?|[munµ]?s|min|h|%|[\w#]*/ ?\w+", re.IGNORECASE
)
_PLAIN_UNITS = ("", "-", "#", "count", "counts", "req", "requests", "tok", "token", "tokens", "utc")
_LEAST_NUMBERED = 24  # columns named 1, 2, 3 and on; a table with fewer is no day of bins
_DAY_S = 86_400
_OF_DAY = re.compile(r"\d\d:\d\d$")
_BLOCK = 20  # lines that may stand above the names of the columns
_BIN, _AMOUNT = "seconds", "count"  # columns that a table of numbered columns becomes
_SUMS = ("sum", "samplecount", "")  # statistics of a metric that are amounts


@dataclass(frozen=True, slots=True)
class Header:
    """The header line: the delimiter, the names of the columns, and its line number.

    ``numbered`` are columns with one bin of a day each. Each row of the file then becomes one row
    per bin, with the start of the bin in ``seconds`` and the amount in ``count``.
    """

    delimiter: str
    columns: tuple[str, ...]
    line: int
    numbered: tuple[str, ...] = ()

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Return the columns of the table, in which the numbered columns have become rows."""
        if not self.numbered:
            return self.columns
        return (*(c for c in self.columns if c not in self.numbered), _BIN, _AMOUNT)


def read_header(lines: Records, name: str) -> Header:
    """Return the header of a CSV file from its first records, or raise IngestError."""
    lines = _below_title(lines)
    first = lines.text(0)
    if "\r" in first:
        raise IngestError(
            f"{name} has line ends of a bare carriage return. Save it with LF or CRLF line ends."
        )
    line = int(lines.line[0])
    delimiter = _delimiter(lines)
    if delimiter is None:
        raise IngestError(
            f"{name} has a single column, {first[:40]!r}: no {', '.join(DELIMITERS.values())} "
            f"separates fields in line {line}. Save it with one of these as the delimiter."
        )
    columns, last_line = _metric_block(lines, delimiter, name) or (
        _cells(first, delimiter, name, line),
        line,
    )
    below = lines.keep(lines.line > last_line)
    if below.start.size and _holds_units(below.text(0), delimiter):
        raise IngestError(
            f"{name}, line {below.line[0]} holds units. Write them into the line above it."
        )
    numbered = _number_columns(columns)
    check_names([column for column in columns if column not in numbered], name)
    columns = _checked_names(columns, f"{name}, line {line}")
    return Header(delimiter, tuple(columns), last_line, numbered)


def _checked_names(columns: Sequence[str], place: str) -> list[str]:
    """Return the columns, each with a name; raise IngestError for data, or a repeated name."""
    if all(_NUMBER_OR_TIME.match(column) for column in columns if column):
        raise IngestError(f"{place} holds data instead of column names. Add a line of names.")
    named = [column or f"column {i}" for i, column in enumerate(columns, 1)]
    twice = sorted(column for column, count in Counter(named).items() if count > 1)
    if twice:
        raise IngestError(f"{place} names the column {twice[0]} again. Give each its own name.")
    return named


def _below_title(lines: Records) -> Records:
    """Return the records from the line of column names on, without comments and titles above it.

    A title has a single field, or fewer fields than the names below it. All records are returned if
    no line of names is found.
    """
    # Fields of the first records, by delimiter.
    counts = {mark: field_counts(lines, mark)[:_SAMPLE] for mark in DELIMITERS}
    for start in range(min(_BLOCK, lines.start.size - 1)):
        # The delimiter that most rows below this line have most often, and its fields per row.
        below = start + 1
        usual_by_mark = {mark: int(np.median(fields[below:])) for mark, fields in counts.items()}
        mark = max(usual_by_mark, key=usual_by_mark.__getitem__)
        usual, fields = usual_by_mark[mark], counts[mark]
        has_one_field = all(int(fields[start]) == 1 for fields in counts.values())
        is_title = usual > 1 and has_one_field
        # A line with fewer fields than usual is a title if the first full line below has names.
        full_records = below + np.flatnonzero(fields[below:] == usual)
        if fields[start] < usual and full_records.size:
            names = lines.text(int(full_records[0])).split(mark)
            is_title |= not any(_NUMBER_OR_TIME.match(cell.strip(' "')) for cell in names)
        if not is_title and not lines.text(start).startswith(("#", "sep=")):
            return lines.keep(np.arange(lines.start.size) >= start)
    return lines


def _holds_units(text: str, delimiter: str) -> bool:
    """Return whether a line has units of columns, such as k or 1/h, and nothing else."""
    cells = [cell.strip(' "[]()') for cell in text.split(delimiter)]
    others = [cell for cell in cells if not _UNIT.fullmatch(cell)]
    has_unit = len(others) < len(cells)
    return has_unit and all(cell.lower() in _PLAIN_UNITS for cell in others)


def _cells(text: str, delimiter: str, name: str, line: int) -> list[str]:
    """Return the cells of a header line; raise IngestError if it is not valid CSV."""
    try:
        cells = [field.strip() for field in next(csv.reader([text], delimiter=delimiter))]
    except csv.Error as error:  # a quote within a name, or a name above the csv module's limit
        raise IngestError(
            f"{name}, line {line}: the names of the columns cannot be read as CSV ({error})."
        ) from None
    return cells or [""]  # no cell in a line of carriage returns alone


def _metric_block(lines: Records, delimiter: str, name: str) -> tuple[list[str], int] | None:
    """Return the column names in a block of header lines, and the number of its last line.

    Monitoring consoles write one line each for label, period and statistic of metrics. None for a
    file with one header line. Raise IngestError if a statistic is not an amount per period.
    """
    cells_by_title: dict[str, list[str]] = {}
    last_line = 0
    for index, line in enumerate(lines.line[:_BLOCK].tolist()):
        cells = _cells(lines.text(index), delimiter, name, line)
        if re.match(r"\d", cells[0]):  # the first row of data
            break
        cells_by_title[compact_name(cells[0])], last_line = cells, line
    if not {"label", "statistic"} <= cells_by_title.keys():
        return None
    for statistic in cells_by_title["statistic"][1:]:
        if compact_name(statistic) not in _SUMS:
            raise IngestError(
                f"{name}: statistic {statistic!r:.40} is no amount per period. Export Sum."
            )
    return ["time", *cells_by_title["label"][1:]], last_line


def _number_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are the bins of a day, named 1, 2, 3 or 00:00, 00:30; () if none."""
    names = [column for column in columns if column.isdecimal() and len(column) < 6]
    bins = [float(name) for name in names]
    if not names:
        names = [column for column in columns if _OF_DAY.match(column)]
        minutes = [60 * int(name[:2]) + int(name[3:]) for name in names]
        bins = [minute * len(names) / 1440 for minute in minutes]
    count = len(names)
    if count < _LEAST_NUMBERED or _DAY_S % count or count == len(columns):
        return ()
    is_consecutive = bins == [bins[0] + index for index in range(count)]
    return tuple(names) if is_consecutive else ()


def _delimiter(lines: Records) -> str | None:
    """Return the delimiter that splits most records like the header; None if it has none."""
    ranks = {}  # share of records with as many fields as the header, then the fields
    for mark in DELIMITERS:
        fields = field_counts(lines, mark)[:_SAMPLE]
        if fields[0] > 1:
            ranks[mark] = (float((fields == fields[0]).mean()), int(fields[0]))
    return max(ranks, key=ranks.__getitem__, default=None)


def batch(lines: Records, header: Header, columns: Sequence[str], name: str) -> Batch:
    """Return the records below the header as text ``columns``; bad records become faults."""
    if lines.line.size and lines.line[0] <= header.line:
        lines = lines.keep(lines.line > header.line)
    faults: list[RefusedRows] = []
    if b'"' in lines.data:
        lines = _without_bad(lines, has_stray_quote(lines, header.delimiter), MISQUOTED, faults)
    counts = field_counts(lines, header.delimiter)
    lines = _without_bad(lines, counts != len(header.columns), WRONG_COUNT, faults)
    if header.numbered:
        return _one_row_per_bin(lines, header, columns, name, faults)
    frame = _parse(lines, header, columns, name)
    if columns:
        # Files that were joined may have a second header, in another order.
        is_name = frame[columns[0]].is_in(header.columns).fill_null(False)
        for index in np.flatnonzero(is_name)[:_SAMPLE].tolist():
            line = int(lines.line[index])
            cells = _cells(lines.text(index), header.delimiter, name, line)
            if set(cells) == set(header.columns) and tuple(cells) != header.columns:
                raise IngestError(
                    f"{name}, line {line} names the columns in another order. Split the file there."
                )
    return Batch(frame, lines.line, lines.text, tuple(faults))


def _one_row_per_bin(
    lines: Records, header: Header, columns: Sequence[str], name: str, faults: list[RefusedRows]
) -> Batch:
    """Return records with a column per bin of the day as one row per bin, with ``columns``."""
    others = [column for column in header.columns if column not in header.numbered]
    wide = _parse(lines, header, header.columns, name).with_row_index("row")
    bin_s = _DAY_S // len(header.numbered)
    start_s = {column: index * bin_s for index, column in enumerate(header.numbered)}
    long = wide.unpivot(
        header.numbered, index=["row", *others], variable_name=_BIN, value_name=_AMOUNT
    )
    long = long.with_columns(pl.col(_BIN).replace_strict(start_s, return_dtype=pl.Int64))
    rows = long["row"].to_numpy()
    return Batch(
        long.select(columns), lines.line[rows], lambda i: lines.text(int(rows[i])), tuple(faults)
    )


def _without_bad(lines: Records, bad: BoolArray, reason: str, faults: list[RefusedRows]) -> Records:
    """Return the records that are not ``bad``; append the others to ``faults`` with ``reason``."""
    if not bad.any():
        return lines
    refused = lines.keep(bad)
    faults.append(RefusedRows(reason, refused.line, refused.text))
    return lines.keep(~bad)


def _parse(lines: Records, header: Header, columns: Sequence[str], name: str) -> pl.DataFrame:
    """Return ``columns`` of the records as text; raise IngestError if quoting changes the rows."""
    if not lines.start.size:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    # polars would take names such as * and ^a$ for patterns.
    number_of_column = {column: str(number) for number, column in enumerate(header.columns)}
    schema = dict.fromkeys(number_of_column.values(), pl.String)
    text, delimiter = lines.kept_bytes(), header.delimiter
    scan = pl.scan_csv(text, has_header=False, separator=delimiter, schema=schema)
    frame = scan.select(number_of_column[column] for column in columns).collect()
    frame.columns = list(columns)
    # Unusual quoting can make polars see other rows. Line numbers would then be wrong.
    if frame.height != lines.start.size:
        raise IngestError(
            f"{name}, lines {lines.line[0]} to {lines.line[-1]}: {lines.start.size:,} rows were "
            f"found but {frame.height:,} could be read. Check the double quotes there."
        )
    return frame
