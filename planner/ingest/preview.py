"""A first look at a file: what it seems to be and its first rows, for a form that maps columns."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import zstandard

from planner.errors import IngestError
from planner.ingest.columns import (
    DemandLayout,
    RequestLayout,
    choose_format,
    demand_layout,
    detect_format,
    layout_columns,
    request_layout,
)
from planner.ingest.options import DEMAND_FIELDS, REQUEST_FIELDS, IngestOptions
from planner.ingest.source import GZIP, PARQUET_MAGIC, ZSTD, Source, compression_of
from planner.ingest.tables import open_table, text_columns

_CELL = 80


@dataclass(frozen=True, slots=True)
class Preview:
    """``mapping`` is what would be read from where: a form's first values, and valid as
    IngestOptions.mapping. ``problem`` says why it is not complete, "" when it is."""

    name: str
    format: str
    kind: str  # "requests" or "demand"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # cells as text, "" where empty
    fields: tuple[str, ...]  # that can be mapped
    mapping: Mapping[str, str]
    problem: str


def preview(
    path: Path | str, name: str = "", rows: int = 20, options: IngestOptions | None = None
) -> Preview:
    """The first ``rows`` rows of a file and how it would be read.

    Raises IngestError when the file is no table; a field without a column is a ``problem`` only.
    """
    options = replace(options or IngestOptions(), name=name or Path(path).name)
    with tempfile.TemporaryDirectory() as scratch:
        table = open_table(Source(path, options), options, Path(scratch))
    format_ = choose_format(table.columns, options, jsonl=table.kind == "jsonl")
    demand = format_ == "demand"
    layout: DemandLayout | RequestLayout | None = None
    problem = ""
    try:
        if demand:
            layout = demand_layout(table.columns, options, options.name)
        else:
            layout = request_layout(table.columns, options, options.name, format_)
    except IngestError as error:
        problem = str(error)
    return Preview(
        name=options.name,
        format=format_,
        kind="demand" if demand else "requests",
        columns=table.columns,
        rows=_cells(table.probe.head(rows)),
        fields=DEMAND_FIELDS if demand else REQUEST_FIELDS,
        mapping=layout_columns(layout) if layout else {},
        problem=problem,
    )


def _cells(frame: pl.DataFrame) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple("" if value is None else str(value)[:_CELL] for value in row) for row in frame.rows()
    )


def detect(head: bytes, name: str) -> str:
    """The format of a file from its first bytes, packed or not: azure, burstgpt, mooncake, csv or
    demand.

    Parquet keeps its columns at the end of the file, so its head gives "csv": look at it with
    :func:`preview`.
    """
    head = _unpacked(head)
    if head.startswith(PARQUET_MAGIC):
        return "csv"
    columns, jsonl = text_columns(head, name)
    return detect_format(columns, jsonl=jsonl)


def _unpacked(head: bytes) -> bytes:
    """As much as the first bytes of a packed file hold, up to 1 MiB."""
    try:
        if compression_of(head) == GZIP:
            return zlib.decompressobj(wbits=31).decompress(head, 1 << 20)
        if compression_of(head) == ZSTD:
            return zstandard.ZstdDecompressor().decompressobj().decompress(head[:4096])[: 1 << 20]
    except (zlib.error, zstandard.ZstdError):
        return head
    return head
