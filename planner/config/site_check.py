"""Check the running site as a new user would: log in, and open the results of the demo."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urljoin

from planner.config.supervisor import Stopped

WORKER_WITHIN_S = 120.0
DEMO_WITHIN_S = 1800.0  # enough for a busy machine; a run that ends early is reported at once
OVER = ("failed", "errored", "cancelled")  # states in which the demo's run has no results
CSRF_TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
LOGIN_FIELD = 'name="password"'
FILE_TAG = re.compile(r'<script[^>]*\ssrc="[^>]*>|<img[^>]*>|<link[^>]*rel="stylesheet"[^>]*>')
FILE = re.compile(r'\s(?:src|href)="([^"]+)"')
DEMO_RUN = re.compile(r'data-demo-run="(?P<state>[^"]*)"\s+data-demo-results="(?P<results>[^"]*)"')
CHART = 'id="over-time-1"'


class Page(NamedTuple):
    """A page: its address after redirects, and its HTML."""

    url: str
    html: str


class Visitor:
    """A minimal browser: it keeps cookies and follows redirects."""

    def __init__(self) -> None:
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)

    def get(self, url: str, fields: dict[str, str] | None = None) -> Page:
        """Return the page at ``url``, or the one after POSTing ``fields`` to it.

        Raises Stopped if the site refuses.
        """
        data = urlencode(fields).encode() if fields else None
        request = urllib.request.Request(url, data=data, headers={"Referer": url})  # noqa: S310 - own site
        try:
            with self._opener.open(request, timeout=60) as response:
                return Page(response.url, response.read().decode("utf-8", "replace"))
        except (urllib.error.URLError, TimeoutError, ConnectionError) as problem:
            raise Stopped(f"Check: {url} did not answer well: {problem}.") from None


def page_check(url: str, *, say: Callable[[str], None]) -> None:
    """Check that the login page has its form, styles and scripts; raise Stopped if not.

    ``say`` prints a sentence.
    """
    visitor = Visitor()
    login, _ = _login_page(visitor, url)
    linked_files = []
    for tag in FILE_TAG.findall(login.html):
        linked_files += FILE.findall(tag)
    for file in linked_files:
        visitor.get(urljoin(login.url, file))
    say(f"the login page and its {len(linked_files)} files answer")


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


def _login_page(visitor: Visitor, url: str) -> tuple[Page, str]:
    """Return the page with the login form and its CSRF token; raise Stopped if there is none."""
    login = visitor.get(f"{url}/")
    token = CSRF_TOKEN.search(login.html)
    if token is None or LOGIN_FIELD not in login.html:
        raise Stopped(f"Check: {login.url} shows no login form.")
    return login, token[1]


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
    login, csrf_token = _login_page(visitor, url)
    home = visitor.get(
        login.url,
        {"username": user, "password": password, "next": "/", "csrfmiddlewaretoken": csrf_token},
    )
    if LOGIN_FIELD in home.html:
        raise Stopped("Check: the site refused the demo login.")
    say("the demo login works")

    deadline = time.monotonic() + DEMO_WITHIN_S
    demo_run = DEMO_RUN.search(home.html)
    while demo_run is None or demo_run["state"] != "completed":
        state = demo_run["state"] if demo_run else "missing"
        if state in ("missing", *OVER):
            raise Stopped(f"Check: the home page shows the demo's run as {state}.")
        if time.monotonic() > deadline:
            raise Stopped(f"Check: the demo's run was still {state} after {DEMO_WITHIN_S:.0f} s.")
        still_alive()
        time.sleep(3.0)  # each poll renders the home page
        home = visitor.get(f"{url}/")
        demo_run = DEMO_RUN.search(home.html)
    say("the demo's run is completed")

    results = visitor.get(urljoin(home.url, demo_run["results"]))
    if CHART not in results.html:
        raise Stopped(f"Check: {results.url} shows no chart of recommended replicas.")
    say(f"{results.url} shows the recommended replicas")
