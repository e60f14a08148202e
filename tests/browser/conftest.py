"""People who use the pages, and what every browser test needs of the site."""

from typing import Any

import pytest

from planner.models import User

PASSWORD = "a long enough secret"


@pytest.fixture
def planner(transactional_db: None) -> User:
    return User.objects.create_user("pia", password=PASSWORD, role=User.Role.PLANNER)


@pytest.fixture
def site(page: Any, live_server: Any, planner: User) -> Any:
    """A page on the running site, signed in through the form as the planner."""
    page.goto(f"{live_server.url}/")
    page.get_by_label("User name").fill(planner.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Fleet").wait_for()
    return page
