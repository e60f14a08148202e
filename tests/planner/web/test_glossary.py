"""Words that explain themselves, and a page for those that do not."""

from __future__ import annotations

import pytest
from django.urls import reverse

from planner.models import User
from planner.policies.registry import TRAITS
from planner.web.pages.glossary import TERMS, glossary
from tests.planner.web.pages import signed_in, text_of


def test_every_page_leads_to_what_the_words_mean(planner: User) -> None:
    """Names of papers stood alone, and no page said what they are."""
    client = signed_in(planner)
    address = reverse("web:glossary")
    assert address in client.get(reverse("web:traces")).content.decode()
    page = text_of(client.get(address))
    for word in ("IW-F", "IW-N", "NIW", "LT-UA", "Below the replica", "TTFT", "Assumed"):
        assert word in page, word


@pytest.mark.django_db
def test_every_policy_and_no_term_twice() -> None:
    groups = dict(glossary())
    assert {term.also for term in groups["Policies"]} == set(TRAITS)
    anchors = [term.anchor for term in TERMS]
    assert len(anchors) == len(set(anchors)) and all(term.meaning for term in TERMS)
