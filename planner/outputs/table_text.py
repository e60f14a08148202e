"""Write figures as text, and rows as an aligned table for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.domain.columns import HOURS, KG, KWH, REASONS, SHARE, TEXT, USD
from planner.domain.formats import figure, milliseconds, percent
from planner.domain.report import limit_name

Row = Mapping[str, Any]
WRITTEN = {HOURS, KWH, KG, USD}  # units that are written after (or before) a figure


def figure_text(value: Any, unit: str) -> str:
    """Return ``value`` as text with its ``unit``; shares have two decimals."""
    if unit == REASONS:  # counts by reason
        texts = [f"{reason}: {figure(count)}" for reason, count in (value or {}).items()]
        return "; ".join(texts) or "none"
    if unit == "ms":
        return milliseconds(value)
    if unit == SHARE:
        return percent(value, 2)
    if unit == TEXT:
        return limit_name(str(value))  # "ttft" as TTFT; other words stay
    return figure(value, unit if unit in WRITTEN else "")


def table_lines(rows: Sequence[Row], columns: Mapping[str, str]) -> list[str]:
    """Return rows as lines below headings; ``columns``: heading to key, or key:format."""
    if not rows:
        return []
    keys, formats = [], []
    for column in columns.values():
        key, _, number_format = column.partition(":")
        keys.append(key)
        formats.append(number_format)
    cells = [
        [
            "-" if row[key] is None else format(row[key], how)
            for key, how in zip(keys, formats, strict=True)
        ]
        for row in rows
    ]
    return align_cells([list(columns), *cells], right_aligned=list(map(bool, formats)))


def align_cells(rows: Sequence[Sequence[str]], right_aligned: Sequence[bool]) -> list[str]:
    """Return rows of cells as lines; ``right_aligned`` says so for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [justified(row, widths, right_aligned).rstrip() for row in rows]


def justified(row: Sequence[str], widths: Sequence[int], right_aligned: Sequence[bool]) -> str:
    """Return a row of cells as a line, each as wide as its column, with two blanks between."""
    cells = []
    for text, width, is_right in zip(row, widths, right_aligned, strict=True):
        cells.append(text.rjust(width) if is_right else text.ljust(width))
    return "  ".join(cells)
