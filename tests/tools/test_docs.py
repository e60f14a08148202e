"""The generated pages of docs are those of the declarations."""

import json

import pytest

from tools.docs import DOCS, pages, schema_text

PAGES = pages()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_generated(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text == PAGES[page]
    assert not [line for line in text.splitlines() if line.endswith("|  |")]


def test_a_scenario_has_no_other_keys_than_those_of_the_schema() -> None:
    assert json.loads(schema_text())["additionalProperties"] is False
