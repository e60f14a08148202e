"""CSV: the delimiter, the header, and blocks of lines turned into columns of text."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.ingest.blocks import Records, field_counts
from planner.ingest.rows import Batch, Fault

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SAMPLE = 50  # records that vote on the delimiter
_DATA = re.compile(r"^[\d\s:.+\-/TZ]*\d[\d\s:.+\-/TZ]*$")


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: how fields are separated and what they are called."""

    delimiter: str
    columns: tuple[str, ...]
    line: int


def read_header(found: Records, name: str) -> Header:
    """The header of a file from its first records."""
    first = found.text(0)
    if "\r" in first:
        raise IngestError(
            f"{name} has line ends of a bare carriage return; save it with LF or CRLF line ends."
        )
    line = int(found.line[0])
    delimiter = _delimiter(found)
    if delimiter is None:
        raise IngestError(
            f"{name} has a single column, {first[:40]!r}: no {', '.join(DELIMITERS.values())} "
            f"separates fields in line {line}; save it with one of these as the delimiter."
        )
    columns = [field.strip() for field in next(csv.reader([first], delimiter=delimiter))]
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


def _delimiter(found: Records) -> str | None:
    """The mark that splits the most of the first records into the header's number of fields."""
    best: tuple[float, int] = (0.0, 1)
    chosen = None
    for mark in DELIMITERS:
        counts = field_counts(found, mark, quoted=True)[:_SAMPLE]
        vote = (float((counts == counts[0]).mean()), int(counts[0]))
        if counts[0] > 1 and vote > best:
            best, chosen = vote, mark
    return chosen


def batch(found: Records, header: Header, columns: Sequence[str], name: str) -> Batch:
    """The records below the header as text columns; those with too many or too few fields apart."""
    if found.line.size and found.line[0] <= header.line:
        found = found.keep(found.line > header.line)
    counts = field_counts(found, header.delimiter, quoted=True)
    right = counts == len(header.columns)
    faults: tuple[Fault, ...] = ()
    if not right.all():
        bad = found.keep(~right)
        faults = (Fault("wrong number of fields", bad.line, bad.text),)
        found = found.keep(right)
    return Batch(_parse(found, header, columns, name), found.line, found.text, faults)


def _parse(found: Records, header: Header, columns: Sequence[str], name: str) -> pl.DataFrame:
    schema = dict.fromkeys(header.columns, pl.String)
    if not found.start.size:
        return pl.DataFrame(schema=schema).select(columns)
    try:
        frame = (
            pl.scan_csv(found.joined(), has_header=False, separator=header.delimiter, schema=schema)
            .select(columns)
            .collect()
        )
    except pl.exceptions.PolarsError:
        frame = None
    if frame is None or frame.height != found.start.size:
        quoted = next(i for i in np.arange(found.start.size) if '"' in found.text(int(i)))
        raise IngestError(
            f"{name}, line {found.line[quoted]} or below: double quotes stand where no field "
            "begins or ends; double them or quote the whole field."
        )
    return frame
