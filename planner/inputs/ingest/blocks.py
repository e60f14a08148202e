"""Cut a stream of bytes into blocks of whole records, and find the records of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.errors import IngestError
from simulation.arrays import BoolArray, ByteArray, IntArray

MAX_RECORD_BYTES = 16 << 20
MOST_LINES = 4_000_000  # in one block
_NEWLINE = 10
_RETURN = 13
_QUOTE = 34


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole records of a file, each ended by a newline; ``first_line`` is its first line number."""

    data: bytes
    first_line: int


def record_blocks(
    pieces: Iterable[bytes], *, name: str, size: int, quoted: bool
) -> Iterator[Block]:
    """Yield blocks of whole records, about ``size`` bytes; ``quoted`` is as for ``records``."""
    line = 1
    waiting: list[bytes] = []
    length = 0
    for piece in pieces:
        waiting.append(piece)
        length += len(piece)
        if length < size:
            continue
        data = b"".join(waiting)
        cut = length_of_whole_records(data, quoted)
        if cut == 0 and length > MAX_RECORD_BYTES:
            raise IngestError(
                f"{name}, line {line} is longer than {MAX_RECORD_BYTES >> 20} MiB. Check its "
                "double quotes, and that each row has its own line."
            )
        if cut:
            yield from _split_block(require_text(Block(data[:cut], line), name), quoted)
            line += data.count(b"\n", 0, cut)
        waiting = [data[cut:]] if cut < length else []
        length -= cut
    data = b"".join(waiting)
    if data and not data.endswith(b"\n"):
        data += b"\n"
    cut = length_of_whole_records(data, quoted)
    if cut:
        yield from _split_block(require_text(Block(data[:cut], line), name), quoted)
    if cut < len(data):
        line += data.count(b"\n", 0, cut)
        raise IngestError(
            f"{name}, line {line}: a double quote opens here and is never closed. Remove it."
        )


def all_records(data: bytes, name: str, *, quoted: bool) -> Records:
    """Return the records of a whole file; raise IngestError for a quote that is never closed."""
    blocks = list(record_blocks([data], name=name, size=len(data) + 1, quoted=quoted))
    return records(blocks[0], quoted=quoted)


def _split_block(block: Block, quoted: bool) -> Iterator[Block]:
    """Yield parts of at most about MOST_LINES lines, since positions of lines take memory too."""
    lines = block.data.count(b"\n")
    half = len(block.data) // 2
    cut = length_of_whole_records(block.data[:half], quoted) if lines > MOST_LINES else 0
    if not cut:
        yield block
        return
    before = block.data.count(b"\n", 0, cut)
    yield from _split_block(Block(block.data[:cut], block.first_line), quoted)
    yield from _split_block(Block(block.data[cut:], block.first_line + before), quoted)


def length_of_whole_records(data: bytes, quoted: bool) -> int:
    """Return the length of the whole records in ``data``; ``quoted`` is as for ``records``."""
    if not quoted or b'"' not in data:
        return data.rfind(b"\n") + 1
    buffer = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(buffer == _NEWLINE)
    ends = newlines[are_outside_quotes(buffer, newlines)]
    return int(ends[-1]) + 1 if ends.size else 0


def are_outside_quotes(buffer: ByteArray, positions: IntArray) -> BoolArray:
    """Return a mask of ``positions`` outside quotes: an even number of quotes comes before."""
    quotes = np.flatnonzero(buffer == _QUOTE)
    if not quotes.size:
        return np.ones(positions.size, dtype=np.bool_)
    return np.asarray(np.searchsorted(quotes, positions) % 2 == 0)


def require_text(block: Block, name: str) -> Block:
    """Return the block if it is UTF-8 without NUL bytes; raise IngestError for another."""
    data = block.data
    if (nul := data.find(b"\0")) >= 0:
        line = block.first_line + data.count(b"\n", 0, nul)
        raise IngestError(
            f"{name} is binary, not text (a NUL byte in line {line}). Export it as CSV."
        )
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = block.first_line + data.count(b"\n", 0, error.start)
            raise IngestError(
                f"{name}, line {line} is not UTF-8 text. Save the file as UTF-8."
            ) from None
    return block


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Positions of the records of a block; arrays have shape ``[records]``, without blank lines."""

    data: bytes
    start: IntArray  # position of the first byte
    end: IntArray  # position of the newline
    line: IntArray  # line number in the file

    def text(self, index: int) -> str:
        """Return the record without its line end."""
        return self.data[self.start[index] : self.end[index]].decode("utf-8").rstrip("\r")

    def keep(self, mask: BoolArray) -> Records:
        """Return only the records in ``mask``."""
        return Records(self.data, self.start[mask], self.end[mask], self.line[mask])

    def kept_bytes(self) -> bytes:
        """Return the bytes of these records alone, without other lines of ``data``."""
        if not self.start.size:
            return b""
        if int((self.end - self.start + 1).sum()) == len(self.data):
            return self.data
        # The running sum of +1 at starts and -1 after ends is 1 within these records.
        edges = np.zeros(len(self.data) + 1, dtype=np.int8)
        edges[self.start] += 1
        edges[self.end + 1] -= 1
        inside = np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)
        return np.frombuffer(self.data, np.uint8)[inside].tobytes()


def records(block: Block, *, quoted: bool) -> Records:
    """Return a block's records; ``quoted``: line breaks in double quotes do not end one."""
    buffer = np.frombuffer(block.data, np.uint8)
    newlines = np.flatnonzero(buffer == _NEWLINE)
    quoted = quoted and b'"' in block.data
    ends = newlines[are_outside_quotes(buffer, newlines)] if quoted else newlines
    starts = np.concatenate(([0], ends[:-1] + 1))
    # Lines of the file before each record; those within quotes count too.
    lines_before = np.searchsorted(newlines, starts) if quoted else np.arange(ends.size)
    kept = Records(block.data, starts, ends, block.first_line + lines_before)
    length = ends - starts
    is_blank = (length == 0) | ((length == 1) & (buffer[starts] == _RETURN))
    return kept.keep(~is_blank) if is_blank.any() else kept


def field_counts(lines: Records, delimiter: str) -> IntArray:
    """Return the fields of each record, ``[records]``; delimiters between quotes do not count."""
    buffer = np.frombuffer(lines.data, np.uint8)
    marks = np.flatnonzero(buffer == ord(delimiter))  # positions of the delimiters
    if b'"' in lines.data:
        marks = marks[are_outside_quotes(buffer, marks)]
    # How many delimiters lie before the start and before the end of each record.
    before_start = np.searchsorted(marks, lines.start)
    before_end = np.searchsorted(marks, lines.end)
    return np.asarray(before_end - before_start + 1, dtype=np.int64)


def has_stray_quote(lines: Records, delimiter: str) -> BoolArray:
    """Return a mask of the records with a double quote in the middle of a field, ``[records]``.

    A quote may only open or close a field, or be doubled within a quoted field (RFC 4180).
    """
    buffer = np.frombuffer(lines.data, np.uint8)
    quotes = np.flatnonzero(buffer == _QUOTE)
    is_edge = np.isin(buffer, (ord(delimiter), _NEWLINE, _RETURN, _QUOTE))
    # Quotes alternate: one opens a field after an edge, the next closes it before an edge.
    neighbour = np.where(np.arange(quotes.size) % 2 == 0, quotes - 1, quotes + 1)
    stray = quotes[~is_edge[neighbour] & (neighbour >= 0)]
    stray_in_record = np.searchsorted(stray, lines.end) - np.searchsorted(stray, lines.start)
    return np.asarray(stray_in_record > 0)
