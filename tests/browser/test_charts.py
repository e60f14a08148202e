"""Plotly's rules come as a file, since the site's policy lets no script put styles into a page."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

VENDORED = Path("static/vendor/plotly")
RULES = "[...document.styleSheets].flatMap(sheet => [...sheet.cssRules].map(rule => rule.cssText))"


def test_the_file_has_the_rules_that_plotly_would_put_into_a_page(page: Any) -> None:
    page.set_content("<html><head></head><body></body></html>")
    page.add_script_tag(content=(VENDORED / "plotly-cartesian.min.js").read_text(encoding="utf-8"))
    made = page.evaluate(RULES)
    page.set_content("<html><head></head><body></body></html>")
    page.add_style_tag(content=(VENDORED / "plotly.css").read_text(encoding="utf-8"))
    assert len(made) > 50 and page.evaluate(RULES) == made
