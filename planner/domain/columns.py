"""Declare the columns of result tables once, for pages, CSV, API and command line.

The JSON of a row has every column under its name. A flat table (CSV, Parquet) has the columns with
a single value. Of the others, it has the parts that ``parts`` names. A column also holds its
heading in each table of a page. The unit decides how a value is formatted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from planner.domain.serialise import as_json

Row = dict[str, Any]  # as JSON, by name of column

# Units, which decide how values are formatted.
TEXT, COUNT, NUMBER, FLAG, REASONS = "text", "count", "number", "flag", "counts by reason"
USD, HOURS, KWH, KG, MS, SECONDS, SHARE = "$", "h", "kWh", "kg CO2e", "ms", "s", "share"
LESS, MORE = -1, 1  # which values of a column are better


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a result table: name, unit, help, and how its value is read from an object.

    Without ``of``, the value is the object's attribute of the same name.
    """

    name: str
    unit: str
    help: str
    of: Callable[[Any], Any] | None = None
    parts: tuple[str, ...] = ()  # parts of a mapping value that flat tables have
    flat: bool = True  # whether flat tables have the column
    older_name: str = ""  # flat tables have the value under this name too
    heads: Mapping[str, str] = field(default_factory=dict)  # heading by table of a page
    better: int = 0  # LESS or MORE, all else being equal; 0: neither

    def value(self, item: Any) -> Any:
        """Return the value of the column for ``item``, as JSON."""
        return as_json(self.of(item) if self.of else getattr(item, self.name))

    def cells(self, row: Mapping[str, Any]) -> Row:
        """Return the cells that a JSON row has in flat tables, by name.

        A value with parts has several.
        """
        value = row.get(self.name)
        if self.parts:
            return {f"{self.name}_{part}": (value or {}).get(part) for part in self.parts}
        if not self.flat:
            return {}
        return {name: value for name in (self.name, self.older_name) if name}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of row, such as the policies of a comparison."""

    columns: tuple[Column, ...]
    key: str = ""  # attribute that keys the rows in JSON; "": JSON has a list

    def column(self, name: str) -> Column:
        """Return the column of that name."""
        return next(column for column in self.columns if column.name == name)

    def on(self, table: str) -> list[Column]:
        """Return the columns that the table named ``table`` shows on a page."""
        return [column for column in self.columns if table in column.heads]

    def row(self, item: Any) -> Row:
        """Return ``item`` as a row: the JSON value of every column by name."""
        return {column.name: column.value(item) for column in self.columns}

    def json(self, value: Any) -> Any:
        """Return ``value`` as JSON: None, a row, or rows as a list or (with ``key``) by key."""
        if value is None:
            return None
        if self.key:
            return {getattr(item, self.key): self.row(item) for item in value}
        if isinstance(value, list | tuple):
            return [self.row(item) for item in value]
        return self.row(value)

    def cells(self, row: Mapping[str, Any]) -> Row:
        """Return a JSON row as the cells of a flat table, by name."""
        return {name: value for column in self.columns for name, value in column.cells(row).items()}

    def table(self, items: Iterable[Any]) -> pl.DataFrame:
        """Return objects as a flat table."""
        rows = [self.cells(self.row(item)) for item in items]
        return pl.DataFrame(rows, infer_schema_length=None)
