"""People hear of what changes about how they sign in, and are asked for their password first."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from planner.models import AccountNotice, ApiToken, KnownBrowser, SecondFactor, User
from planner.services import account_notices, second_factor
from planner.services.people import invitation
from planner.services.proving import FRESH_S, PROVED, WRONG
from planner.services.tokens import token_make
from planner.whence import browser_of, network_of
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of

FORM = "application/x-www-form-urlencoded"
TOKEN = {"name": "nightly", "scope": "read", "days": 5}


@pytest.fixture
def mails(settings: Any, planner: User) -> User:
    """An installation that sends mail, and somebody with a mailbox."""
    settings.HEADROOM_SMTP = "smtp://localhost"
    settings.HEADROOM_URL = "https://headroom.example"
    User.objects.update(email="pia@example.com")
    planner.refresh_from_db()
    return planner


def told(user: User) -> list[str]:
    return [notice.text for notice in account_notices.notices_of(user)][::-1]


def old(client: Client) -> Client:
    """Whose sign-in is some time ago."""
    session = client.session
    session[PROVED] = time.time() - FRESH_S - 1
    session.save()
    return client


def test_each_change_is_told(planner: User, admin: User, monkeypatch: Any) -> None:
    monkeypatch.setattr(second_factor, "_takes", lambda row, code: code == "right")
    client = signed_in(planner)
    new = "a longer phrase 7"
    client.post(
        "/account/password/",
        {"old_password": "pia-secret", "new_password1": new, "new_password2": new},
    )
    second_factor.factor_begin(user=planner)
    codes = second_factor.factor_confirm(user=planner, code="right")
    second_factor.factor_check(user=planner, code=codes[0])
    second_factor.factor_reset(by=admin, person=planner)
    client.post("/account/token/", TOKEN)
    token_make(user=planner)  # a log-in
    invitation(by=admin, person=planner)
    assert told(planner) == [
        "Your password was changed.",
        "A second factor was set up.",
        "A recovery code was used; 9 are left.",
        "Your second factor was ended by ada.",
        "The API token nightly was made; it works for 5 days.",
        "An address to choose another password of yours was made by ada.",
    ]
    assert "6 new" in text_of(client.get("/glossary/"))
    assert "Your second factor was ended by ada. new" in text_of(client.get("/account/sessions/"))
    assert User.objects.get(pk=planner.pk).account_news == 0
    assert "6 new" not in text_of(client.get("/glossary/"))


def test_a_sign_in_from_elsewhere_is_told_once(planner: User) -> None:
    who = {"username": "pia", "password": "pia-secret"}

    def signs_in(address: str, agent: str, page: str = "/login/") -> None:
        sent = json.dumps(who) if page.startswith("/api") else urlencode(who)
        kind = "application/json" if page.startswith("/api") else FORM
        Client().post(page, sent, kind, REMOTE_ADDR=address, HTTP_USER_AGENT=agent)

    cache.clear()
    signs_in("192.0.2.7", "Firefox/140.0 Linux")
    signs_in("192.0.2.200", "Firefox/141.0 Linux")  # a neighbour, and a later version
    assert told(planner) == []
    signs_in("198.51.100.1", "Firefox/141.0 Linux")
    signs_in("192.0.2.7", "curl/8.0", "/api/v1/token/")
    signs_in("192.0.2.9", "curl/8.1", "/api/v1/token/")
    assert told(planner) == [
        "You signed in by Firefox on Linux at 198.51.100.1, where you had not before.",
        "You signed in by curl at 192.0.2.7, where you had not before.",
    ]


def test_what_a_browser_and_a_network_are_called(rf: Any) -> None:
    safari = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1"
    assert browser_of(rf.get("/", HTTP_USER_AGENT=safari)) == "Safari on iOS"
    assert browser_of(rf.get("/", HTTP_USER_AGENT="<b>")) == "An unknown browser"
    assert network_of("2001:db8:1:2::3") == "2001:db8:1::/48"
    assert network_of("unix:") == "unix:"


def test_mail_goes_out_once_and_a_new_mailbox_is_told_to_the_old_one(mails: User) -> None:
    client = signed_in(mails)
    client.post("/notices/mailbox/", {"email": "thief@example.net"})
    now = timezone.now()
    assert account_notices.account_mails_send(now=now) == 2
    assert account_notices.account_mails_send(now=now) == 0
    assert sorted(message.to[0] for message in mail.outbox) == [
        "pia@example.com",
        "thief@example.net",
    ]
    assert "it was pia@example.com" in mail.outbox[0].body
    assert "https://headroom.example/account/sessions/" in mail.outbox[0].body


def test_a_mail_that_does_not_go_out_is_tried_again_for_a_day(mails: User, monkeypatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError("The mail server is away.")

    account_notices.tell(mails, "Your password was changed.")
    now = timezone.now()
    with monkeypatch.context() as broken:
        broken.setattr(account_notices.EmailMessage, "send", away)
        assert account_notices.account_mails_send(now=now) == 0
    assert account_notices.account_mails_send(now=now) == 0  # not yet again
    assert account_notices.account_mails_send(now=now + account_notices.AGAIN) == 1
    account_notices.tell(mails, "Your password was changed.")
    later = timezone.now() + account_notices.GIVEN_UP + timedelta(minutes=1)
    with monkeypatch.context() as broken:
        broken.setattr(account_notices.EmailMessage, "send", away)
        account_notices.account_mails_send(now=later)
    assert not AccountNotice.objects.exclude(mail_due=None).exists()


def test_nothing_is_sent_unless_it_is_set_and_old_notices_go(planner: User) -> None:
    User.objects.update(email="pia@example.com")
    planner.refresh_from_db()
    client = signed_in(planner)
    client.get("/glossary/")
    assert account_notices.tell(planner, "x").mail_due is None
    now = timezone.now()
    assert account_notices.account_mails_send(now=now) == 0 and mail.outbox == []
    account_notices.account_mails_send(now=now + account_notices.FORGOTTEN + timedelta(days=1))
    assert not AccountNotice.objects.exists() and not KnownBrowser.objects.exists()


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        ("/account/token/", TOKEN),
        ("/account/second-factor/", {"deed": "begin"}),
        ("/notices/mailbox/", {"email": "thief@example.net"}),
    ],
)
def test_a_browser_left_open_changes_nothing_of_the_account(mails: User, page, sent) -> None:
    cache.clear()
    client = old(signed_in(mails))

    def nothing() -> bool:
        mails.refresh_from_db()
        made = ApiToken.everywhere.exists() or SecondFactor.objects.exists()
        return not made and mails.email == "pia@example.com"

    asked = client.post(page, sent)
    assert "password once more" in text_of(asked) and nothing()
    assert 'name="again"' in asked.content.decode()
    for _ in range(WRONG):
        assert client.post(page, sent | {"again": "wrong"}).status_code == 400
    locked = client.post(page, sent | {"again": "pia-secret"})
    assert "Too many wrong passwords" in text_of(locked) and nothing()
    cache.clear()
    assert client.post(page, sent | {"again": "pia-secret"}).status_code < 400 and not nothing()
    assert 'name="again"' not in client.get("/account/token/").content.decode()


def test_a_token_makes_no_token(planner: User) -> None:
    api = client_of(planner)
    for address in ("/api/v1/me/tokens/", "/api/v1/token/", "/account/token/"):
        api.post(address, TOKEN, format="json")
    assert ApiToken.everywhere.count() == 1  # its own
