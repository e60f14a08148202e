"""Show the glossary page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.utils.text import slugify
from django.views.decorators.http import require_safe

from planner.web.request import Request

ALSO = "Also: "


@require_safe
def page(request: Request) -> HttpResponse:
    """Show every term of docs/glossary.md."""
    return render(request, "web/glossary.html", {"terms": glossary()})


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


def parse_terms(text: str) -> tuple[Term, ...]:
    """Parse sections of a heading, a definition and an optional line of other names."""
    return tuple(_term(section) for section in text.split("\n## ")[1:])


def _term(section: str) -> Term:
    name, *paragraphs = (part.strip() for part in section.strip().split("\n") if part.strip())
    also = ", ".join(line.removeprefix(ALSO) for line in paragraphs if line.startswith(ALSO))
    meaning = " ".join(line for line in paragraphs if not line.startswith(ALSO))
    return Term(name, meaning.replace("`", ""), also)
