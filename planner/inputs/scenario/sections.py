"""Read one section of a scenario as written, and replace it in another scenario.

Comments stay with their section. The section can so be compared and restored alone.
"""

import json
import re

from planner.inputs.scenario import document as text

POLICIES = "policies"
PARTS = (POLICIES,)  # sections with a separate version history
MARKERS = ("---", "...")
GOES_ON = (" ", "\t", "-", "]", "}", "#")  # first characters of lines that begin no section


def section_of(document: str, name: str) -> str:
    """Return the lines of a section as text; "" if it is missing.

    If the document is not in block style (JSON), return the value as JSON.
    """
    lines = document.splitlines(keepends=True)
    line_range = _line_range(lines, name)
    if line_range is not None:
        return "".join(lines[line_range[0] : line_range[1]])
    if name not in document:
        return ""
    value = text.outline(document).get(name)
    return "" if value is None else json.dumps(value)


def with_section(document: str, name: str, other: str) -> str:
    """Return ``document`` with one section replaced by that of ``other``, a whole document.

    The section is removed if ``other`` has none.
    """
    lines, other_lines = (source.splitlines(keepends=True) for source in (document, other))
    own_section, other_section = _line_range(lines, name), _line_range(other_lines, name)
    if own_section is None and _line_range(lines, "version") is not None:
        own_section = len(lines), len(lines)
    if own_section is None or other_section is None:
        return text.edit(document, {name: text.outline(other).get(name)})
    parts = lines[: own_section[0]], other_lines[slice(*other_section)]
    ended = ("".join(part).removesuffix("\n") + "\n" for part in parts if part)
    return "".join([*ended, *lines[own_section[1] :]])


def _line_range(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the index of a section's first line, and of the line after its last; None if missing.

    Comments and blank lines before the next section belong to the next section.
    """
    head = re.compile(rf"""["']?{re.escape(name)}["']?\s*:(\s|$)""")
    first = next((n for n, line in enumerate(lines) if head.match(line)), None)
    if first is None:
        return None
    end = first + 1
    for n in range(first + 1, len(lines)):
        line = lines[n]
        if line.strip() and (line.startswith(MARKERS) or not line.startswith(GOES_ON)):
            break
        if line.strip() and not line.startswith("#"):
            end = n + 1
    return first, end
