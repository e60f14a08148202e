"""Who may see and change what, and what people read when something is refused."""

import json
import re
from typing import Any

import pytest
from django.core import signing
from django.test import Client
from django.urls import reverse

from planner.models import AttemptWindow, Scenario, Trace, User
from planner.services.login_limits import KNOWN_COOKIE, NAME_ATTEMPTS, WINDOW_S
from planner.web.urls import urlpatterns
from tests.at_once import at_once
from tests.planner.objects import made
from tests.planner.test_permissions import addresses as all_addresses
from tests.planner.web.pages import forms_with_token_in_address, signed_in, text_of

LOGIN, TOKEN = "/login/", "/api/v1/token/"
RIGHT = {"username": "pia", "password": "pia-secret"}
WRONG = RIGHT | {"password": "wrong"}


def by_api(fields: dict[str, str], **headers: str) -> int:
    body = json.dumps(fields)
    return Client().post(TOKEN, body, "application/json", **headers).status_code


def signs_in(client: Client, fields: dict[str, str], **headers: str) -> bool:
    return client.post(LOGIN, fields, **headers).status_code == 302


def test_form_and_api_share_the_limit_of_a_name(planner: User, viewer: User) -> None:
    for number in range(NAME_ATTEMPTS // 2):
        address = f"10.0.0.{number}"
        assert not signs_in(Client(), WRONG, REMOTE_ADDR=address)
        assert by_api(WRONG, REMOTE_ADDR=address) == 401
    refused = Client().post(LOGIN, RIGHT)
    assert refused.status_code == 200
    assert re.search(r"Try again in \d+ seconds", text_of(refused))  # the delay
    limited = Client().post(TOKEN, json.dumps(RIGHT), "application/json")
    assert limited.status_code == 429 and int(limited["Retry-After"]) > 0
    assert by_api(RIGHT | {"username": " PIA "}) == 429
    assert signs_in(Client(), {"username": "vera", "password": "vera-secret"})
    for window in AttemptWindow.objects.all():
        window.moments = [moment - WINDOW_S for moment in window.moments]
        window.save()
    assert signs_in(Client(), RIGHT)  # after the delay


def test_form_and_api_share_the_limit_of_a_network(planner: User, monkeypatch: Any) -> None:
    monkeypatch.setattr("planner.services.login_limits.NETWORK_ATTEMPTS", 6)
    for number in range(3):
        guess = {"username": f"name-{number}", "password": "Spring-2026"}
        forged = {
            "HTTP_X_FORWARDED_FOR": f"10.0.0.{number}",
            "HTTP_FORWARDED": f"for=1.1.1.{number}",
        }
        assert not signs_in(Client(), guess, **forged)
        assert by_api(guess, **forged) == 401
    assert by_api(RIGHT, HTTP_X_FORWARDED_FOR="10.0.0.99") == 429
    assert not signs_in(Client(), RIGHT, HTTP_X_FORWARDED_FOR="10.0.0.99")
    assert signs_in(Client(), RIGHT, REMOTE_ADDR="192.0.2.7")


def test_a_right_password_is_not_counted(planner: User) -> None:
    for _ in range(NAME_ATTEMPTS + 2):
        assert by_api(RIGHT) == 200


def test_the_owner_of_a_locked_name_signs_in_from_a_known_browser(
    planner: User, viewer: User, monkeypatch: Any
) -> None:
    monkeypatch.setattr("planner.services.login_limits.KNOWN_ATTEMPTS", 2)
    monkeypatch.setattr("planner.services.login_limits.NETWORK_ATTEMPTS", 20)
    known, other = Client(), Client()
    assert signs_in(known, RIGHT)
    assert signs_in(other, {"username": "vera", "password": "vera-secret"})
    for client in (known, other):
        client.post("/logout/")
    for number in range(20):  # both limits
        by_api(WRONG if number < NAME_ATTEMPTS else {"username": str(number), "password": "x"})
    assert not signs_in(other, RIGHT)  # knows somebody else
    assert signs_in(known, RIGHT)
    known.post("/logout/")
    for _ in range(2):
        signs_in(known, WRONG)
    assert not signs_in(known, RIGHT)  # has a limit too
    forged = Client()
    forged.cookies[KNOWN_COOKIE] = signing.dumps(str(planner.pk), salt="another")
    assert not signs_in(forged, RIGHT)


@pytest.mark.django_db(transaction=True)
def test_parallel_guesses_do_not_pass_the_limit_together() -> None:
    User.objects.create_user("pia", password="pia-secret", role="planner")
    many = 2 * NAME_ATTEMPTS
    answers = at_once(many, lambda _: by_api(WRONG))
    assert sorted(answers) == [401] * NAME_ATTEMPTS + [429] * (many - NAME_ATTEMPTS)


def test_viewers_are_offered_no_changes(viewer: User, scenario: Scenario, trace: Trace) -> None:
    client = signed_in(viewer)
    for address in (reverse("web:scenario", args=[scenario.pk]), reverse("web:scenarios"), "/"):
        response = client.get(address)
        page = text_of(response)
        assert "Save" not in page
        assert reverse("web:scenario-run", args=[scenario.pk]) not in response.content.decode()
        assert "New scenario" not in page
        assert "Add a row" not in page and "Remove this row" not in page


@pytest.mark.parametrize("address", ["/runs/77/", "/scenarios/77/", "/traces/none/", "/nowhere/"])
def test_what_is_not_there_is_a_page_of_ours(planner: User, address: str) -> None:
    answer = signed_in(planner).get(address)
    assert answer.status_code == 404
    assert f'href="{reverse("web:home")}"' in answer.content.decode()


def test_the_token_page_makes_a_token_that_the_api_takes(planner: User) -> None:
    client = signed_in(planner)
    page = reverse("web:token")
    assert client.get(page).status_code == 200
    assert client.post(page, {"name": "", "scope": "all", "days": 5000}).status_code == 400
    made = text_of(client.post(page, {"name": "nightly", "scope": "read", "days": 30}))
    key = made.partition("Authorization: Token ")[2].split()[0]
    asked = {"HTTP_AUTHORIZATION": f"Token {key}"}
    assert Client().get("/api/v1/me/", **asked).status_code == 200
    again = text_of(client.get(page))
    assert "nightly" in again and key not in again
    client.post(page, {"end": planner.api_tokens.get().pk})
    assert Client().get("/api/v1/me/", **asked).status_code == 401


def test_no_page_runs_a_script_of_its_own_or_puts_its_token_into_an_address(admin: User) -> None:
    """The policy allows only script files: nothing inline, no event attributes."""
    client, pages = signed_in(admin), 0
    home = made(admin, "own")
    for address in all_addresses(urlpatterns, "web", home, home):
        answer = client.get(address.mine, follow=True)
        if answer.status_code == 200 and answer["Content-Type"].startswith("text/html"):
            html = answer.content.decode()
            assert forms_with_token_in_address(answer) == [], address.mine
            assert "script-src 'self'" in answer["Content-Security-Policy"]
            assert "unsafe-inline" not in answer["Content-Security-Policy"]
            assert not re.search(r"<style| style=| on\w+=\"|javascript:", html), address.mine
            for head in re.findall(r"<script([^>]*)>", html):
                assert "src=" in head or 'type="application/json"' in head, address.mine
            pages += 1
    assert pages > 40


def test_scripts_of_a_page_left_open_are_told_to_load_it_again(db: None) -> None:
    polled = Client().get("/activity/", headers={"HX-Request": "true"})
    assert polled.status_code == 204 and polled["HX-Refresh"] == "true"
    sent = Client().post("/traces/upload/", headers={"Accept": "application/json"})
    assert sent.status_code == 401 and sent.json()["detail"]


def test_the_log_says_who_was_refused_what_and_from_where(viewer, reader, scenario, caplog) -> None:
    caplog.set_level("INFO", "planner.web.refused_requests")
    page = reverse("web:scenario-delete", args=[scenario.pk])
    assert signed_in(viewer).post(page, REMOTE_ADDR="192.0.2.7").status_code == 403
    assert reader.delete(f"/api/v1/scenarios/{scenario.pk}/").status_code == 403
    Client().get("/nowhere/a%0Arefused")
    assert [
        record.getMessage() for record in caplog.records if "refused_requests" in record.name
    ] == [
        f"refused with 403: POST '{page}' by 'vera' from 192.0.2.7",
        f"refused with 403: DELETE '/api/v1/scenarios/{scenario.pk}/' by 'vera' from 127.0.0.1",
        "refused with 404: GET '/nowhere/a\\nrefused' by 'nobody' from 127.0.0.1",
    ]
