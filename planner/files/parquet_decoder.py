"""Decode a Parquet file in a separate process: ``python -I parquet_decoder.py``.

Polars trusts the sizes in a file. A few changed bytes in a page make it ask for 2^61 bytes, and
then the allocator ends the process. A small file can also decode to more than the memory of the
machine. This process has a limit of memory and of computing time, so only it ends, and
``parquet_rows.py`` reports that in a sentence. It imports nothing of the product, to start quickly.

Each line of stdin is a request in JSON. ``{"path": FILE}`` requests the columns and the number of
rows. With ``"columns": [...], "offset": n, "rows": n`` it requests rows. Without ``columns``, these
rows are only decoded, as a check. Each answer is a line of JSON. If it has ``bytes``, that number
of bytes of an Arrow stream follows.
"""

import io
import json
import resource
import sys
from typing import Any, BinaryIO

import polars as pl

MEMORY_BYTES = 4 << 30  # limit of writable memory; pages of the file itself do not count
ANSWER_CPU_S = 60  # limit of the computing time of one answer


def main() -> None:
    """Read requests from stdin and answer them until stdin ends."""
    _limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin.buffer:
        # RLIMIT_CPU counts from the start of the process, so raise it before each answer.
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used_cpu_s = int(usage.ru_utime + usage.ru_stime)
        _limit(resource.RLIMIT_CPU, used_cpu_s + ANSWER_CPU_S)
        _answer(json.loads(line), sys.stdout.buffer)


def _limit(kind: int, limit: int) -> None:
    """Set the soft limit of a ``kind`` of resource (RLIMIT_...), within its hard limit."""
    _, hard_limit = resource.getrlimit(kind)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(kind, (limit, hard_limit))


def _answer(request: dict[str, Any], out: BinaryIO) -> None:
    """Write the answer to a request: a line of JSON, and for rows an Arrow stream.

    A request without "rows" asks for the columns, one without "columns" checks that rows can be
    decoded, and others ask for rows.
    """
    content = b""
    try:
        scan = pl.scan_parquet(request["path"])
        if "rows" not in request:
            schema = scan.collect_schema()
            answer = {
                "columns": [name for name, kind in schema.items() if readable(kind)],
                "left_out": {
                    name: str(kind) for name, kind in schema.items() if not readable(kind)
                },
                "rows": int(scan.select(pl.len()).collect().item()),
            }
        elif "columns" not in request:
            rows = scan.slice(request["offset"], request["rows"]).collect()
            answer = {"decoded": rows.height}
        else:
            selected = scan.select(request["columns"])
            rows = selected.slice(request["offset"], request["rows"]).collect()
            stream = io.BytesIO()
            rows.write_ipc_stream(stream)
            content = stream.getvalue()
            answer = {"bytes": len(content)}
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        content, answer = b"", {"error": str(error)}
    out.write(json.dumps(answer).encode() + b"\n")
    out.write(content)
    out.flush()


def readable(kind: pl.DataType) -> bool:
    """Return whether a column of this type can be read: numbers, text, times, lists of ids."""
    if isinstance(kind, pl.List):
        item = kind.inner
        return isinstance(item, pl.DataType) and (item.is_numeric() or item == pl.Null)
    is_text = isinstance(kind, pl.String | pl.Categorical | pl.Enum | pl.Boolean | pl.Null)
    is_time = isinstance(kind, pl.Date | pl.Datetime)
    return is_text or is_time or kind.is_numeric()


if __name__ == "__main__":
    main()
