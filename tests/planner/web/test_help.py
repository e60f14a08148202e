"""The how-to pages inside the product, and which one a page opens."""

import re

from django.test import Client

from planner.models import User
from planner.selectors.places import HELP, help_of, how_tos
from planner.web.markdown import html_of
from tests.planner.web.pages import signed_in


def test_every_how_to_is_a_page_and_its_links_answer(viewer: User) -> None:
    client: Client = signed_in(viewer)
    for name in how_tos():
        page = client.get(f"/help/{name}/")
        assert page.status_code == 200
        body = str(page.context["body"])
        assert "](" not in body and "```" not in body
        for address in set(re.findall(r'href="([^"#]+)', body)):
            assert client.get(address).status_code == 200, (name, address)
    assert client.get("/help/nothing/").status_code == 404


def test_the_longest_beginning_names_the_how_to_of_a_page() -> None:
    assert set(HELP) <= set(how_tos())
    assert help_of("scenario-what-if") == "ask-what-if" != help_of("scenario")


def test_what_a_page_holds_is_escaped() -> None:
    table = "| a | b |\n| --- | --- |\n| 1 | [y](z) |"
    text = f"# A <b>\n\n- `<i>` and *x*, [`p` **q**](r) `[s](t)`\n\n{table}\n\n```sh\na < b\n```\n"
    html = str(html_of(text, lambda target: f"/{target}/"))
    assert "<b>" not in html and "<i>" not in html
    for part in (
        "&lt;i&gt;",
        "<em>x</em>",
        "<code>[s](t)</code>",
        '<a href="/r/"><code>p</code> <strong>q</strong></a>',
        '<a href="/z/">y</a>',
        "a &lt; b",
        "<td>1</td>",
    ):
        assert part in html
