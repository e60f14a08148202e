"""Command lines in the documentation are valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import load_command_class

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.M | re.S)
LINES = sorted(
    {
        line.strip()
        for page in PAGES
        for block in FENCE.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.strip().startswith("bin/manage ")
    }
)


def test_the_pages_have_commands() -> None:
    assert len(LINES) > 40


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_is_accepted(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    command = load_command_class("planner", name)
    command.create_parser("bin/manage", name).parse_args(arguments)
