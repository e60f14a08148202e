"""Read the terms of the glossary page from docs/glossary.md."""

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
        """Return the HTML id of the term on its page, built as GitHub builds it from headings."""
        return slugify(self.name.replace(":", ""))

    @property
    def letter(self) -> str:
        return self.name[0].upper()

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Return the meaning in parts (text, anchor), so that a page can link other terms.

        ``anchor`` is that of the term that the text names, "" for other text and for repeats.
        """
        parts, seen = [], {self.anchor}
        for text in _pattern().split(self.meaning):
            anchor = _anchors().get(text.lower(), "")
            parts.append((text, "" if anchor in seen else anchor))
            seen.add(anchor)
        return parts


@cache
def glossary() -> tuple[Term, ...]:
    """Return all terms in the order of the file, cached per process."""
    text = (settings.BASE_DIR / "docs" / "glossary.md").read_text(encoding="utf-8")
    return parse_terms(text)


def meaning_of(label: str) -> str:
    """Return the meaning of the term with which a label begins; "" if there is none."""
    beginning, *_ = re.split(r"[,:(]| per ", label, maxsplit=1)
    name = beginning.strip().lower()
    meanings = _meanings()
    return meanings.get(name) or meanings.get(name.removesuffix("s"), "")


@cache
def _anchors() -> dict[str, str]:
    """Return the anchor of each term by its name and its plural, in lower case."""
    anchors = {}
    for term in glossary():
        anchors[term.name.lower()] = anchors[f"{term.name.lower()}s"] = term.anchor
    return anchors


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern that matches the names of all terms, the longest name first."""
    names = sorted(_anchors(), key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, names))})\b", re.IGNORECASE)


@cache
def _meanings() -> dict[str, str]:
    """Return the meaning of each term by its name in lower case."""
    return {term.name.lower(): term.meaning for term in glossary()}


def parse_terms(text: str) -> tuple[Term, ...]:
    """Return the terms in a text of sections: heading, definition, optionally other names."""
    _title, *sections = text.split("\n## ")
    return tuple(_term(section) for section in sections)


def _term(section: str) -> Term:
    """Return the term of a section."""
    name, *paragraphs = (part.strip() for part in section.strip().split("\n") if part.strip())
    also = ", ".join(line.removeprefix(ALSO) for line in paragraphs if line.startswith(ALSO))
    meaning = " ".join(line for line in paragraphs if not line.startswith(ALSO))
    meaning = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning.replace("`", ""))  # links to docs
    return Term(name, meaning, also)
