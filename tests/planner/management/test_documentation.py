"""Command lines in the documentation are valid."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

from planner.management.help import JOBS, overview, purpose
from tests.planner.management.calling import command

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


# Commands with the output that a page shows next: only quick ones. "..." leaves lines out.
SHOWN = re.compile(
    r"^```sh\n(bin/manage (?:quick-size|characterise|size) [^\n]*)\n```\n\n```\n(.*?)^```",
    re.M | re.S,
)
OUTPUTS = [
    pytest.param(*shown, id=f"{page.name}: {shown[0]}")
    for page in PAGES
    for shown in SHOWN.findall(page.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def coarse_by_default() -> None:
    """Size as in the product, because pages show its figures."""


@pytest.mark.django_db
@pytest.mark.parametrize(("line", "shown"), OUTPUTS)
def test_a_page_shows_the_figures_that_its_command_prints(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = command(*shlex.split(line, comments=True)[1:])
    assert code == 0
    figures = re.compile(r"[\d.,]*\d%?")
    printed = [set(figures.findall(row)) for row in out.splitlines()]
    for row in shown.splitlines():
        assert any(set(figures.findall(row)) <= numbers for numbers in printed), row


def test_the_pages_have_commands() -> None:
    assert len(LINES) > 40


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_is_accepted(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    command = load_command_class("planner", name)
    command.create_parser("bin/manage", name).parse_args(arguments)


COMMANDS = sorted(path.stem for path in (ROOT / "planner/management/commands").glob("[!_]*.py"))
WITHOUT_OPTIONS = {"warm_up", "work"}


def test_the_overview_has_every_command_once() -> None:
    assert sorted(name for names in JOBS.values() for name in names) == COMMANDS
    assert all(purpose(name) in overview() and purpose(name) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_valid_examples_and_explains_every_option(name: str) -> None:
    command = load_command_class("planner", name)
    parser = command.create_parser("bin/manage", name)
    assert len(set(command.examples)) == (1 if name in WITHOUT_OPTIONS else 3)
    for example in command.examples:
        words = shlex.split(example)
        assert words[:1] == [name] or name == "serve"
        parser.parse_args(words if name == "serve" else words[1:])
        assert example in parser.format_help()
    assert [action for action in explained(parser) if not action.help] == []


def explained(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options, those of actions too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from explained(inner)
        else:
            yield action
