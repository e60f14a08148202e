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
SETTING = re.compile(r"(--[\w-]+):(?:\"[^\"]*\"|'[^']*'|[^\"';{}])*(?:;|(?=\}))")
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
        return cls(
            frozenset(word for text in texts for word in WORD.findall(text)),
            frozenset(ends for text in texts for ends in COMPOSED.findall(text)),
        )

    def has(self, name: str) -> bool:
        """Return whether a page may have the class ``name``, as a word or composed of one."""
        middles = {
            name.removeprefix(begin).removesuffix(end)
            for begin, end in self.composed
            if name.startswith(begin) and name.endswith(end) and len(name) > len(begin + end)
        }
        return not self.words.isdisjoint({name, *middles})


def trim(sheet: str, used: UsedClasses) -> str:
    """Return the CSS text ``sheet`` without the rules that need a class which no page has."""

    def with_needed_selectors(rule: re.Match[str]) -> str:
        """Return a rule with the selectors that a page may need; "" if there is none."""
        selectors, declarations = rule.groups()
        if selectors is None or selectors.lstrip().startswith("@"):  # a comment, or @font-face
            return rule[0]
        needed = [selector for selector in _selectors(selectors) if _may_match(selector, used)]
        return f"{','.join(needed)}{{{declarations}}}" if needed and declarations else ""

    trimmed = RULE.sub(with_needed_selectors, sheet)
    while EMPTY_GROUP.search(trimmed):  # a group may hold groups
        trimmed = EMPTY_GROUP.sub("", trimmed)
    return trimmed


def trim_variables(sheet: str, texts: Sequence[str]) -> str:
    """Return the CSS text ``sheet`` without variables that neither it nor one of ``texts`` uses."""
    values = SETTING.sub(lambda setting: setting[0].removeprefix(setting[1]), sheet)
    used = {name for text in (*texts, values) for name in VARIABLE.findall(text)}
    shorter = SETTING.sub(lambda setting: setting[0] if setting[1] in used else "", sheet)
    # Repeat, since the values of removed variables may be the only users of others.
    return sheet if shorter == sheet else trim_variables(shorter, texts)


def _selectors(prelude: str) -> list[str]:
    """Return the selectors in a list with commas; commas within parentheses separate none."""
    selectors, depth = [""], 0
    for letter in prelude:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
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
        """Replace the style sheet by its trimmed text, then name and compress all files."""
        if SHEET in paths and not dry_run:
            storage, path = paths[SHEET]
            with storage.open(path) as file:
                sheet = file.read().decode()
            texts = [file.read_text() for file in markup_files()]
            ours = [file.read_text() for file in (FILES / "static" / "css").glob("*.css")]
            sheet = trim_variables(trim(sheet, UsedClasses.from_texts(texts)), [*texts, *ours])
            trimmed = InMemoryStorage()
            trimmed.save(path, ContentFile(sheet.encode()))
            paths = paths | {SHEET: (trimmed, path)}
        yield from super().post_process(paths, dry_run, **options)
