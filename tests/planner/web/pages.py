"""Looking at pages as a browser without scripts does."""

import json
import re
from html.parser import HTMLParser
from typing import Any

from django.test import Client

from planner.models import User


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent = tag in ("script", "style", "template")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def text_of(response: Any) -> str:
    """What a reader sees, blanks as one."""
    parser = _Text()
    parser.feed(response.content.decode())
    return re.sub(r"\s+", " ", " ".join(parser.parts))


def json_in(response: Any, element_id: str) -> Any:
    """The data in ``<script type="application/json" id=...>``."""
    html = response.content.decode()
    script = re.search(rf'<script id="{element_id}" type="application/json">(.*?)</script>', html)
    assert script, f"no data {element_id!r} on the page"
    return json.loads(script[1])


class _Fields(HTMLParser):
    """What the first form that holds ``mode`` would send, as a browser without scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._template = 0
        self._area: str | None = None
        self._select: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        attrs = dict(attributes)
        name = attrs.get("name")
        self._template += tag == "template"
        if self._template:
            return
        if tag == "input" and name:
            kind = attrs.get("type")
            if kind not in ("checkbox", "radio") or "checked" in attrs:
                self.values.setdefault(name, []).append(attrs.get("value") or "")
        elif tag == "textarea" and name:
            self._area = name
            self.values[name] = [""]
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in attrs:
            self.values[self._select] = [attrs.get("value") or ""]

    def handle_endtag(self, tag: str) -> None:
        self._template -= tag == "template"
        if tag == "textarea":
            self._area = None
        elif tag == "select":
            self._select = None

    def handle_data(self, data: str) -> None:
        if self._area:
            self.values[self._area][0] += data


def form_values(response: Any) -> dict[str, Any]:
    """Every field of the page's editor with the value it shows."""
    html = response.content.decode()
    start = html.index("<form", html.index('id="editor"'))
    parser = _Fields()
    parser.feed(html[start : html.index("</form>", start)])
    values = {name: value for name, value in parser.values.items() if name != "csrfmiddlewaretoken"}
    values["document"] = [values["document"][0].removeprefix("\n")]
    return values


class _Forms(HTMLParser):
    """Which forms put the CSRF token into an address."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: list[str] = []
        self._form: dict[str, str | None] = {}
        self._is_sent_by_get = self._has_token = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "form":
            self._form, self._has_token = attributes, False
            method = (attributes.get("method") or "get").lower()
            self._is_sent_by_get = method == "get" or "hx-get" in attributes
        elif self._form:
            self._is_sent_by_get |= attributes.get("formmethod") == "get"
            self._is_sent_by_get |= "hx-get" in attributes and "hx-include" in attributes
            self._has_token |= attributes.get("name") == "csrfmiddlewaretoken"

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            if self._is_sent_by_get and self._has_token:
                self.leaks.append(str(self._form))
            self._form = {}


def forms_with_token_in_address(response: Any) -> list[str]:
    """Return the forms of a page whose address would hold the CSRF token."""
    parser = _Forms()
    parser.feed(response.content.decode())
    return parser.leaks
