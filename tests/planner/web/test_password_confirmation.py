"""The password is asked for again before what weighs most of an account is changed."""

import time
from typing import Any

import pytest
from django.test import Client

from planner.models import ApiToken, AttemptWindow, SecondFactor, User
from planner.services.passwords import FRESH_S, MAX_WRONG, VERIFIED_KEY
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of

TOKEN = {"name": "nightly", "scope": "read", "days": 5}


@pytest.fixture
def mails(settings: Any, planner: User) -> User:
    """An installation that sends mail, and somebody with a mailbox."""
    settings.HEADROOM_SMTP = "smtp://localhost"
    settings.HEADROOM_URL = "https://headroom.example"
    User.objects.update(email="pia@example.com")
    planner.refresh_from_db()
    return planner


def old(client: Client) -> Client:
    """Whose sign-in is some time ago."""
    session = client.session
    session[VERIFIED_KEY] = time.time() - FRESH_S - 1
    session.save()
    return client


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        ("/account/token/", TOKEN),
        ("/account/second-factor/", {"deed": "begin"}),
        ("/notices/mailbox/", {"email": "thief@example.net"}),
    ],
)
def test_a_browser_left_open_changes_nothing_of_the_account(mails: User, page, sent) -> None:
    client = old(signed_in(mails))

    def nothing() -> bool:
        mails.refresh_from_db()
        made = ApiToken.everywhere.exists() or SecondFactor.objects.exists()
        return not made and mails.email == "pia@example.com"

    asked = client.post(page, sent)
    assert "password once more" in text_of(asked) and nothing()
    assert 'name="again"' in asked.content.decode()
    for _ in range(MAX_WRONG):
        assert client.post(page, sent | {"again": "wrong"}).status_code == 403
    locked = client.post(page, sent | {"again": "pia-secret"})
    assert "Too many wrong passwords" in text_of(locked) and nothing()
    AttemptWindow.objects.all().delete()
    assert client.post(page, sent | {"again": "pia-secret"}).status_code < 400 and not nothing()
    assert 'name="again"' not in client.get("/account/token/").content.decode()


def test_a_token_makes_no_token(planner: User) -> None:
    api = client_of(planner)
    for address in ("/api/v1/me/tokens/", "/api/v1/token/", "/account/token/"):
        api.post(address, TOKEN, format="json")
    assert ApiToken.everywhere.count() == 1  # its own
