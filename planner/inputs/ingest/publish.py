"""Write the list of file formats, docs/formats.md: ``python -m planner.inputs.ingest.publish``."""

from pathlib import Path

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

Checks compare what a reading implies with what the file has: rates, gaps, sums and repeated rows. \
If a file allows several readings, the planner asks.
"""


def page_text() -> str:
    """Return the page: the formats with a documentation page first."""
    rows = []
    for form in sorted(FORMATS.values(), key=lambda form: (not form.docs, form.name)):
        name = f"[`{form.name}`]({form.docs})" if form.docs else f"`{form.name}`"
        rows.append(f"| {name} | {form.words} |\n")
    return "".join([HEAD, *rows, CHECKED])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
