"""What every response carries, and what is refused at the door."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

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
    assert answer.json() == {"status": "ok", "database": "ok", "version": VERSION}
    assert "no-store" in answer["Cache-Control"]
    assert client.post("/health/").status_code == 405


def test_health_without_a_database_is_503(embedded: dict[str, str]) -> None:
    nobody_there = embedded | {"DATABASE_URL": "postgresql://127.0.0.1:1/none?connect_timeout=2"}
    script = (
        "from django.test import Client; "
        "print(Client(SERVER_NAME='localhost').get('/health/').status_code)"
    )
    done = manage(nobody_there, "shell", "--no-imports", "--command", script)
    assert done.stdout.strip() == "503", done.stderr


@pytest.mark.parametrize("length", ["1001", "9" * 20])
def test_a_body_above_the_limit_is_refused_unread(
    client: Client, settings: Any, length: str
) -> None:
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
