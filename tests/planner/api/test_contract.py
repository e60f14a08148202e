"""The API answers as its OpenAPI document says: schemathesis asks what the document allows, about
things that there are, and holds status, media type, headers and body of each answer against it.

``HEADROOM_CONTRACT_EXAMPLES`` sets how many requests of each operation; few by default, since there
are 200 of them. What a request did is undone.
"""

import logging
import os
import re
from functools import partial
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from planner.models import User
from planner.services.tokens import token_create
from tests.planner.api.test_schema import schema as schema  # the fixture
from tests.planner.test_permissions import Objects, made

EXAMPLES = int(os.environ.get("HEADROOM_CONTRACT_EXAMPLES", "1"))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
GENERATED = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_every_answer_is_one_that_the_document_knows(
    schema: dict[str, Any],
    db: None,
    admin: User,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    logging.disable()  # of every refusal
    request.addfinalizer(lambda: logging.disable(logging.NOTSET))
    for signal in (request_started, request_finished):  # which end the test's transaction
        signal.disconnect(close_old_connections)
        request.addfinalizer(partial(signal.connect, close_old_connections))
    monkeypatch.setattr(
        "rest_framework.throttling.SimpleRateThrottle.allow_request", lambda *_: True
    )
    contract = schemathesis.openapi.from_dict(schema)
    contract.app = get_wsgi_application()
    objects = made(admin, "own")
    token = token_create(user=admin).key
    headers = {"Authorization": f"Token {token}", "Accept-Encoding": "identity"}
    breaches: list[str] = []
    asked = 0
    for result in contract.get_all_operations():

        @seed(7)
        @GENERATED
        @given(case=result.ok().as_strategy(), real=st.integers(0, 3))
        def ask(case: Any, real: int) -> None:
            nonlocal asked
            asked += 1
            if real:
                _about_what_there_is(case, objects)
            with transaction.atomic():
                answer = case.call(headers=headers)
                transaction.set_rollback(True)
            # The result of the sample is not whole; those of real runs are held elsewhere.
            sample = case.path.endswith("/results/")
            try:
                case.validate_response(answer, checks=CHECKS[: -1 if sample else None])
            except (FailureGroup, Failure) as error:  # of each operation all that is wrong
                asked_for = case.as_curl_command()[:400]
                breaches.append(f"{asked_for}\n{answer.status_code} {_said(error)}")

        ask()
    assert asked >= EXAMPLES * 140
    assert not breaches, f"{len(breaches)}\n" + "\n\n".join(breaches)


def _about_what_there_is(case: Any, objects: Objects) -> None:
    names = re.findall(r"{(\w+)}", case.path)
    if names:
        case.path_parameters = objects.arguments(case.path.removeprefix("/api/v1/"), names)


def _said(error: BaseException) -> str:
    return "\n".join(str(part)[:600] for part in getattr(error, "exceptions", [error]))
