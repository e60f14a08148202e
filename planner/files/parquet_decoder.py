"""Decode a Parquet file in a separate process: ``python -I parquet_decoder.py``.

Polars trusts the sizes in a file. A few changed bytes in a page make it ask for 2^61 bytes, and
then the allocator ends the process. A small file can also decode to more than the memory of the
machine. This process has a limit of memory and of computing time, so only it ends, and
``parquet_rows.py`` reports that in a sentence. It imports nothing of the product, to start quickly.

Each line of stdin is a question in JSON. ``{"path": FILE}`` asks for the columns and the number of
rows. With ``"columns": [...], "offset": n, "rows": n`` it asks for rows, and without ``columns``
only whether all of those rows can be decoded. Each answer is a line of JSON. If it has ``bytes``,
that many bytes of an Arrow stream follow.
"""

import io
import json
import resource
import sys
from typing import Any, BinaryIO

import polars as pl

MEMORY_BYTES = 4 << 30  # of writable memory; pages of the file itself do not count
ANSWER_CPU_S = 60  # computing time of one answer


def main() -> None:
    """Read questions from stdin and answer them until stdin ends."""
    _limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin.buffer:
        # RLIMIT_CPU counts from the start of the process, so raise it before each answer.
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + ANSWER_CPU_S)
        _answer(json.loads(line), sys.stdout.buffer)


def _limit(what: int, most: int) -> None:
    """Set the soft limit of a resource to ``most``, at most to its hard limit."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(ask: dict[str, Any], out: BinaryIO) -> None:
    """Write the answer to one question: a line of JSON, in some cases with an Arrow stream."""
    content = b""
    try:
        scan = pl.scan_parquet(ask["path"])
        if "columns" in ask:
            frame = scan.select(ask["columns"]).slice(ask["offset"], ask["rows"]).collect()
            stream = io.BytesIO()
            frame.write_ipc_stream(stream)
            content = stream.getvalue()
            head: dict[str, Any] = {"bytes": len(content)}
        elif "rows" in ask:
            head = {"decoded": scan.slice(ask["offset"], ask["rows"]).collect().height}
        else:
            schema = scan.collect_schema()
            head = {
                "columns": [name for name, kind in schema.items() if readable(kind)],
                "left_out": {n: str(kind) for n, kind in schema.items() if not readable(kind)},
                "rows": int(scan.select(pl.len()).collect().item()),
            }
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        content, head = b"", {"error": str(error)}
    out.write(json.dumps(head).encode() + b"\n")
    out.write(content)
    out.flush()


def readable(kind: pl.DataType) -> bool:
    """Return whether a column of this type can be read: numbers, text, times, lists of ids."""
    if isinstance(kind, pl.List):
        inner = kind.inner
        return isinstance(inner, pl.DataType) and (inner.is_numeric() or inner == pl.Null)
    is_text = isinstance(kind, pl.String | pl.Categorical | pl.Enum | pl.Boolean | pl.Null)
    return is_text or kind.is_numeric() or isinstance(kind, pl.Date | pl.Datetime)


if __name__ == "__main__":
    main()
