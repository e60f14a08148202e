"""Text that a spreadsheet opens: a cell that it would run as a formula is defused."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

# What such a cell begins with; the last four are the first as wide characters.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def safe_cell(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_of(rows: Iterable[Sequence[str | int]]) -> str:
    """Rows as CSV, quoted where a cell asks for it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([safe_cell(c) if isinstance(c, str) else c for c in row] for row in rows)
    return out.getvalue().rstrip("\n")
