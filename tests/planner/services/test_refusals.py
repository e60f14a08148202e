"""What is refused is counted, and who runs into a limit is recorded."""

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from planner.errors import EXPECTED, HTTP_STATUS, TooManyAttempts, VersionConflict, status_of
from planner.models import Scenario, User
from planner.services.login_limits import NAME_ATTEMPTS
from planner.services.refused_requests import MAX_RECORDS, limits_reached, record_limit_reached
from planner.services.second_factor import factor_begin, factor_confirm, factor_end
from planner.services.tokens import token_create
from planner.services.workspaces import installation_admin
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of

WRONG = {"username": "pia", "password": "guess"}


@pytest.fixture(autouse=True)
def emptied() -> None:
    cache.clear()


def test_every_expected_error_has_one_status_for_pages_and_api() -> None:
    assert HTTP_STATUS.keys() >= set(EXPECTED)
    assert status_of(VersionConflict("")) == 412 and status_of(TooManyAttempts(9)) == 429


def sentences(user: User) -> list[str]:
    return [limit.sentence for limit in limits_reached(user)]


def metric(line: str, key: str) -> int:
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {key}"})
    return int(answer.content.decode().partition(f"{line} ")[2].partition("\n")[0])


def test_guessing_at_a_name_is_shown_once_to_its_owner_and_to_admins(
    planner: User, viewer: User, admin: User
) -> None:
    for _ in range(NAME_ATTEMPTS + 3):
        Client().post("/login/", WRONG, REMOTE_ADDR="192.0.2.7")
    (sentence,) = sentences(planner)
    assert "pia" in sentence and "192.0.2.7" in sentence
    assert sentences(admin) == [sentence] and sentences(viewer) == []
    assert sentence in text_of(signed_in(planner).get("/account/sessions/"))
    installation_admin(person=viewer, on=True)
    assert sentences(viewer) == [sentence] and sentences(admin) == []  # who looks after it all


def test_the_limit_of_a_person_is_shown_too(planner: User, settings: Any) -> None:
    settings.HEADROOM_API_REQUESTS = 2
    api = client_of(planner)
    answers = [api.get("/api/v1/me/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 0 < int(answers[2]["Retry-After"]) <= 60
    assert len(sentences(planner)) == 1


def test_thousands_of_names_do_not_bury_anybody(admin: User) -> None:
    assert sum(record_limit_reached("x", key=str(n)) for n in range(30)) == MAX_RECORDS
    assert len(sentences(admin)) == MAX_RECORDS


def test_refusals_and_deeds_are_counted(
    planner: User, viewer: User, scenario: Scenario, admin: User, monkeypatch: Any
) -> None:
    monkeypatch.setattr("planner.services.second_factor._accept_code", lambda row, code: True)
    installation_admin(person=admin, on=True)
    key = token_create(user=admin).key
    client = signed_in(viewer)
    client.post(f"/scenarios/{scenario.pk}/delete/")
    client.get("/runs/77/")
    client.get("/runs/78/")
    Client().get("/api/v1/runs/")
    assert metric('headroom_refused_total{status="403",who="person"}', key) == 1
    assert metric('headroom_refused_total{status="404",who="person"}', key) == 2
    assert metric('headroom_refused_total{status="401",who="stranger"}', key) == 1
    factor_begin(user=planner)
    factor_confirm(user=planner, code="1")
    factor_end(user=planner, code="1")
    Client().post("/login/", WRONG)
    for event, count in (("second-factor-ended", 1), ("sign-in-refused", 1), ("token-made", 1)):
        assert metric(f'headroom_security_events_total{{event="{event}"}}', key) == count
    # The figures of the whole installation are for those who look after it.
    other = {"Authorization": f"Bearer {token_create(user=planner).key}"}
    assert b"headroom_refused_total" not in Client().get("/metrics", headers=other).content
