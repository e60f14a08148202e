"""Show the first rows of a file and the guessed field of each column.

A person then confirms or corrects the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.inputs.ingest.columns import Resolver, counts_per_bin
from planner.inputs.ingest.options import DEMAND_FIELDS, REQUEST_FIELDS, IngestOptions
from planner.inputs.ingest.tables import opened, python_safe

ROWS = 6
SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows of a file as text; ``guess`` maps columns to fields by their names."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    guess: Mapping[str, str]  # suggested field by recognized column


def preview(path: Path | str, name: str) -> Preview:
    """Return the preview of a file of any known format; raise IngestError if it is no table."""
    with opened(path, IngestOptions(name=name)) as table:
        first = python_safe(table.probe.head(ROWS)).iter_rows()
        rows = tuple(tuple("" if v is None else str(v)[:SHOWN] for v in row) for row in first)
    return Preview(table.columns, rows, _guess_mapping(table.columns))


def _guess_mapping(columns: tuple[str, ...]) -> dict[str, str]:
    """Return column -> field for the columns with a well-known name; each field occurs once."""
    fields = DEMAND_FIELDS if counts_per_bin(columns) else REQUEST_FIELDS
    find = Resolver(columns, IngestOptions(), "")
    guessed: dict[str, str] = {}
    for field in fields:
        if known := find.column(field):
            guessed.setdefault(known, field)
    return guessed
