"""Open a file as a table: its columns, a sample, and batches of rows with line numbers.

Records that are no rows of the table (wrong number of fields, not JSON) become faults here. The
callers check the values.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import numpy as np
import polars as pl
from polars import selectors

from planner.errors import IngestError
from planner.files.parquet_rows import Decoder
from planner.inputs.ingest import blocks, csv_text, json_text
from planner.inputs.ingest.connectors import CONNECTORS
from planner.inputs.ingest.log_lines import log_pattern, log_rows, unwrap_envelopes
from planner.inputs.ingest.names import check_names
from planner.inputs.ingest.options import IngestOptions
from planner.inputs.ingest.rows import BAD_IDS, Batch, has_null_id
from planner.inputs.ingest.source import (
    PARQUET_MAGIC,
    PLAIN,
    UTF16,
    Expansion,
    Source,
    as_utf8,
    foreign_file_type,
    sha256_file,
)
from planner.inputs.ingest.unfold import documents, path_of, path_steps, unfold_rows
from simulation.arrays import IntArray

logger = logging.getLogger(__name__)

PROBE_BYTES = 256 << 10  # decisions on a file use only this, whatever the chunk size
PROBE_ROWS = 1000
FIRST_ROWS = 16_384  # first batch of a Parquet file, before the size of its rows is known
# Errors of libraries on bad data. PanicException does not derive from Exception.
LIBRARY_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_JSON = re.compile(rb"\s*(?:\{|\[(?!\d{4}-))")  # a log may begin with [2025-06-02 10:00:00]
_BOM = b"\xef\xbb\xbf"
_ROW_BYTES = 32  # smallest size assumed for a Parquet row, to turn chunk_bytes into rows


@contextmanager
def refusals_of_libraries(name: str) -> Iterator[None]:
    """Turn exceptions of libraries on bad data into IngestError, and log the details."""
    try:
        yield
    except (*LIBRARY_ERRORS, RecursionError) as error:
        logger.warning("%s: %s", name, error, exc_info=error)
        cause = str(error).split("\n", 1)[0].strip().rstrip(".")[:200]
        raise IngestError(
            f"{name} has a part that cannot be read ({cause}). Save only numbers, text and times."
        ) from None


@contextmanager
def opened_table(path: Path | str, options: IngestOptions) -> Iterator[Table]:
    """Open the table in a file, as ``open_table`` does, with a folder for unpacked data."""
    source = Source(path, options)
    with TemporaryDirectory() as scratch, refusals_of_libraries(source.name):
        yield open_table(source, options, Path(scratch))


def open_table(source: Source, options: IngestOptions, scratch: Path) -> Table:
    """Open the table in ``source``; a compressed Parquet file is unpacked in folder ``scratch``."""
    stream, name = _Stream(source.pieces()), source.name
    if stream.head.startswith(PARQUET_MAGIC):
        if source.compression == PLAIN:
            return ParquetTable(source, options, source.path, digest=None)
        scratch.mkdir(parents=True, exist_ok=True)
        unpacked = scratch / "unpacked.parquet"  # Parquet needs random access
        with unpacked.open("wb") as out:
            out.writelines(stream)
        return ParquetTable(source, options, unpacked, source.digest)
    if ".parquet" in name.lower():
        raise IngestError(f"{name} is named a Parquet file but is not one. Write it again.")
    if stream.head.startswith(UTF16):
        stream = _Stream(as_utf8(stream, name))
    return _open_text(source, options, stream)


def _open_text(source: Source, options: IngestOptions, stream: _Stream) -> TextTable:
    """Open a table of text: nested JSON, log lines (also in envelopes of a collector), or rows.

    All become JSON lines or delimited text. Messages name a row "line", if a line of the file is
    one row. Else they name it "row" (in one JSON document) or "request". Raise IngestError for a
    file without a row, or with no text.
    """
    name, unit = source.name, "line"
    if (file_type := foreign_file_type(stream.head)) is not None:
        raise IngestError(f"{name} is {file_type}.")
    stream.head = stream.head.removeprefix(_BOM)
    if not stream.head.strip() and len(stream.head) < PROBE_BYTES:
        raise IngestError(f"{name} is empty. Export it again.")
    is_json = bool(_JSON.match(stream.head)) or ".jsonl" in name.lower()
    nested = _path_to_rows(stream.head, name) if is_json else None
    if nested is not None:
        is_document, path = nested
        unit = "row" if is_document else "request"
        expansion = Expansion(name, source.bytes, options.max_expanded_bytes)
        stream = _Stream(_json_lines(documents(stream, name), path, expansion))
        if not stream.head:
            raise IngestError(f"{name} holds no row. Export it again.")
    if (lines := unwrap_envelopes(stream, stream.head, name, options.chunk_bytes)) is not None:
        unit, stream = "request", _Stream(lines)
        is_json = stream.head[:1] == b"{"
    if pattern := log_pattern(stream.head, name):
        unit, is_json = "request", True
        stream = _Stream(log_rows(stream, pattern, name, options.chunk_bytes))
    sample = _sample(stream.head, name, quoted=not is_json)
    pieces = stream.pieces(options.chunk_bytes)
    return TextTable(source, options, pieces, sample, quoted=not is_json, unit=unit)


class _Stream:
    """The bytes of a file; ``head`` are its first PROBE_BYTES or more, which show its type."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._rest = pieces
        self.head = b""
        for piece in pieces:
            self.head += piece
            if len(self.head) >= PROBE_BYTES:
                break

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain([self.head], self._rest)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield all bytes once, ``head`` in pieces of ``size``; afterwards the stream is empty."""
        head, self.head = self.head, b""
        for start in range(0, len(head), size):
            yield head[start : start + size]
        del head
        yield from self._rest


def _json_lines(
    values: Iterator[object], path: Sequence[str], expansion: Expansion
) -> Iterator[bytes]:
    """Yield the rows at ``path`` as pieces of 1024 JSON lines; ``expansion`` limits them."""
    rows = itertools.chain.from_iterable(unfold_rows(value, path) for value in values)
    while lines := [json.dumps(row).encode() + b"\n" for row in itertools.islice(rows, 1024)]:
        piece = b"".join(lines)
        expansion.add(len(piece))
        yield piece


def _path_to_rows(head: bytes, name: str) -> tuple[bool, tuple[str, ...]] | None:
    """Return where the rows are in nested JSON; None for JSON lines with one row each.

    The first value says whether the file is one document (an array or an object), not lines. The
    second is the path to the rows, as for ``unfold_rows``. ``head`` are the file's first bytes.
    """
    first_line, _, other_lines = head.partition(b"\n")
    try:
        record = json.loads(first_line)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        is_document = not other_lines.strip()
        path = path_of(record, document=is_document)
        return (is_document, path) if path else None
    if head.lstrip()[:1] not in (b"[", b"{"):
        return None
    document_path = _path_in_document(head, name)
    return None if document_path is None else (True, document_path)


def _path_in_document(head: bytes, name: str) -> tuple[str, ...] | None:
    """Return the path to the rows in a JSON document that begins with ``head``; None if unknown.

    () if the document's elements are rows, or if no known path is in ``head``.
    """
    is_array = head.lstrip()[:1] == b"["
    values: list[object] = []
    with suppress(IngestError):  # after a fault or an incomplete value
        values.extend(itertools.islice(documents(iter([head]), name), 2))
    if is_array or values:
        is_one_object = not is_array and len(values) == 1
        return path_of(values[0] if values else None, document=is_one_object)
    if len(head) < PROBE_BYTES:
        return None
    # ``head`` is a part of one object. The first tool's format whose keys are all in it counts.
    for connector in CONNECTORS.values():
        path = path_steps(connector.rows)
        keys = [step for step in path if step not in ("[]", "*")]
        if path and all(f'"{key}"'.encode() in head for key in keys):
            return path
    return ()


def _sample(head: bytes, name: str, quoted: bool) -> blocks.Records:
    """Return the complete records (rows) in the first bytes of a text file.

    ``quoted``: line breaks within double quotes do not end a record. Raise IngestError without any.
    """
    if len(head) < PROBE_BYTES:  # the whole file
        if not head.strip():
            raise IngestError(f"{name} holds no row. Export it again.")
        return blocks.all_records(head, name, quoted=quoted)
    head = head[:PROBE_BYTES]
    cut = blocks.length_of_whole_records(head, quoted)
    if cut == 0 or not head[:cut].strip():
        raise IngestError(
            f"{name} has no complete line in its first {PROBE_BYTES >> 10} KiB. Check it."
        )
    return blocks.records(blocks.require_text(blocks.Block(head[:cut], 1), name), quoted=quoted)


class TextTable:
    """A CSV file (with any of four delimiters) or a file of JSON lines.

    ``probe`` has the first rows with all ``columns``. ``unit`` is the word for a row in messages.
    ``quoted`` marks a CSV file, in which double quotes may contain line breaks.
    """

    left_out: Mapping[str, str] = MappingProxyType({})  # unusable columns: name to type

    def __init__(
        self,
        source: Source,
        options: IngestOptions,
        stream: Iterator[bytes],
        lines: blocks.Records,
        quoted: bool,
        unit: str,
    ) -> None:
        self._source, self._options, self._stream = source, options, stream
        # Line breaks within quotes occur in delimited text, and not in JSON lines.
        self.unit, self._quoted = unit, quoted
        self.kind = "csv" if quoted else "jsonl"
        if quoted:
            self._header = csv_text.read_header(lines, source.name)
            self.columns = self._header.table_columns
            self.probe = csv_text.batch(lines, self._header, self.columns, source.name).frame
        else:
            self._paths, self.probe = json_text.read_probe(lines, source.name, PROBE_ROWS)
            self.columns = tuple(self._paths)
        self.probe = self.probe.select(self.columns).head(PROBE_ROWS)

    @property
    def fraction(self) -> float:
        """Return the share of the file that has been read, 0 to 1."""
        return self._source.fraction

    def digest(self) -> str:
        """Return the SHA-256 of the file on disk; valid after the batches are exhausted."""
        return self._source.digest

    def batches(self, columns: Sequence[str], ids: str | None = None) -> Iterator[Batch]:
        """Yield every row once, in batches with ``columns``.

        ``ids`` is a further column, of lists of integers (prompt blocks), or None.
        """
        name, quoted, size = self._source.name, self._quoted, self._options.chunk_bytes
        needed = [*columns, ids] if ids else columns
        for block in blocks.record_blocks(self._stream, name=name, size=size, quoted=quoted):
            lines = blocks.records(block, quoted=quoted)
            if not lines.start.size:
                continue
            if quoted:
                yield csv_text.batch(lines, self._header, columns, name)
            else:
                paths = {column: self._paths[column] for column in needed}
                yield json_text.batch(lines, paths, ids, name)


class ParquetTable:
    """A Parquet file, read in slices of rows; its attributes are those of ``TextTable``."""

    kind = "parquet"
    unit = "row"

    def __init__(
        self, source: Source, options: IngestOptions, path: Path, digest: str | None
    ) -> None:
        self._source, self._options, self._digest = source, options, digest
        self._bytes = path.stat().st_size
        self._decoder = Decoder(path, source.name)
        self.columns, self.left_out = self._decoder.columns, self._decoder.left_out
        self._decoder.request_rows(self.columns, 0, PROBE_ROWS)
        self.probe = self._decoder.take_rows()
        check_names(self.columns, source.name)
        self._rows_read = 0  # rows

    @property
    def fraction(self) -> float:
        return self._rows_read / max(1, self._decoder.rows)

    def digest(self) -> str:
        return self._digest or sha256_file(self._source.path)

    def batches(self, columns: Sequence[str], ids: str | None = None) -> Iterator[Batch]:
        """Yield the rows in batches, with their line numbers and faults.

        Only ``columns`` are read, and ``ids``, a column of lists of integers (prompt blocks). Rows
        with a null in such a list are refused.
        """
        needed = list(dict.fromkeys([*columns, ids] if ids else columns))
        expansion = Expansion(self._source.name, self._bytes, self._options.max_expanded_bytes)
        first_row, batch_rows, rows = 0, FIRST_ROWS, self._decoder.rows
        if rows:
            self._decoder.request_rows(needed, first_row, batch_rows)
        while first_row < rows:
            frame = self._decoder.take_rows()
            size = int(frame.estimated_size())  # bytes
            expansion.add(size)
            lines = np.arange(first_row + 1, first_row + 1 + frame.height, dtype=np.int64)
            first_row += max(1, frame.height)
            self._rows_read = first_row
            # Grow the batches slowly, because the next rows may be larger than these.
            row_bytes = max(_ROW_BYTES, size / max(1, frame.height))
            rows_of_chunk = int(self._options.chunk_bytes / row_bytes)
            batch_rows = max(1, min(4 * batch_rows, rows_of_chunk))
            if first_row < rows:  # the decoder works while the caller reads this batch
                self._decoder.request_rows(needed, first_row, batch_rows)
            yield _batch(frame, lines, ids)


def _batch(frame: pl.DataFrame, lines: IntArray, ids: str | None) -> Batch:
    """Return rows as a batch; rows with a null in their list of ``ids`` are faults."""
    if ids is not None:
        frame = frame.with_columns(pl.col(ids).cast(pl.List(pl.Int64), strict=False))
    batch = Batch(frame, lines, _row_text(frame))
    has_null = has_null_id(frame[ids]) if ids is not None else np.zeros(lines.size, np.bool_)
    if not has_null.any():
        return batch
    return replace(batch.select(~has_null), faults=(batch.refuse(BAD_IDS, has_null),))


Table = TextTable | ParquetTable


def python_safe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame; timestamps outside the range of Python's calendar become integers."""
    try:
        frame.rows()
    except (ValueError, OverflowError):
        frame = frame.with_columns(selectors.temporal().to_physical())
    return frame


def _row_text(frame: pl.DataFrame) -> Callable[[int], str]:
    """Return a function that describes a row of ``frame`` by its values."""

    def text(index: int) -> str:
        row = python_safe(frame.slice(index, 1)).row(0, named=True)
        return ", ".join(f"{name}={value}" for name, value in row.items())

    return text
