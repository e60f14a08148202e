"""What a table of results is made of: each column declared once, read by page, CSV, API and command
line.

A row's JSON has every column under its name. A flat table (CSV, Parquet) has those that are one
figure, and of the others the parts that ``parts`` names. What a page heads a column with, in which
of its tables, stands with the column too; figures are written by their unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from planner.studies.plain import as_json

Row = dict[str, Any]  # as JSON, by name of column

# Units, by which figures are written.
TEXT, COUNT, NUMBER, FLAG, REASONS = "text", "count", "number", "flag", "counts by reason"
USD, HOURS, KWH, KG, MS, SECONDS, SHARE = "$", "h", "kWh", "kg CO2e", "ms", "s", "share"
LESS, MORE = -1, 1  # which is better of a figure


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its unit, what it says, and how it is computed of a row's object (left
    out: the attribute of its name)."""

    name: str
    unit: str
    help: str
    of: Callable[[Any], Any] | None = None
    parts: tuple[str, ...] = ()  # of a value that has several: those that flat tables have
    flat: bool = True  # whether flat tables have it
    once: str = ""  # an older name, under which flat tables have it as well
    heads: Mapping[str, str] = field(default_factory=dict)  # by table of a page
    below: bool = False  # there it stands small, below the column before it
    sign: str = ""  # the column of flags that is shown as a sign before it
    better: int = 0  # LESS or MORE, all else alike; 0: neither

    def value(self, item: Any) -> Any:
        return as_json(self.of(item) if self.of else getattr(item, self.name))

    def cells(self, row: Mapping[str, Any]) -> Row:
        """What flat tables have of it, by their own names, of a row as JSON."""
        value = row.get(self.name)
        if self.parts:
            return {f"{self.name}_{part}": (value or {}).get(part) for part in self.parts}
        return {name: value for name in (self.name, self.once) if name} if self.flat else {}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of row."""

    columns: tuple[Column, ...]
    key: str = ""  # the attribute by which JSON has its objects, where it is not a list

    def on(self, table: str) -> list[Column]:
        """Those that a table of a page has."""
        return [column for column in self.columns if table in column.heads]

    def row(self, item: Any) -> Row:
        return {column.name: column.value(item) for column in self.columns}

    def json(self, value: Any) -> Any:
        """Every object of a sequence as a row, or the one that ``value`` is."""
        if value is None:
            return None
        if self.key:
            return {getattr(item, self.key): self.row(item) for item in value}
        if isinstance(value, list | tuple):
            return [self.row(item) for item in value]
        return self.row(value)

    def cells(self, row: Mapping[str, Any]) -> Row:
        return {name: value for column in self.columns for name, value in column.cells(row).items()}

    def table(self, items: Iterable[Any]) -> pl.DataFrame:
        """Objects as a flat table."""
        flat = [self.cells(self.row(item)) for item in items]
        return pl.DataFrame(flat, infer_schema_length=None)
