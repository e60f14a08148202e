"""The glossary page shows docs/glossary.md, the one place that defines terms."""

import re

from django.conf import settings
from django.urls import reverse

from planner.models import User
from planner.selectors.glossary import Term, glossary, parse_terms
from tests.planner.web.pages import signed_in

FILE = settings.BASE_DIR / "docs" / "glossary.md"


def test_a_section_is_parsed_into_a_term() -> None:
    text = (
        "# G\n\nIntro.\n\n## TTFT\n\nTime to `first` token.\n\nAlso: T\n\n## X:Y b\n\nTwo\nlines.\n"
    )
    ttft, other = parse_terms(text)
    assert ttft == Term("TTFT", "Time to first token.", "T") and ttft.anchor == "ttft"
    assert other == Term("X:Y b", "Two lines.") and other.anchor == "xy-b"


def test_terms_are_unique_sorted_and_defined() -> None:
    names = [term.name for term in glossary()]
    assert names == re.findall(r"^## (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == sorted(names, key=str.casefold)
    assert len({term.anchor for term in glossary()}) == len(names) > 0
    assert all(term.meaning.endswith(".") for term in glossary())
    other_names = [name for term in glossary() for name in term.also.split(", ") if name]
    assert len(other_names) == len(set(other_names)) and not set(other_names) & set(names)


def test_the_page_shows_the_terms_of_the_file_and_no_other(planner: User) -> None:
    client = signed_in(planner)
    address = reverse("web:glossary")
    assert address in client.get(reverse("web:traces")).content.decode()
    page = client.get(address).content.decode()
    shown = re.findall(r'<dt id="([^"]+)">', page)
    assert shown == [term.anchor for term in glossary()]
    assert page.count("<dd>") == len(shown)
