"""Check the running site as a new user would: log in, and open the results of the demo."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urljoin

from planner.config.supervisor import Stopped

WORKER_WITHIN_S = 120.0
DEMO_WITHIN_S = 1800.0  # enough for a busy machine; a run that ends early is reported at once
OVER = ("failed", "errored", "cancelled")  # states in which the demo's run has no results


class Page(HTMLParser):
    """A page; ``elements`` has the attributes of each of its elements, in order."""

    def __init__(self, url: str, text: str) -> None:
        super().__init__()
        self.url = url
        self.elements: list[dict[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append({name: value or "" for name, value in attrs})

    def first(self, **attributes: str | None) -> dict[str, str] | None:
        """Return the first element with these attributes, or None.

        A value of None matches any. ``_`` in a name stands for ``-``.
        """
        wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
        for element in self.elements:
            if all(
                name in element and value in (None, element[name]) for name, value in wanted.items()
            ):
                return element
        return None


class Visitor:
    """A minimal browser: it keeps cookies and follows redirects."""

    def __init__(self) -> None:
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)

    def get(self, url: str, fields: dict[str, str] | None = None) -> Page:
        """Return the page at ``url``, or the one after POSTing ``fields`` to it.

        Raises Stopped if the site refuses.
        """
        final_url, text = self.read(url, fields)
        return Page(final_url, text)

    def read(self, url: str, fields: dict[str, str] | None = None) -> tuple[str, str]:
        """Return the address after redirects and the text there; see ``get``."""
        data = urlencode(fields).encode() if fields else None
        request = urllib.request.Request(url, data=data, headers={"Referer": url})  # noqa: S310 - own site
        try:
            with self._opener.open(request, timeout=60) as response:
                return response.url, response.read().decode("utf-8", "replace")
        except (urllib.error.URLError, TimeoutError, ConnectionError) as problem:
            raise Stopped(f"Check: {url} did not answer well: {problem}.") from None


def page_check(url: str, *, say: Callable[[str], None]) -> None:
    """Check that the login page has its form, styles and scripts; raise Stopped if not.

    ``say`` prints a sentence.
    """
    visitor = Visitor()
    login = _login_page(visitor, url)
    linked = [
        element.get("src") or element["href"]
        for element in login.elements
        if "src" in element or element.get("rel") == "stylesheet"
    ]
    for file in linked:
        visitor.read(urljoin(login.url, file))
    say(f"the login page and its {len(linked)} files answer")


def worker_check(
    ready: Path, *, still_alive: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Wait until a worker has created the file ``ready``; raise Stopped if none does."""
    deadline = time.monotonic() + WORKER_WITHIN_S
    while not ready.exists():
        if time.monotonic() > deadline:
            raise Stopped(f"Check: no worker was ready after {WORKER_WITHIN_S:.0f} s.")
        still_alive()
        time.sleep(0.1)
    say("a worker is ready")


def _login_page(visitor: Visitor, url: str) -> Page:
    """Return the page with the login form; raise Stopped if the site shows none."""
    login = visitor.get(f"{url}/")
    if login.first(name="csrfmiddlewaretoken") is None or login.first(name="password") is None:
        raise Stopped(f"Check: {login.url} shows no login form.")
    return login


def _log_in(visitor: Visitor, url: str, user: str, password: str) -> Page:
    """Log in, and return the home page; raise Stopped if the site refuses."""
    login = _login_page(visitor, url)
    token = login.first(name="csrfmiddlewaretoken")
    assert token is not None
    fields = {"username": user, "password": password, "next": "/"}
    home = visitor.get(login.url, fields | {"csrfmiddlewaretoken": token["value"]})
    if home.first(name="password") is not None:
        raise Stopped("Check: the site refused the demo login.")
    return home


def demo_check(
    url: str,
    *,
    user: str,
    password: str,
    still_alive: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Check the login and the results of the demo; raise Stopped if one of them is missing.

    While this waits for the demo's run, it calls ``still_alive``, which may raise Stopped.
    """
    visitor = Visitor()
    home = _log_in(visitor, url, user, password)
    say("the demo login works")

    deadline = time.monotonic() + DEMO_WITHIN_S
    while (state := (home.first(data_demo_run=None) or {}).get("data-demo-run")) != "completed":
        if state is None or state in OVER:
            raise Stopped(f"Check: the home page shows the demo's run as {state or 'missing'}.")
        if time.monotonic() > deadline:
            raise Stopped(f"Check: the demo's run was still {state} after {DEMO_WITHIN_S:.0f} s.")
        still_alive()
        time.sleep(3.0)  # each poll renders the home page
        home = visitor.get(f"{url}/")
    say("the demo's run is completed")

    link = home.first(data_demo_results=None)
    if link is None or not link.get("href"):
        raise Stopped("Check: the home page has no link to the demo's results.")
    results = visitor.get(urljoin(home.url, link["href"]))
    if results.first(id="over-time-1") is None:
        raise Stopped(f"Check: {results.url} shows no chart of recommended replicas.")
    say(f"{results.url} shows the recommended replicas")
