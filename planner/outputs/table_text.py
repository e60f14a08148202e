"""Arrange rows of results as a table of a page or a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.domain.columns import HOURS, KG, KWH, REASONS, SHARE, TEXT, USD, Column, Columns
from planner.domain.formats import figure, milliseconds, percent

Row = Mapping[str, Any]
WRITTEN = {HOURS, KWH, KG, USD}  # units that are written with a figure


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column."""

    text: str
    small: tuple[str, ...]  # lines below it
    numeric: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of one cell, and what a page shows below it."""

    text: str
    small: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of text that a page shows; each line begins with its label."""

    heads: tuple[Head, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]


def figure_table(columns: Columns, table: str, rows: Iterable[tuple[str, Row]]) -> FigureTable:
    """Return a table with one line for each of ``rows``, which are (label, figures).

    ``table`` names the table whose columns are shown.
    """
    groups: list[list[Column]] = []
    for column in columns.on(table):
        if column.below:  # shown small below the column before it
            groups[-1].append(column)
        else:
            groups.append([column])
    heads = tuple(
        Head(
            first.heads[table],
            tuple(column.heads[table] for column in below),
            first.unit not in (TEXT, REASONS),
        )
        for first, *below in groups
    )
    lines = ((label, tuple(_cell(group, row) for group in groups)) for label, row in rows)
    return FigureTable(heads, tuple(lines))


def _cell(group: Sequence[Column], row: Row) -> Cell:
    """Return the cell of a group of columns: the first as text, the others in small below it."""
    first, *below = group
    small = [(column.unit, _value(column, row)) for column in below]
    return Cell(
        figure_text(_value(first, row), first.unit, 2),
        ", ".join(figure_text(value, unit) for unit, value in small if value is not None),
        first.unit not in (TEXT, REASONS),
    )


def _value(column: Column, row: Row) -> Any:
    """Return a figure; for a column with parts, the first of them."""
    value = row.get(column.name)
    return (value or {}).get(column.parts[0]) if column.parts else value


def figure_text(value: Any, unit: str, places: int = 1) -> str:
    """Return a figure as text with its unit."""
    if unit == REASONS:
        return (
            "; ".join(f"{key}: {figure(count)}" for key, count in (value or {}).items()) or "none"
        )
    if unit == "ms":
        return milliseconds(value)
    if unit == SHARE:
        return percent(value, places)
    return str(value) if unit == TEXT else figure(value, unit if unit in WRITTEN else "")


def table_lines(rows: Sequence[Row], columns: Mapping[str, str]) -> list[str]:
    """Return rows as aligned lines of a terminal.

    ``columns`` maps each head to ``key`` or ``key:format``.
    """
    written = [spec.partition(":")[::2] for spec in columns.values()]
    cells = [
        ["-" if row[key] is None else format(row[key], form) for key, form in written]
        for row in rows
    ]
    return align_cells([list(columns), *cells], [bool(form) for _, form in written]) if rows else []


def align_cells(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Pad cells to columns of equal width; ``right`` columns are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<>"
    layout = "  ".join(f"{{:{sides[r]}{width}}}" for r, width in zip(right, widths, strict=True))
    return [layout.format(*row).rstrip() for row in rows]
