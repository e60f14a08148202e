"""Arrange rows of results as a table of a page or a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.domain.columns import REASONS, SHARE, TEXT, Column, Columns
from planner.domain.formats import figure, milliseconds, percent

Row = Mapping[str, Any]
WRITTEN = {"h": "h", "kWh": "kWh", "kg CO2e": "kg", "$": "$"}  # the unit as written with a figure


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column."""

    text: str
    small: tuple[str, ...] = ()  # lines below it
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of one cell."""

    text: str
    small: str = ""  # shown below the text
    met: bool | None = None  # shows a sign; None: no target
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table: its name, its label and its cells."""

    name: str
    label: str
    cells: tuple[Cell, ...]
    note: str = ""  # shown below the label


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of text that a page or a terminal shows."""

    heads: tuple[Head, ...]
    lines: tuple[Line, ...]


def figure_table(
    columns: Columns,
    table: str,
    rows: Iterable[tuple[str, str, Row]],
    *,
    spread: Mapping[str, Sequence[str]] | None = None,
    notes: Mapping[str, str] | None = None,
    note: str = "",
) -> FigureTable:
    """Return a table with one line for each of ``rows``, which are (name, label, figures).

    ``table`` names the table whose columns are shown. ``spread`` maps columns to keys: such a
    column is shown once per key, with the key in its head. ``notes`` are texts by such a key, for
    heads of columns that have a sign. ``note`` names the figure that holds a row's note.
    """
    groups: list[tuple[list[Column], str]] = []
    shared: list[Column] = []
    for column in columns.on(table):
        if column.below:
            # It is shown small below the column before it, and for every key of that column.
            shared.append(column)
        else:
            shared = [column]
            groups += [(shared, key) for key in (spread or {}).get(column.name, ("",))]
    heads = tuple(
        Head(
            first.heads[table].format(key),
            tuple(
                filter(
                    None,
                    (
                        (notes or {}).get(key, "") if first.sign else "",
                        *(column_below.heads[table] for column_below in below),
                    ),
                )
            ),
            not _is_words(first),
        )
        for (first, *below), key in groups
    )
    lines = tuple(
        Line(
            name,
            label,
            tuple(_cell(group, key, row) for group, key in groups),
            row.get(note, "") if note else "",
        )
        for name, label, row in rows
    )
    return FigureTable(heads, lines)


def _cell(group: Sequence[Column], key: str, row: Row) -> Cell:
    """Return the cell of a group of columns: the first as text, the others in small below it."""
    first, *below = group
    value = _value(first, key, row)
    flags = row.get(first.sign) if first.sign and value is not None else None
    small = [(column, _value(column, key, row)) for column in below]
    return Cell(
        figure_text(value, first.unit, 2),
        ", ".join(
            figure_text(figure, column.unit) for column, figure in small if figure is not None
        ),
        flags.get(key) if flags else None,
        not _is_words(first),
    )


def _value(column: Column, key: str, row: Row) -> Any:
    """Return a figure; for a spread column, only its part ``key``."""
    value = row.get(column.name)
    part = key or (column.parts[0] if column.parts else "")
    return (value or {}).get(part) if part else value


def _is_words(column: Column) -> bool:
    """Return whether a column has text, which is aligned to the left."""
    return column.unit in (TEXT, REASONS)


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
    return str(value) if unit == TEXT else figure(value, WRITTEN.get(unit, ""))


def text_table(table: FigureTable, first: str) -> list[str]:
    """Return the lines of a table on a terminal; cells that miss a target are marked."""
    rows = [[first, *(_with_note(head.text, ", ".join(head.small)) for head in table.heads)]]
    for line in table.lines:
        missed = (" MISSED" if cell.met is False else "" for cell in line.cells)
        texts = (_with_note(cell.text, cell.small) for cell in line.cells)
        rows.append([line.label, *(text + sign for text, sign in zip(texts, missed, strict=True))])
    lines = align_cells(rows, [False, *(head.numeric for head in table.heads)])
    return lines + [f"{line.label}: {line.note}" for line in table.lines if line.note]


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


def _with_note(text: str, small: str) -> str:
    """Return ``text`` with ``small`` in parentheses."""
    return f"{text} ({small})" if small else text
