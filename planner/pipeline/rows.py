"""A small table from a file, row by row, whatever it is written in."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.errors import IngestError
from planner.ingest import IngestOptions
from planner.ingest.source import Source
from planner.ingest.tables import open_table

MOST_ROWS = 100_000


def read_rows(path: Path | str) -> list[dict[str, Any] | str]:
    """Every row as column to value, in the order of the file; a string says why one is none."""
    options = IngestOptions()
    found: list[tuple[int, dict[str, Any] | str]] = []
    with TemporaryDirectory() as scratch:
        table = open_table(Source(path, options), options, Path(scratch))
        for batch in table.batches(table.columns):
            found += zip(batch.lines.tolist(), batch.frame.iter_rows(named=True), strict=True)
            for fault in batch.faults:
                reason = f"{Path(path).name}, {table.unit} {{}}: {fault.reason}."
                found += [(line, reason.format(line)) for line in fault.lines.tolist()]
            if len(found) > MOST_ROWS:
                raise IngestError(
                    f"{Path(path).name} has more than {MOST_ROWS} rows; split it into several."
                )
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]
