"""Write the columns of docs/results.md: ``python -m planner.domain.results.publish``."""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from planner.domain.columns import Columns
from planner.domain.results.figures import GROUPS, POLICIES, TIERS

PATH = Path(__file__).parents[3] / "docs" / "results.md"
TABLES = {"policies": POLICIES, "tiers": TIERS, "groups": GROUPS}


def with_columns(text: str) -> str:
    """Return ``text``, a page of docs, with the table between each pair of marks rewritten."""
    for name, columns in TABLES.items():
        mark = rf"(<!-- columns of {name} -->\n).*?(<!-- end -->)"
        text = re.sub(mark, rf"\g<1>{_columns_table(columns)}\g<2>", text, flags=re.DOTALL)
    return text


def _columns_table(columns: Columns) -> str:
    """Return a table of columns in Markdown, then their names in flat tables if they differ."""
    head = "| key | unit | meaning |\n| --- | --- | --- |\n"
    above = {(column.name, column.unit, column.help) for column in POLICIES.columns}
    repeated = [
        column.name
        for column in columns.columns
        if columns is not POLICIES and (column.name, column.unit, column.help) in above
    ]
    new = [column for column in columns.columns if column.name not in repeated]
    same_meaning = groupby(new, key=lambda column: (column.unit, column.help))
    rows = [
        f"| {_quoted(column.name for column in group)} | {unit} | {help} |\n"
        for (unit, help), group in same_meaning
    ]
    flat_names = {column.name: list(column.cells({})) for column in columns.columns}
    other = [
        f"`{key}` as {_quoted(names)}"
        for key, names in flat_names.items()
        if names and names != [key] and key not in repeated
    ]
    absent = [key for key, names in flat_names.items() if not names]
    lines = [f"\nAs of a policy: {_quoted(repeated)}.\n"] if repeated else []
    lines += [f"\nIn flat tables: {'; '.join(other)}.\n"] if other else []
    lines += [f"\nNot in flat tables: {_quoted(absent)}.\n"] if absent else []
    return "".join([head, *rows, *lines])


def _quoted(names: Iterable[str]) -> str:
    """Return the names as a list in Markdown, each as code."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PATH.write_text(with_columns(PATH.read_text(encoding="utf-8")), encoding="utf-8")
