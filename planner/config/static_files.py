"""Serve only the rules of the style sheet whose classes occur in a page or script.

Tabler's sheet is 635 kB, of which the pages use about a quarter. ``collectstatic`` leaves out the
rest, so that the file in ``static/vendor`` stays as its authors publish it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage
from whitenoise.storage import CompressedManifestStaticFilesStorage

from planner.installation import FILES, ROOT

SHEET = "vendor/tabler/tabler.min.css"
WORD = re.compile(r"[A-Za-z_][\w-]*")
# A class of which a template inserts a part: bg-{{ colour }}-lt, or text-{% if met %}success.
COMPOSED = re.compile(r"([\w-]+-)\{(?:\{[^}]*\}\}([\w-]*)|%)")
# A comment, or a rule without rules in it: its selectors, and its declarations with quoted texts.
RULE = re.compile(r'/\*.*?\*/|([^{};]+)\{((?:"[^"]*"|[^{}"])*)\}', re.DOTALL)
EMPTY_GROUP = re.compile(r"@[^{};]+\{\}")  # such as @media, after all of its rules were removed
CLASS = re.compile(r"\.((?:\\.|[A-Za-z_-])(?:\\.|[\w-])*)")
VARIABLE = re.compile(r"--[\w-]+")
# A variable and its value, such as "--tblr-red:#f00;".
SETTING = re.compile(r"(?P<name>--[\w-]+):(?:\"[^\"]*\"|'[^']*'|[^\"';{}])*(?:;|(?=\}))")
INNER = re.compile(r"\([^()]*\)")  # the arguments of :not, :is and others


def markup_files() -> Iterator[Path]:
    """Yield the files whose words may be classes of a page."""
    yield from (FILES / "templates").rglob("*.html")
    for folder in ("js", "vendor/tabler", "vendor/htmx"):
        yield from (FILES / "static" / folder).glob("*.js")
    for folder in ("web", "templatetags"):
        yield from (ROOT / "planner" / folder).rglob("*.py")


@dataclass(frozen=True)
class UsedClasses:
    """The CSS classes that pages may have, as found in templates, scripts and modules."""

    words: frozenset[str]  # every word there, since it may be a class
    composed: frozenset[tuple[str, str]]  # beginning and end of classes that templates compose

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> UsedClasses:
        """Collect the classes from the ``texts`` of templates, scripts and modules."""
        words: set[str] = set()
        composed: set[tuple[str, str]] = set()
        for text in texts:
            words.update(WORD.findall(text))
            composed.update(COMPOSED.findall(text))
        return cls(frozenset(words), frozenset(composed))

    def has(self, name: str) -> bool:
        """Return whether a page may have the class ``name``, as a word or composed of one."""
        if name in self.words:
            return True
        for begin, end in self.composed:
            fits = name.startswith(begin) and name.endswith(end) and len(name) > len(begin + end)
            if fits and name.removeprefix(begin).removesuffix(end) in self.words:
                return True
        return False


def trim(sheet: str, used: UsedClasses) -> str:
    """Return the CSS text ``sheet`` without the rules that need a class which no page has."""

    def with_needed_selectors(rule: re.Match[str]) -> str:
        """Return a rule with the selectors that a page may need; "" if there is none."""
        selectors, declarations = rule.groups()
        if selectors is None or selectors.lstrip().startswith("@"):  # a comment, or @font-face
            return rule[0]
        needed = [selector for selector in _selectors(selectors) if _may_match(selector, used)]
        if not needed or not declarations:
            return ""
        return f"{','.join(needed)}{{{declarations}}}"

    trimmed = RULE.sub(with_needed_selectors, sheet)
    while EMPTY_GROUP.search(trimmed):  # a group may hold groups
        trimmed = EMPTY_GROUP.sub("", trimmed)
    return trimmed


def trim_variables(sheet: str, texts: Sequence[str]) -> str:
    """Return the CSS text ``sheet`` without variables that neither it nor one of ``texts`` uses."""

    def without_name(setting: re.Match[str]) -> str:
        """Return the value of a variable, which may use other variables."""
        return setting.group().removeprefix(setting["name"])

    used: set[str] = set()
    for text in (*texts, SETTING.sub(without_name, sheet)):
        used.update(VARIABLE.findall(text))

    def if_used(setting: re.Match[str]) -> str:
        """Return a variable and its value if it is used, else ""."""
        return setting.group() if setting["name"] in used else ""

    trimmed = SETTING.sub(if_used, sheet)
    # Repeat, since the values of removed variables may be the only users of others.
    return sheet if trimmed == sheet else trim_variables(trimmed, texts)


def _selectors(selector_list: str) -> list[str]:
    """Return the selectors in a list with commas; commas within parentheses separate none."""
    selectors = [""]
    open_parentheses = 0
    for letter in selector_list:
        if letter == "(":
            open_parentheses += 1
        elif letter == ")":
            open_parentheses -= 1
        if letter == "," and not open_parentheses:
            selectors.append("")
        else:
            selectors[-1] += letter
    return selectors


def _may_match(selector: str, used: UsedClasses) -> bool:
    """Return whether every class that ``selector`` requires is in use."""
    while INNER.search(selector):
        selector = INNER.sub("", selector)
    return all(used.has(name.replace("\\", "")) for name in CLASS.findall(selector))


class StaticFiles(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Compressed files with a digest in their names, and a style sheet without unused rules."""

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Any:
        """Replace the style sheet by its trimmed text, then name and compress all files.

        ``paths`` has (storage, path there) of each file by its name.
        """
        if SHEET in paths and not dry_run:
            storage, path = paths[SHEET]
            with storage.open(path) as file:
                sheet = file.read().decode()
            markup = [file.read_text() for file in markup_files()]
            own_sheets = [file.read_text() for file in (FILES / "static" / "css").glob("*.css")]
            sheet = trim(sheet, UsedClasses.from_texts(markup))
            sheet = trim_variables(sheet, [*markup, *own_sheets])
            trimmed = InMemoryStorage()
            trimmed.save(path, ContentFile(sheet.encode()))
            paths = paths | {SHEET: (trimmed, path)}
        yield from super().post_process(paths, dry_run, **options)
