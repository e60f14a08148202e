"""People who use the pages, and what every browser test needs of the site."""

from typing import Any

import pytest
from django.conf import settings

from planner.models import User
from tests.planner.web.pages import signed_in

PASSWORD = "a long enough secret"


@pytest.fixture
def planner(transactional_db: None) -> User:
    return User.objects.create_user("pia", password=PASSWORD, role=User.Role.PLANNER)


def sign_in(context: Any, live_server: Any, person: User) -> None:
    """Give a browser's window the cookie of somebody who has signed in."""
    cookie = signed_in(person).cookies[settings.SESSION_COOKIE_NAME]
    context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])


@pytest.fixture
def site(page: Any, live_server: Any, planner: User) -> Any:
    """The home page of the running site, signed in as the planner."""
    sign_in(page.context, live_server, planner)
    page.goto(f"{live_server.url}/")
    page.get_by_role("heading", name="Fleet").wait_for()
    return page
