"""A second factor: the algorithm by its published values, and how it is begun, asked for, lost."""

import pyotp
import pytest
from django.test import Client

from planner.errors import NotAllowed, PlannerError
from planner.models import SecondFactor, User, Workspace
from planner.models.workspace import MAIN
from planner.services import second_factor as factors
from planner.services.login_limits import WINDOW_S
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of

START = 1_111_111_109  # s, of the second row of RFC 6238's appendix B


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [float(START)]
    monkeypatch.setattr("planner.services.second_factor.time.time", lambda *_: now[0])
    return now


def code_at(key: str, seconds: float) -> str:
    return pyotp.TOTP(key).at(int(seconds))


@pytest.fixture
def enrolled(planner: User, clock: list[float]) -> tuple[User, str, list[str]]:
    key = factors.factor_begin(user=planner).key
    codes = factors.factor_confirm(user=planner, code=code_at(key, clock[0]))
    clock[0] += WINDOW_S
    return planner, key, codes


@pytest.mark.parametrize(
    ("seconds", "code"), [(59, "287082"), (START, "081804"), (20_000_000_000, "353130")]
)
def test_codes_are_those_of_rfc_6238(seconds: int, code: str) -> None:
    assert code_at("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ", seconds) == code


def test_a_code_works_once_within_a_step_of_its_time(enrolled, clock) -> None:
    user, key, _ = enrolled
    for ago in (90, -90):
        with pytest.raises(NotAllowed, match="Wrong code"):
            factors.factor_check(user=user, code=code_at(key, clock[0] - ago))
    late = code_at(key, clock[0] - 30)
    factors.factor_check(user=user, code=f"{late[:3]} {late[3:]}")
    with pytest.raises(NotAllowed):
        factors.factor_check(user=user, code=late)
    factors.factor_check(user=user, code=code_at(key, clock[0]))
    with pytest.raises(NotAllowed):  # what is earlier than one that was taken
        factors.factor_check(user=user, code=late)


def test_recovery_codes_work_once_each_and_nothing_is_kept_in_the_clear(enrolled) -> None:
    user, key, codes = enrolled
    assert len(set(codes)) == factors.RECOVERY_CODES
    row = SecondFactor.objects.get(user=user)
    assert key not in row.encrypted_key and not set(codes) & set(row.recovery)
    factors.factor_check(user=user, code=codes[0])
    with pytest.raises(NotAllowed):
        factors.factor_check(user=user, code=codes[0])
    assert len(SecondFactor.objects.get(user=user).recovery) == factors.RECOVERY_CODES - 1


def test_codes_cannot_be_guessed(enrolled, clock) -> None:
    user, key, _ = enrolled
    for _ in range(factors.MAX_WRONG):
        with pytest.raises(NotAllowed):
            factors.factor_check(user=user, code="000000")
    with pytest.raises(NotAllowed, match="Too many wrong codes"):
        factors.factor_check(user=user, code=code_at(key, clock[0]))
    clock[0] += WINDOW_S
    factors.factor_check(user=user, code=code_at(key, clock[0]))


def test_a_key_counts_once_a_code_of_it_was_given(planner: User, clock) -> None:
    first = factors.factor_begin(user=planner).key
    second = factors.factor_begin(user=planner).key
    assert factors.factor_of(planner) is None
    with pytest.raises(PlannerError, match="not the current code"):
        factors.factor_confirm(user=planner, code=code_at(first, clock[0]))
    factors.factor_confirm(user=planner, code=code_at(second, clock[0]))
    assert factors.factor_of(planner) is not None


def test_a_sign_in_asks_for_the_code_before_anything_is_shown(enrolled, clock) -> None:
    user, key, codes = enrolled
    client = Client()
    half = client.post("/login/?next=/runs/", {"username": "pia", "password": "pia-secret"})
    assert half["Location"] == "/login/code/"
    assert client.get("/runs/").status_code == 302  # to the login: nobody is signed in
    assert client.post("/login/code/", {"code": "000000"}).status_code == 403
    into = client.post("/login/code/", {"code": code_at(key, clock[0])})
    assert into["Location"] == "/runs/" and client.get("/runs/").status_code == 200
    assert Client().get("/login/code/")["Location"] == "/login/"
    page = text_of(client.get("/account/second-factor/"))
    assert "10 recovery codes left" in page
    # Whose password changes meanwhile begins anew.
    again = Client()
    again.post("/login/", {"username": "pia", "password": "pia-secret"})
    user.set_password("another-secret")
    user.save()
    assert again.post("/login/code/", {"code": codes[0]})["Location"] == "/login/"


def test_a_log_in_of_the_api_takes_the_code(enrolled, clock) -> None:
    _, key, _ = enrolled
    who = {"username": "pia", "password": "pia-secret"}
    stranger = client_of(None)
    refused = stranger.post("/api/v1/token/", who, format="json")
    assert (refused.status_code, "second factor" in refused.json()["detail"]) == (401, True)
    answer = stranger.post("/api/v1/token/", who | {"code": code_at(key, clock[0])}, format="json")
    assert answer.status_code == 200


def test_where_it_is_asked_of_everybody_nothing_else_goes_on_without(planner, admin, clock) -> None:
    api, page, boss = client_of(planner), signed_in(planner), client_of(admin)
    rule = {"second_factor": True}
    assert api.patch(f"/api/v1/workspaces/{MAIN}/", rule, format="json").status_code == 403
    assert boss.patch(f"/api/v1/workspaces/{MAIN}/", rule, format="json").status_code == 200
    assert api.get("/api/v1/runs/").status_code == 403
    assert page.get("/runs/")["Location"] == "/account/second-factor/"
    assert api.get("/api/v1/me/second-factor/").json()["needed"]
    assert api.post("/api/v1/me/second-factor/").status_code == 403  # a token alone sets up none
    password_of = {"password": "pia-secret"}
    begun = api.post("/api/v1/me/second-factor/", password_of, format="json").json()
    assert "data:image/svg" in page.get("/account/second-factor/").content.decode()
    code = {"code": code_at(begun["key"], clock[0])}
    recovery = api.put("/api/v1/me/second-factor/", code, format="json").json()["recovery"]
    assert api.get("/api/v1/runs/").status_code == 200
    assert page.get("/runs/").status_code == 200
    # Who lost theirs is let in again by an admin, and sets up another.
    Workspace.objects.update(second_factor=False)
    lost = boss.patch("/api/v1/users/pia/", {"second_factor": False}, format="json")
    assert (lost.status_code, lost.json()["second_factor"]) == (200, False)
    ended = {"code": recovery[0], "on": False}
    assert api.put("/api/v1/me/second-factor/", ended, format="json").status_code == 409
