"""Declare the file formats of tools: one TOML file each, read by the readers of this package.

CONTRIBUTING.md lists the keys of a declaration, and ``log_lines.py`` the groups of ``line``.
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
    """How to read the files of one tool, as its TOML file declares."""

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
    note: str = ""
    series: Sequence[Mapping[str, str]] = ()
    where: tuple[tuple[str, str], ...] = ()
    metric: str = ""
    value: str = ""
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)

    def known(self, columns: Sequence[str]) -> bool:
        """Return whether a file with these columns has this format."""
        names = {compact_name(column) for column in columns}
        return all(
            any(compact_name(alternative) in names for alternative in column.split("|"))
            for column in self.known_by
        )


def _read(path: Path) -> Connector:
    """Return the connector that a TOML file declares."""
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
