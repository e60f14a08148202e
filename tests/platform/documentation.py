"""The table of settings in docs/operations.md."""

from __future__ import annotations

import re

from tests.platform.conftest import ROOT

ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]*(?:\.\.\.)?)` \| (.+) \| (.+) \| (\w+) \|$", re.M)
PLACES = {"all", "image", "compose", "scripts"}


def settings() -> dict[str, str]:
    """Where each setting applies, by its name; ``HEADROOM_SOURCE_...`` stands for any such name."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    listed = {name: place for name, _, _, place in rows}
    assert len(listed) == len(rows) > 50, "a setting has two rows, or the table is not there"
    assert set(listed.values()) == PLACES
    return listed
