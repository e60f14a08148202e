"""Signing in by an identity provider, against one that answers over HTTP and signs with RSA."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from joserfc import jwt
from joserfc.jwk import RSAKey

from planner.errors import NotAllowed
from planner.models import ExternalIdentity, User, Workspace
from planner.models.workspace import MAIN, workspace_of
from planner.services import oidc
from planner.services.identity_provider_settings import Grant, IdentityProvider, identity_provider
from tests.local_http import Handler
from tests.planner.web.pages import text_of

SECRET = "s3cret:with/signs"


class Provider(ThreadingHTTPServer):
    """The smallest of its kind: whoever comes is ``self.subject``, with ``self.claims``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.issuer = f"http://127.0.0.1:{self.server_address[1]}"
        self.key = self.other = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
        self.claims: dict[str, Any] = {"sub": "s-1", "preferred_username": "olga"}
        self.groups: list[str] | None = ["planners"]
        self.forged: dict[str, Any] = {}
        self.asked: dict[str, dict[str, str]] = {}  # by code
        self.seen: list[str] = []

    def authorize(self, url: str) -> str:
        """What a browser is redirected to after its person signed in there."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = f"code-{len(self.asked)}"
        self.asked[code] = query
        return urlencode({"code": code, "state": query["state"], "iss": self.issuer})

    def id_token(self, query: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": query["client_id"], "nonce": query["nonce"], "iat": now,
            "exp": now + 300, **self.claims, **self.forged,
        }  # fmt: skip
        return jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.key)


class _Answers(Handler):
    server: Provider

    def do_GET(self) -> None:
        idp = self.server
        idp.seen.append(self.path)
        if self.path == "/.well-known/openid-configuration":
            ends = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
            return self._say({"issuer": idp.issuer, **{e: f"{idp.issuer}/{e}" for e in ends}})
        if self.path == "/jwks_uri":
            return self._say({"keys": [idp.other.as_dict(private=False)]})
        if self.path == "/userinfo_endpoint" and self.headers["Authorization"] == "Bearer at":
            return self._say({"sub": idp.claims["sub"], "groups": idp.groups})
        return self._say({}, 404)

    def do_POST(self) -> None:
        idp = self.server
        sent = {name: values[0] for name, values in parse_qs(self.body().decode()).items()}
        query = idp.asked.pop(sent["code"], None)  # once
        basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        verifier = hashlib.sha256(sent["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        if (
            query is None
            or basic != f"headroom:{SECRET}"
            or query["code_challenge"] != challenge
            or sent["redirect_uri"] != query["redirect_uri"]
        ):
            return self._say({"error": "invalid_grant"}, 400)
        return self._say({"access_token": "at", "id_token": idp.id_token(query)})

    def _say(self, content: dict[str, Any], status: int = 200) -> None:
        self.answer(status, json.dumps(content).encode())


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    provider = Provider()
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    yield provider
    provider.shutdown()
    provider.server_close()


@pytest.fixture
def idp(db: None, running: Provider, settings: Any) -> Provider:
    cache.clear()
    running.__dict__.update(
        claims={"sub": "s-1", "preferred_username": "olga"}, groups=["planners"], forged={}
    )
    running.key = running.other
    workspace_of(MAIN)  # gone where a test before this one emptied the database
    grants = (Grant("planners", "main", "planner"), Grant("chiefs", "main", "approver"),
              Grant("searchers", "search", "viewer"))  # fmt: skip
    settings.HEADROOM_OIDC = IdentityProvider(
        running.issuer, "headroom", SECRET, grants, "groups", ("127.0.0.0/8",), "Acme", False
    )
    Workspace.objects.create(name="Search", slug="search")
    return running


def signed_in_by(idp: Provider, client: Client) -> Any:
    """As a browser goes: to the provider and back."""
    away = client.get("/login/provider/?next=/runs/")
    assert away["Location"].startswith(f"{idp.issuer}/authorization_endpoint?")
    return client.get(f"/login/provider/back/?{idp.authorize(away['Location'])}")


def test_who_comes_from_the_provider_has_the_roles_of_their_groups_at_each_sign_in(idp) -> None:
    idp.groups = ["planners", "chiefs", "others"]
    client = Client()
    assert signed_in_by(idp, client)["Location"] == "/runs/"
    assert client.get("/runs/").status_code == 200
    olga = User.objects.get(username="olga")
    assert {held_role.workspace.slug: held_role.role for held_role in olga.membership_list} == {
        "main": "approver"
    }
    assert not olga.has_usable_password()
    idp.groups = ["searchers"]
    idp.claims["preferred_username"] = "olga.new"  # a name may change, the subject stays
    signed_in_by(idp, Client())
    olga.refresh_from_db()
    assert {held_role.workspace.slug: held_role.role for held_role in olga.membership_list} == {
        "search": "viewer"
    }
    assert (User.objects.count(), ExternalIdentity.objects.count()) == (1, 1)


def test_who_is_in_no_group_does_not_enter_and_no_account_is_taken_over(idp, planner) -> None:
    idp.groups = ["others"]
    page = signed_in_by(idp, Client())
    assert (page.status_code, "None of your groups" in text_of(page)) == (403, True)
    idp.groups, idp.claims = ["planners"], {"sub": "s-2", "preferred_username": "PIA"}
    page = signed_in_by(idp, Client())
    assert (page.status_code, "with a password" in text_of(page)) == (403, True)
    assert not ExternalIdentity.objects.exists()
    oidc.identity_link(person=planner, subject="s-2")
    assert signed_in_by(idp, Client())["Location"] == "/runs/"
    planner.is_active = False
    planner.save()
    assert "disabled" in text_of(signed_in_by(idp, Client()))


@pytest.mark.parametrize(
    "forged",
    [
        {"nonce": "another"},
        {"aud": "another"},
        {"aud": ["headroom", "another"], "azp": "another"},
        {"iss": "http://127.0.0.1:1"},
        {"exp": 1},
        {"iat": 10**11},
        {"sub": None},
    ],
)
def test_a_token_for_another_sign_in_is_refused(idp: Provider, forged: dict[str, Any]) -> None:
    idp.forged = forged
    page = signed_in_by(idp, Client())
    assert (page.status_code, "is not valid" in text_of(page)) == (400, True)
    assert not User.objects.exists()


def test_a_token_signed_by_another_key_is_refused_and_a_changed_key_is_found(idp) -> None:
    idp.key = RSAKey.generate_key(2048, {"kid": "1"})
    page = signed_in_by(idp, Client())
    assert (page.status_code, "is not valid" in text_of(page)) == (400, True)
    idp.other = idp.key  # published at last
    assert signed_in_by(idp, Client())["Location"] == "/runs/"


def test_an_answer_counts_once_and_for_the_browser_that_asked(idp) -> None:
    client = Client()
    away = client.get("/login/provider/")
    back = f"/login/provider/back/?{idp.authorize(away['Location'])}"
    assert Client().get(back).status_code == 403  # of another browser
    assert client.get(back.replace("state=", "state=x")).status_code == 403
    assert client.get(back).status_code == 403  # whoever forged one answer ended the sign-in
    away = client.get("/login/provider/?next=https://evil.example/")
    back = f"/login/provider/back/?{idp.authorize(away['Location'])}"
    assert client.get(back)["Location"] == "/"
    assert Client().get(back).status_code == 403


def test_only_listed_hosts_are_asked(idp: Provider, settings: Any) -> None:
    settings.HEADROOM_OIDC = settings.HEADROOM_OIDC._replace(hosts=())
    page = Client().get("/login/provider/")
    assert "HEADROOM_OIDC_HOSTS" in text_of(page) and page.status_code == 400


def test_it_is_off_unless_it_is_configured_whole(db, settings: Any, monkeypatch) -> None:
    settings.HEADROOM_OIDC = None
    assert Client().get("/login/provider/").status_code == 404
    assert identity_provider() is None
    monkeypatch.setenv("HEADROOM_OIDC_ISSUER", "https://idp.example/")
    with pytest.raises(ImproperlyConfigured, match="HEADROOM_OIDC_CLIENT_ID is not"):
        identity_provider()
    for name in ("CLIENT_ID", "CLIENT_SECRET", "GROUPS"):
        monkeypatch.setenv(f"HEADROOM_OIDC_{name}", "x")
    with pytest.raises(ImproperlyConfigured, match="GROUP=WORKSPACE:ROLE"):
        identity_provider()
    monkeypatch.setenv("HEADROOM_OIDC_GROUPS", "a=b=main:admin, c=main:viewer")
    provider = identity_provider()
    assert provider and provider.grants[0] == Grant("a=b", "main", "admin")
    monkeypatch.setenv("HEADROOM_OIDC_ISSUER", "http://idp.example")
    with pytest.raises(ImproperlyConfigured, match="https"):
        identity_provider()


def test_a_second_factor_of_ones_own_is_asked_for_unless_the_provider_asks(idp, settings) -> None:
    Workspace.objects.update(second_factor=True)
    client = Client()
    signed_in_by(idp, client)
    assert client.get("/runs/")["Location"] == "/account/second-factor/"
    settings.HEADROOM_OIDC = settings.HEADROOM_OIDC._replace(second_factor=True)
    assert client.get("/runs/").status_code == 200


def test_nobody_else_is_linked_to_a_subject(idp, planner, viewer) -> None:
    oidc.identity_link(person=planner, subject="s-9")
    oidc.identity_link(person=planner, subject="s-9")
    with pytest.raises(NotAllowed, match="pia"):
        oidc.identity_link(person=viewer, subject="s-9")


def test_who_has_no_password_is_asked_by_the_provider_once_more(idp: Provider) -> None:
    """Before a token is made; that the provider let in whom it knew already is not enough."""
    client, token = Client(), {"name": "x", "scope": "read", "days": 5}
    signed_in_by(idp, client)
    assert client.post("/account/token/", token).status_code == 403
    for age, status in ((3600, 403), (0, 200)):
        idp.claims["auth_time"] = int(time.time()) - age
        away = client.get("/login/provider/?next=/account/token/")["Location"]
        assert "prompt=login" in away and "max_age=0" in away
        client.get(f"/login/provider/back/?{idp.authorize(away)}")
        assert client.post("/account/token/", token).status_code == status
