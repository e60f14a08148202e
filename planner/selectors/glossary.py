"""Read the terms of the glossary page from docs/glossary.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from django.conf import settings
from django.utils.text import slugify

ALSO = "Also: "


@dataclass(frozen=True, slots=True)
class Term:
    """A term, its definition, and other names for it."""

    name: str
    meaning: str
    also: str = ""

    @property
    def anchor(self) -> str:
        """Return the id of the term on its page, as GitHub makes it for the heading."""
        return slugify(self.name.replace(":", ""))


@cache
def glossary() -> tuple[Term, ...]:
    """Return all terms in the order of the file, read once per process."""
    text = (settings.BASE_DIR / "docs" / "glossary.md").read_text(encoding="utf-8")
    return parse_terms(text)


def meaning_of(label: str) -> str:
    """Return the meaning of the term that a label begins with, or "" if it is no term."""
    name = re.split(r"[,:(]| per ", label, maxsplit=1)[0].strip().lower()
    meanings = _meanings()
    return meanings.get(name) or meanings.get(name.removesuffix("s"), "")


@cache
def _meanings() -> dict[str, str]:
    return {term.name.lower(): term.meaning for term in glossary()}


def parse_terms(text: str) -> tuple[Term, ...]:
    """Parse sections of a heading, a definition and an optional line of other names."""
    return tuple(_term(section) for section in text.split("\n## ")[1:])


def _term(section: str) -> Term:
    name, *paragraphs = (part.strip() for part in section.strip().split("\n") if part.strip())
    also = ", ".join(line.removeprefix(ALSO) for line in paragraphs if line.startswith(ALSO))
    meaning = " ".join(line for line in paragraphs if not line.startswith(ALSO))
    meaning = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning.replace("`", ""))  # links to docs
    return Term(name, meaning, also)
