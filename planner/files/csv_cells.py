"""Make text safe for spreadsheets, which would run some cells as formulas."""

import csv
import io
from collections.abc import Iterable, Sequence

# First characters of a formula; the last four are the first four as wide characters.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def safe_cell(text: str) -> str:
    """Return the text with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_of(rows: Iterable[Sequence[str | int]]) -> str:
    """Return rows as CSV; cells are quoted where necessary."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([safe_cell(c) if isinstance(c, str) else c for c in row] for row in rows)
    return out.getvalue().rstrip("\n")
