"""What is refused is counted, and told where it is refused unusually often."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from planner.models import AccountNotice, Scenario, User
from planner.services import unusual
from planner.services.second_factor import factor_begin, factor_confirm, factor_end
from planner.services.tokens import token_make
from planner.services.workspaces import installation_admin
from planner.web.forms.login import ATTEMPTS
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in

WRONG = {"username": "pia", "password": "guess"}


@pytest.fixture(autouse=True)
def emptied() -> None:
    cache.clear()


def told(user: User) -> list[str]:
    return [notice.text for notice in AccountNotice.objects.filter(user=user)]


def metric(line: str, **headers: str) -> int:
    text = Client().get("/metrics", **headers).content.decode()
    return int(text.partition(f"{line} ")[2].partition("\n")[0])


def test_guessed_names_are_told_once_to_their_owner_and_to_admins(planner, viewer, admin) -> None:
    for _ in range(ATTEMPTS + 3):
        Client().post("/login/", WRONG, REMOTE_ADDR="192.0.2.7")
    sentence = (
        "Sign-ins as pia are refused for a while: 10 wrong passwords within a minute, the last "
        "from 192.0.2.7."
    )
    assert told(planner) == told(admin) == [sentence] and told(viewer) == []
    installation_admin(person=viewer, on=True)
    cache.clear()
    for _ in range(ATTEMPTS + 1):
        Client().post("/login/", WRONG, REMOTE_ADDR="192.0.2.7")
    assert told(viewer) == [sentence] and told(admin) == [sentence]  # who looks after it all


def test_the_api_is_watched_too(planner: User, admin: User, settings: Any) -> None:
    for _ in range(11):
        client_of(None).post("/api/v1/token/", WRONG, format="json")
    assert "as pia are refused" in told(planner)[0]
    settings.HEADROOM_API_REQUESTS = 2
    api = client_of(planner)
    assert [api.get("/api/v1/me/").status_code for _ in range(3)] == [200, 200, 429]
    assert told(admin)[0] == "Requests of pia to the API are refused: more than 2 a minute."


def test_thousands_of_names_do_not_bury_anybody(admin: User) -> None:
    assert sum(unusual.refused_often("x", key=str(n)) for n in range(30)) == unusual.MOST
    assert len(told(admin)) == unusual.MOST


def test_refusals_and_deeds_are_counted(
    planner: User, viewer: User, scenario: Scenario, admin: User, monkeypatch: Any
) -> None:
    monkeypatch.setattr("planner.services.second_factor._takes", lambda row, code: True)
    client = signed_in(viewer)
    client.post(f"/scenarios/{scenario.pk}/delete/")
    client.get("/runs/77/")
    client.get("/runs/78/")
    Client().get("/api/v1/runs/")
    assert metric('headroom_refused_total{status="403",who="person"}') == 1
    assert metric('headroom_refused_total{status="404",who="person"}') == 2
    assert metric('headroom_refused_total{status="401",who="stranger"}') == 1
    factor_begin(user=planner)
    factor_confirm(user=planner, code="1")
    factor_end(user=planner, code="1")
    Client().post("/login/", WRONG)
    key = token_make(user=admin).key
    for event, count in (("second-factor-ended", 1), ("sign-in-refused", 1), ("token-made", 1)):
        assert metric(f'headroom_security_events_total{{event="{event}"}}') == count
    # A token tells of its workspace; of the whole installation only one of who looks after it.
    asked = {"HTTP_AUTHORIZATION": f"Bearer {key}"}
    assert b"headroom_refused_total" not in Client().get("/metrics", **asked).content
    installation_admin(person=admin, on=True)
    assert metric('headroom_refused_total{status="403",who="person"}', **asked) == 1
