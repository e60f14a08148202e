"""Write the columns of docs/results.md: ``python -m planner.domain.results.publish``."""

from __future__ import annotations

import re
from pathlib import Path

from planner.domain.columns import Column, Columns
from planner.domain.results.figures import GROUPS, POLICIES, TIERS

PATH = Path(__file__).parents[3] / "docs" / "results.md"
TABLES = {"policies": POLICIES, "tiers": TIERS, "groups": GROUPS}


def with_columns(text: str) -> str:
    """Return the text with the table between each pair of marks rewritten."""
    for name, columns in TABLES.items():
        mark = rf"(<!-- columns of {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, rf"\g<1>{_described(columns)}\g<2>", text, flags=re.DOTALL)
    return text


def _described(columns: Columns) -> str:
    head = "| key | unit | in the table | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(
        f"| `{c.name}` | {c.unit} | {_names(c)} | {c.help} |\n" for c in columns.columns
    )


def _names(column: Column) -> str:
    return ", ".join(f"`{name}`" for name in column.cells({}))


if __name__ == "__main__":
    PATH.write_text(with_columns(PATH.read_text(encoding="utf-8")), encoding="utf-8")
