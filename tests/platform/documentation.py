"""The tables of settings in docs/operations.md."""

import re

from tests.platform.conftest import ROOT

ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]*(?:\.\.\.)?)` \| .+ \| .*\|$", re.M)
PLACES = {  # by the heading of their table
    "": "all",
    "Not in containers": "image",
    "Docker Compose only": "compose",
    "In a checkout only": "scripts",
}


def settings() -> dict[str, str]:
    """Where each setting applies, by its name; ``HEADROOM_SOURCE_...`` stands for any such name."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    tables = dict(part.split("\n", 1) for part in ("\n" + section).split("\n### "))
    listed = [
        (name, place) for title, place in PLACES.items() for name in ROW.findall(tables[title])
    ]
    assert len(dict(listed)) == len(listed) > 50, "a setting has two rows, or a table is not there"
    return dict(listed)
