"""Declare the file formats of tools: one TOML file each, read by the readers of this package.

CONTRIBUTING.md lists the keys of a declaration, and ``log_lines.py`` the groups of ``line``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from planner.inputs.ingest.names import compact_name
from planner.inputs.ingest.options import DEMAND_FIELDS, REQUEST_FIELDS

_OF_ANSWERS = ("output_tokens", "hash_ids", "utility")  # fields that counts per bin do not keep


@dataclass(frozen=True, slots=True, eq=False, config=ConfigDict(extra="forbid"))
class Connector:
    """How to read one kind of file: those of a tool, as its TOML file declares, or any table."""

    name: str
    title: str
    words: str
    # Arrivals are requests without output lengths.
    kind: Literal["requests", "arrivals", "demand"]
    known_by: tuple[str, ...] = ()  # of a format that no tool declares: none
    columns: Mapping[str, str] = field(default_factory=dict)
    docs: str = ""
    rows: str = ""
    line: str = ""
    unit: Literal["", "ns", "us", "ms", "s", "min", "h", "d", "w"] = ""
    missing: Literal["", "zero"] = ""
    repeated: Literal["", "sum"] = ""
    amounts: Literal["", "counter", "counts", "per_second", "per_minute", "per_hour"] = ""
    note: str = ""
    series: Sequence[Mapping[str, str]] = ()
    where: tuple[tuple[str, str], ...] = ()
    metric: str = ""
    value: str = ""
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields that columns can be mapped to."""
        if self.kind == "arrivals":
            return tuple(name for name in REQUEST_FIELDS if name not in _OF_ANSWERS)
        return DEMAND_FIELDS if self.kind == "demand" else REQUEST_FIELDS

    def recognises(self, columns: Sequence[str]) -> bool:
        """Return whether a file with these columns is one of this tool."""
        names = {compact_name(column) for column in columns}
        for known_column in self.known_by:  # such as "id | request_id": one of them
            if names.isdisjoint(map(compact_name, known_column.split("|"))):
                return False
        return bool(self.known_by)


def read_connector(path: Path) -> Connector:
    """Return the connector that a TOML file declares; raise ValueError if its content is wrong."""
    try:
        connector = Connector(name=path.stem, **tomllib.loads(path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{path.name}: {problem}") from None
    except ValidationError as problem:
        wrong = (
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors()
        )
        raise ValueError(f"{path.name}: {'; '.join(wrong)}.") from None
    for name in connector.columns:
        if name not in connector.fields:
            raise ValueError(
                f"{path.name}: columns: {name!r} is no field of {connector.kind}. "
                f"Use {', '.join(connector.fields)}."
            )
    return connector


# The declaration with the most identifying columns is tried first.
CONNECTORS: Mapping[str, Connector] = {
    each.name: each
    for each in sorted(
        map(read_connector, Path(__file__).parent.glob("*.toml")),
        key=lambda each: (-len(each.known_by), each.name),
    )
}
