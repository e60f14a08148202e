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
    if unit == REASONS:
        return (
            "; ".join(f"{key}: {figure(count)}" for key, count in (value or {}).items()) or "none"
        )
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
    keys_and_formats = [column.partition(":")[::2] for column in columns.values()]
    cells = [
        ["-" if row[key] is None else format(row[key], form) for key, form in keys_and_formats]
        for row in rows
    ]
    return align_cells([list(columns), *cells], [bool(form) for _, form in keys_and_formats])


def align_cells(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return rows of cells as lines; ``right[i]``: column i is aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = "  ".join(
        f"{{:{'>' if is_right else '<'}{width}}}"
        for is_right, width in zip(right, widths, strict=True)
    )
    return [layout.format(*row).rstrip() for row in rows]
