"""Declare the file formats of tools: one TOML file each, read by the readers of this package.

A declaration has these keys:

- ``title``, ``words``: label in forms, and description in the guide. ``docs``: the tool's page.
- ``kind``: ``requests`` (one row per request) or ``demand`` (amounts per bin).
- ``known_by``: columns that identify the format, compared without case and marks (``a | b``: one).
- ``[columns]``: field to column. ``a + b`` is a sum, ``a | b`` takes b where a is empty.
- ``rows``: where the rows of a JSON document are, such as ``data[].results[]``. Fields of the
  objects around them are inherited. ``.*`` at the end takes lists of equal length as columns.
- ``unit``: of times that are numbers. ``missing``: ``zero`` if the tool leaves out empty bins.
- ``where``: conditions with the reason why other rows are no load.
- ``metric``, ``value``, ``[metrics]``: for one row per metric: the columns of its name and value,
  and words of names by field.
- ``repeated``: ``sum`` if rows of one bin are parts of it, such as those of several keys.
- ``amounts``: how amounts are meant, such as ``counter``.
- ``[[series]]``: name and columns of each series, where each has its own times. ``note``: a caveat.
- ``line``: the pattern of a row in a text log, with columns as named groups (``log_lines.py``).
- ``[example]``: ``file``, ``text`` and ``expect`` of a small file, which a test reads.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.inputs.ingest.names import compact_name


@dataclass(frozen=True, slots=True, eq=False)
class Connector:
    """The declaration of one tool's file format."""

    name: str
    title: str
    words: str
    docs: str
    kind: str
    known_by: tuple[str, ...]
    columns: Mapping[str, str]
    rows: str = ""
    line: str = ""
    unit: str = ""
    missing: str = ""
    repeated: str = ""
    amounts: str = ""
    written: str = ""
    note: str = ""
    series: Sequence[Mapping[str, str]] = ()
    where: tuple[tuple[str, str], ...] = ()
    metric: str = ""
    value: str = ""
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)

    def known(self, columns: Sequence[str], written: str) -> bool:
        """Return whether a file with these columns has this format."""
        names = {compact_name(column) for column in columns}
        fits = self.written in ("", written)
        return fits and all(
            any(compact_name(alternative) in names for alternative in column.split("|"))
            for column in self.known_by
        )


def _read(path: Path) -> Connector:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    where = tuple((condition, reason) for condition, reason in data.pop("where", ()))
    known_by = tuple(data.pop("known_by"))
    return Connector(path.stem, known_by=known_by, where=where, **data)


GENERAL = Connector("", "", "", "", "", (), {})  # of tables that no tool's declaration describes
# The declaration with the most identifying columns is tried first.
CONNECTORS: Mapping[str, Connector] = {
    each.name: each
    for each in sorted(
        map(_read, Path(__file__).parent.glob("*.toml")),
        key=lambda each: (-len(each.known_by), each.name),
    )
}
