"""Parse CSV: the delimiter, the header, and blocks of lines as columns of text."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.blocks import (
    Records,
    field_counts,
    misquoted,
)
from planner.inputs.ingest.names import check_names
from planner.inputs.ingest.rows import (
    Batch,
    Fault,
)
from simulation.arrays import BoolArray

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
WRONG_COUNT = "wrong number of fields"
MISQUOTED = "double quote inside a field"
_SAMPLE = 50  # records that vote on the delimiter
_DATA = re.compile(r"^[\d\s:.+\-/TZ]*\d[\d\s:.+\-/TZ]*$")


@dataclass(frozen=True, slots=True)
class Header:
    """The header line: the delimiter and the names of the columns."""

    delimiter: str
    columns: tuple[str, ...]
    line: int


def read_header(lines: Records, name: str) -> Header:
    """Return the header of a file from its first records."""
    first = lines.text(0)
    if "\r" in first:
        raise IngestError(
            f"{name} has line ends of a bare carriage return; save it with LF or CRLF line ends."
        )
    line = int(lines.line[0])
    delimiter = _delimiter(lines)
    if delimiter is None:
        raise IngestError(
            f"{name} has a single column, {first[:40]!r}: no {', '.join(DELIMITERS.values())} "
            f"separates fields in line {line}; save it with one of these as the delimiter."
        )
    try:
        columns = [field.strip() for field in next(csv.reader([first], delimiter=delimiter))]
    except csv.Error as error:  # a quote within a name, or a name above the csv module's limit
        raise IngestError(
            f"{name}, line {line}: the names of the columns cannot be read as CSV ({error}); give "
            "them short names without double quotes."
        ) from None
    check_names(columns, name)
    if all(_DATA.match(column) for column in columns if column):
        raise IngestError(
            f"{name}, line {line} holds data instead of column names; add a first line such as "
            "arrival,input_tokens,output_tokens."
        )
    columns = [column or f"column {i}" for i, column in enumerate(columns, 1)]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise IngestError(
            f"{name}, line {line} names the column {twice[0]} "
            f"{columns.count(twice[0])} times; give each column its own name."
        )
    return Header(delimiter, tuple(columns), line)


def _delimiter(lines: Records) -> str | None:
    """Return the delimiter for which most of the first records have the header's field count.

    Returns None if no delimiter splits the header.
    """
    best: tuple[float, int] = (0.0, 1)
    chosen = None
    for mark in DELIMITERS:
        counts = field_counts(lines, mark, quoted=True)[:_SAMPLE]
        vote = (float((counts == counts[0]).mean()), int(counts[0]))
        if counts[0] > 1 and vote > best:
            best, chosen = vote, mark
    return chosen


def batch(lines: Records, header: Header, columns: Sequence[str], name: str) -> Batch:
    """Return the records below the header as text columns.

    Records that are misquoted or have a wrong number of fields become faults.
    """
    if lines.line.size and lines.line[0] <= header.line:
        lines = lines.keep(lines.line > header.line)
    faults: list[Fault] = []
    if b'"' in lines.data:
        lines = _set_apart(lines, misquoted(lines, header.delimiter), MISQUOTED, faults)
    counts = field_counts(lines, header.delimiter, quoted=True)
    lines = _set_apart(lines, counts != len(header.columns), WRONG_COUNT, faults)
    return Batch(_parse(lines, header, columns, name), lines.line, lines.text, tuple(faults))


def _set_apart(lines: Records, bad: BoolArray, reason: str, faults: list[Fault]) -> Records:
    """Return the records that are not ``bad``, and add the others to ``faults``."""
    if not bad.any():
        return lines
    refused = lines.keep(bad)
    faults.append(Fault(reason, refused.line, refused.text))
    return lines.keep(~bad)


def _parse(lines: Records, header: Header, columns: Sequence[str], name: str) -> pl.DataFrame:
    """Parse the records into text columns."""
    schema = dict.fromkeys(header.columns, pl.String)
    if not lines.start.size:
        return pl.DataFrame(schema=schema).select(columns)
    text = lines.joined()
    frame = (
        pl.scan_csv(text, has_header=False, separator=header.delimiter, schema=schema)
        .select(columns)
        .collect()
    )
    # Unusual quoting can make polars see other rows. Line numbers would then be wrong.
    if frame.height != lines.start.size:
        raise IngestError(
            f"{name}, lines {lines.line[0]} to {lines.line[-1]}: {lines.start.size:,} rows were "
            f"found but {frame.height:,} could be read; check the double quotes there."
        )
    return frame
