"""Read a small table from a file of any supported format, row by row."""

from pathlib import Path
from typing import Any

from planner.errors import IngestError
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.tables import opened, python_safe

MOST_ROWS = 100_000
CHUNK_BYTES = 1 << 20  # small, so that a file with far too many rows is refused early


def read_rows(path: Path | str, name: str = "") -> list[dict[str, Any] | str]:
    """Return the rows of a file in order; each row is a dict from column to value.

    An unreadable row is a string with the reason instead. ``name`` is the original name of the
    file, if it is stored under another.
    """
    name = name or Path(path).name
    options = IngestOptions(chunk_bytes=CHUNK_BYTES, name=name)
    rows: list[tuple[int, dict[str, Any] | str]] = []
    with opened(path, options) as table:
        for batch in table.batches(table.columns):
            faults = sum(fault.lines.size for fault in batch.faults)
            if len(rows) + batch.frame.height + faults > MOST_ROWS:
                raise IngestError(f"{name} has more than {MOST_ROWS} rows. Split it into several.")
            rows += zip(
                batch.lines.tolist(), python_safe(batch.frame).iter_rows(named=True), strict=True
            )
            for fault in batch.faults:
                rows += [
                    (line, f"{name}, {table.unit} {line}: {fault.reason}.")
                    for line in fault.lines.tolist()
                ]
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]
