"""People who use the pages, and what every browser test needs of the site."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started

from planner.models import User
from tests.conftest import WAITS_S
from tests.planner.web.pages import signed_in

PASSWORD = "a long enough secret"


@pytest.fixture(autouse=True)
def answered() -> Iterator[Callable[[], None]]:
    """Wait, as every browser test does at its end, until the site has answered all requests.

    The server goes on with a request that the browser has left, and would look for its rows in
    the database of the next test.
    """
    changed = threading.Condition()
    open_requests = 0

    def count(step: int) -> None:
        nonlocal open_requests
        with changed:
            open_requests += step
            changed.notify_all()

    def started(**_: Any) -> None:
        count(1)

    def finished(**_: Any) -> None:
        count(-1)

    def wait() -> None:
        with changed:
            assert changed.wait_for(lambda: open_requests == 0, WAITS_S)

    # Only the requests of browsers: Django's test client sends the signals as another sender.
    request_started.connect(started, sender=WSGIHandler)
    request_finished.connect(finished, sender=WSGIHandler)
    yield wait
    wait()
    request_started.disconnect(started, sender=WSGIHandler)
    request_finished.disconnect(finished, sender=WSGIHandler)


@pytest.fixture
def planner(transactional_db: None) -> User:
    return User.objects.create_user("pia", password=PASSWORD, role=User.Role.PLANNER)


def sign_in(context: Any, live_server: Any, person: User) -> None:
    """Give a browser's window the cookie of somebody who has signed in."""
    cookie = signed_in(person).cookies[settings.SESSION_COOKIE_NAME]
    context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])


def as_somebody(site: Any, live_server: Any, name: str) -> Any:
    """A second browser, signed in by its cookie."""
    person = User.objects.create_user(name, password=PASSWORD, role=User.Role.ADMIN)
    context = site.context.browser.new_context()
    sign_in(context, live_server, person)
    return context.new_page()


@pytest.fixture
def site(page: Any, live_server: Any, planner: User) -> Any:
    """The home page of the running site, signed in as the planner."""
    sign_in(page.context, live_server, planner)
    page.goto(f"{live_server.url}/")
    page.get_by_role("heading", name="Fleet").wait_for()
    return page
