"""Write the list of file formats, docs/formats.md: ``python -m planner.inputs.ingest.publish``."""

from __future__ import annotations

from pathlib import Path

from planner.inputs.ingest.consistency import CHECKS
from planner.inputs.ingest.formats import FORMATS

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
HEAD = """\
# File formats

This page lists the formats of traces, by the value of `format`.

The planner detects the format. To add one, follow [the recipe](../CONTRIBUTING.md#a-connector). \
For a single file, [`--map`](how-to/read-your-traffic.md#name-the-columns) is enough.

| format | contents |
| --- | --- |
"""
CHECKED = """
## Checks

The planner asks if a file allows several readings. A check compares:

"""


def page_text() -> str:
    """Return the page: the formats with a documentation page first, then the checks."""
    rows = []
    for form in sorted(FORMATS.values(), key=lambda form: (not form.docs, form.name)):
        name = f"[`{form.name}`]({form.docs})" if form.docs else f"`{form.name}`"
        rows.append(f"| {name} | {form.words} |\n")
    checks = [f"- `{name}`: {check['compares']}\n" for name, check in CHECKS.items()]
    return "".join([HEAD, *rows, CHECKED, *checks])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
