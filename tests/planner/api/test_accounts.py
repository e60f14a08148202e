"""Logging in over the API, and who one is."""

import pytest
from django.core.cache import cache
from django.utils import timezone
from rest_framework.test import APIClient

from planner.errors import PlannerError
from planner.models import ApiToken
from planner.services.tokens import MAX_TOKENS, token_create, token_of

TOKEN = "/api/v1/token/"
ME = "/api/v1/me/"


@pytest.fixture(autouse=True)
def _no_logins_counted_yet():
    cache.clear()


def test_a_name_and_a_password_give_a_token_that_works(stranger, planner, settings):
    answer = stranger.post(TOKEN, {"username": "pia", "password": "pia-secret"}, format="json")
    assert answer.status_code == 200
    stranger.credentials(HTTP_AUTHORIZATION=f"Token {answer.json()['token']}")
    assert stranger.get(ME).json() == {
        "id": planner.pk,
        "username": "pia",
        "role": "planner",
        "may_plan": True,
        "limits": {
            "kept_bytes": 0,
            "most_kept_bytes": settings.HEADROOM_MAX_PERSON_BYTES,
            "waiting_runs": 0,
            "most_waiting_runs": settings.HEADROOM_MAX_WAITING_RUNS,
        },
    }


def test_a_form_and_an_outdated_token_in_the_header_do_not_hinder_a_login(stranger, planner):
    stranger.credentials(HTTP_AUTHORIZATION="Token outdated")
    answer = stranger.post(
        TOKEN,
        "username=pia&password=pia-secret",
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.status_code == 200
    again = stranger.post(TOKEN, {"username": "pia", "password": "pia-secret"}, format="json")
    assert again.json()["token"] != answer.json()["token"]  # which is not kept to be given again


@pytest.mark.parametrize(
    ("username", "password"), [("pia", "guess"), ("nobody", "pia-secret"), ("pia", " pia-secret")]
)
def test_a_wrong_name_or_password_is_told_alike(stranger, planner, username, password):
    answer = stranger.post(TOKEN, {"username": username, "password": password}, format="json")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Token"
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["detail"] == "The user name or the password is wrong."


@pytest.mark.parametrize(
    "body",
    [{}, {"username": "pia"}, {"username": "pia", "password": "x", "pin": 1}, [], "pia", None],
)
def test_a_malformed_login_names_its_faults(stranger, db, body):
    answer = stranger.post(TOKEN, body, format="json")
    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_a_viewer_sees_that_they_only_read(reader):
    assert reader.get(ME).json()["may_plan"] is False


def test_a_token_that_is_taken_back_no_longer_works(api, planner):
    assert api.delete("/api/v1/me/token/").status_code == 204
    assert not planner.api_tokens.exists()
    assert api.get(ME).status_code == 401


def test_a_browser_session_needs_the_csrf_token_to_write(planner, scenario):
    browser = APIClient(enforce_csrf_checks=True)
    browser.login(username="pia", password="pia-secret")
    assert browser.get(ME).status_code == 200
    refused = browser.delete(f"/api/v1/scenarios/{scenario.pk}/")
    assert refused.status_code == 403
    assert "CSRF" in refused.json()["detail"]


def test_the_database_holds_no_token(planner):
    made = token_create(user=planner)
    assert made.key not in str(ApiToken.objects.values())
    assert token_of(made.key) == made.token


def test_a_token_for_reading_changes_nothing(stranger, planner):
    key = token_create(user=planner, scope="read").key
    stranger.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    assert stranger.get(ME).status_code == 200
    refused = stranger.post("/api/v1/scenarios/", {"document": "x"}, format="json")
    assert refused.status_code == 403


def test_a_token_ends_when_it_was_to(stranger, planner):
    made = token_create(user=planner, days=1)
    stranger.credentials(HTTP_AUTHORIZATION=f"Token {made.key}")
    assert stranger.get(ME).status_code == 200
    ApiToken.objects.filter(pk=made.token.pk).update(expires_at=timezone.now())
    assert "has expired" in stranger.get(ME).json()["detail"]


def test_tokens_are_listed_and_ended_one_by_one(api, planner, colleague):
    other = token_create(user=colleague).token
    token = token_create(user=planner, name="nightly").token
    listed = api.get("/api/v1/me/tokens/").json()
    assert {row["name"] for row in listed} == {"nightly", "log-in"}
    assert api.delete(f"/api/v1/me/tokens/{other.pk}/").status_code == 404
    assert api.delete(f"/api/v1/me/tokens/{token.pk}/").status_code == 204
    assert len(api.get("/api/v1/me/tokens/").json()) == 1


def test_scripts_that_log_in_each_time_do_not_pile_up_tokens(planner):
    first = token_create(user=planner)
    for _ in range(MAX_TOKENS):
        token_create(user=planner)
    assert planner.api_tokens.count() == MAX_TOKENS
    assert token_of(first.key) is None
    with pytest.raises(PlannerError, match="End one first"):
        token_create(user=planner, name="nightly")
