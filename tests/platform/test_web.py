"""What every response carries, and what is refused at the door."""

from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from planner.config.health import WAITS_S
from planner.config.public_addresses import MAX_BODY_BYTES_SIGNED_OUT
from planner.models import ApiToken, Run, Session, User
from planner.services.client_address import client_address, client_network
from planner.services.tokens import token_create
from planner.version import VERSION
from tests.platform.conftest import manage


@pytest.mark.django_db
def test_pages_tell_the_browser_what_to_refuse(client: Client) -> None:
    page = client.get("/login/")
    assert page.status_code == 200
    policy = dict(part.split(" ", 1) for part in page["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["script-src"] == "'self'"
    assert policy["object-src"] == policy["frame-ancestors"] == "'none'"
    assert page["X-Frame-Options"] == "DENY"
    assert page["X-Content-Type-Options"] == "nosniff"
    assert page["Referrer-Policy"] == "same-origin"


@pytest.mark.django_db
def test_health_needs_no_login(client: Client) -> None:
    answer = client.get("/health/")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        "database": "ok",
        "work": "ok",
        "version": VERSION,
    }
    assert "no-store" in answer["Cache-Control"]
    assert client.post("/health/").status_code == 405


def test_pages_load_without_what_only_runs_need(embedded: dict[str, str]) -> None:
    """Half of a start went into scipy's parts before anybody had asked for a forecast."""
    heavy = ["scipy.stats", "scipy.signal", "scipy.optimize", "scipy.special", "statsmodels"]
    heavy += ["reportlab", "xlsxwriter", "jsonschema"]
    script = f"import planner.config.wsgi, sys; print([n for n in {heavy} if n in sys.modules])"
    done = manage(embedded, "shell", "--no-imports", "--command", script)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_scheduler_and_an_idle_worker_load_no_solver_and_no_simulator(
    embedded: dict[str, str],
) -> None:
    """Each imported all that any task ever needs, which took three seconds."""
    heavy = ["numba", "polars", "scipy", "planner.services.runs", "planner.services.worker"]
    script = (
        "from planner.config.celery import app; import sys; app.loader.import_default_modules(); "
        f"print(len(app.tasks) > 10, [name for name in {heavy} if name in sys.modules])"
    )
    done = manage(embedded, "shell", "--no-imports", "--command", script)
    assert done.stdout.strip() == "True []", done.stderr


@pytest.mark.django_db
def test_a_process_that_lives_and_one_that_can_serve_say_so(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "version": VERSION}
    assert client.get("/readyz").json()["status"] == "ok"


@pytest.mark.django_db
def test_health_sees_runs_that_nobody_takes(client: Client) -> None:
    """Its word was "ok" while every worker hung and messages piled up."""
    long_ago = timezone.now() - timedelta(seconds=WAITS_S + 1)
    waiting = Run.objects.create(kind=Run.Kind.PLAN, enqueued_at=long_ago)
    answer = client.get("/health/")
    assert (answer.status_code, answer.json()["status"]) == (503, "stalled")
    assert client.get("/readyz").status_code == 200  # pages are still worth sending people to

    going = Run.objects.create(
        kind=Run.Kind.PLAN, state=Run.State.RUNNING, heartbeat_at=timezone.now()
    )
    assert client.get("/health/").status_code == 200  # waiting its turn
    Run.objects.filter(pk=going.pk).update(heartbeat_at=long_ago)
    Run.objects.filter(pk=waiting.pk).delete()
    assert client.get("/health/").status_code == 503  # nobody takes it up
    Run.objects.filter(pk=going.pk).update(state=Run.State.COMPLETED)
    assert client.get("/health/").status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login/", "/api/v1/token/"])
def test_a_full_disk_is_told_wherever_it_is_met(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Also before a view is asked, as where a session is kept."""
    client.raise_request_exception = False

    def full(*_: object, **__: object) -> None:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(
        "django.contrib.sessions.middleware.SessionMiddleware.process_request", full
    )
    answer = client.get(path)
    assert answer.status_code == 507
    assert "to free space" in answer.content.decode()


NOBODY_THERE = """
from django.conf import settings
from django.test import Client
plain = "django.contrib.staticfiles.storage.StaticFilesStorage"  # collectstatic was not called
settings.STORAGES["staticfiles"]["BACKEND"] = plain
client = Client(SERVER_NAME="localhost", raise_request_exception=False)
print(client.get("/health/").status_code)
client.cookies[settings.SESSION_COOKIE_NAME] = "a" * 32
page = client.get("/")
said = "The database of this installation does not answer" in page.content.decode()
print(page.status_code, said)
client.cookies.clear()  # a session is looked up before anything else
api = client.get("/api/v1/runs/", headers={"Authorization": "Bearer abc"})
print(api.status_code, api.json()["detail"])
asked = client.post("/api/v1/token/", {"username": "a", "password": "b"}, "application/json")
print(asked.status_code, asked.json()["detail"])
"""


def test_without_its_servers_everything_is_503_and_a_sentence(embedded: dict[str, str]) -> None:
    nobody_there = embedded | {
        "DATABASE_URL": "postgresql://127.0.0.1:1/none?connect_timeout=2",
        "REDIS_URL": "redis://127.0.0.1:1/0",
    }
    done = manage(nobody_there, "shell", "--no-imports", "--command", NOBODY_THERE)
    health, page, api, token = done.stdout.strip().splitlines()
    assert (health, page) == ("503", "503 True"), done.stderr
    sentence = "of this installation does not answer. Saved data is not lost"
    assert api.startswith("503 The ") and sentence in api
    assert token.startswith("503 The ") and sentence in token


@pytest.mark.django_db
@pytest.mark.parametrize("length", ["1001", "9" * 20])
def test_a_body_above_the_limit_is_refused_unread(
    client: Client, settings: Any, length: str
) -> None:
    client.force_login(User.objects.create_user("ann", role="planner"))
    settings.HEADROOM_MAX_UPLOAD_BYTES = 1000
    headers = {"CONTENT_LENGTH": length}
    page = client.post("/traces/upload/", **headers)
    assert page.status_code == 413
    assert "the limit is 1,000" in page.content.decode()
    problem = client.post("/api/v1/ingest/", **headers)
    assert problem.status_code == 413
    assert problem["Content-Type"] == "application/problem+json"
    assert problem.json()["status"] == 413
    assert "the limit is 1,000" in problem.json()["detail"]


@pytest.mark.django_db
def test_a_body_at_the_limit_passes_the_door(client: Client, settings: Any) -> None:
    settings.HEADROOM_MAX_UPLOAD_BYTES = 1000
    answer = client.post("/login/", b"x" * 1000, content_type="application/octet-stream")
    assert answer.status_code != 413


class Unreadable(BytesIO):
    """A body that must not be looked at."""

    def read(self, size: int | None = -1) -> bytes:
        raise AssertionError("the body was read")


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login/", "/traces/upload/", "/api/v1/docs/", "/nowhere/"])
def test_a_stranger_cannot_send_a_large_body(path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.get("/login/")  # gives the CSRF cookie, without which no body would be read
    for credentials in ({}, {"HTTP_AUTHORIZATION": "Token 123"}):
        answer = client.generic(
            "POST", path, **_unread(MAX_BODY_BYTES_SIGNED_OUT + 1), **credentials
        )
        assert answer.status_code == (413 if path == "/login/" else 401)


@pytest.mark.django_db
def test_a_small_body_of_a_stranger_is_read_by_public_addresses_alone(client: Client) -> None:
    page = client.generic("POST", "/traces/upload/", **_unread(100))
    assert page.status_code == 302 and page["Location"] == "/login/?next=/traces/upload/"
    script = client.generic("POST", "/traces/upload/", HTTP_HX_REQUEST="true", **_unread(100))
    assert script.status_code == 204 and script["HX-Refresh"] == "true"
    api = client.generic("POST", "/api/v1/plan/", **_unread(100))
    assert api.status_code == 401 and api["WWW-Authenticate"] == "Token"
    assert client.post("/login/", {"username": "a", "password": "b"}).status_code == 200


@pytest.mark.django_db
def test_a_body_without_a_length_is_refused_unread(client: Client) -> None:
    client.force_login(User.objects.create_user("ann", role="planner"))
    body = _unread(0) | {"HTTP_TRANSFER_ENCODING": "chunked"}
    for path in ("/login/", "/traces/upload/", "/api/v1/ingest/"):
        assert client.generic("POST", path, **body).status_code == 411


@pytest.mark.django_db
def test_who_may_send_a_body_is_known_by_a_session_or_a_token_that_is_valid() -> None:
    ann = User.objects.create_user("ann", role="planner")
    key = token_create(user=ann).key
    with_token = {"HTTP_AUTHORIZATION": f"Token {key}"}

    def is_read(client: Client, **headers: str) -> bool:
        answer = client.post("/api/v1/plan/", b"{", content_type="application/json", **headers)
        return answer.status_code == 400  # it is no JSON

    browser = Client()
    browser.force_login(ann)
    assert is_read(browser) and is_read(Client(), **with_token)
    ApiToken.everywhere.update(expires_at=timezone.now())
    assert is_read(browser) and not is_read(Client(), **with_token)
    Session.objects.update(expire_date=timezone.now())
    assert not is_read(browser)
    browser.force_login(ann)
    assert is_read(browser)
    User.objects.update(is_active=False)
    assert not is_read(browser)


def _unread(length: int) -> dict[str, Any]:
    return {
        "CONTENT_LENGTH": str(length),
        "CONTENT_TYPE": "multipart/form-data; boundary=x",
        "wsgi.input": Unreadable(),
    }


def test_a_client_is_known_by_what_the_proxy_says_last(rf: Any, settings: Any) -> None:
    forwarded = {"HTTP_X_FORWARDED_FOR": "10.0.0.1, 203.0.113.9", "REMOTE_ADDR": "192.0.2.7"}
    assert client_address(rf.get("/", **forwarded)) == "192.0.2.7"
    settings.HTTPS = True
    assert client_address(rf.get("/", **forwarded)) == "203.0.113.9"
    assert client_address(rf.get("/", REMOTE_ADDR="192.0.2.7")) == "192.0.2.7"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("unix:", "unix:"),
    ],
)
def test_limits_count_a_network_of_ipv6_as_one(rf: Any, address: str, network: str) -> None:
    assert client_network(rf.get("/", REMOTE_ADDR=address)) == network
