"""Every body that the API takes as JSON, from its own document: whatever is sent, no error of the
program comes of it, and whoever is refused is told why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.test import APIClient

from bench.bodies import Choices, api_of, send
from planner.api.serializers.options import REQUESTS, SOLVERS, ReadingRequest
from planner.api.serializers.runs import ExportQuery
from planner.inputs.ingest.formats import OFFERED
from planner.models.workspace import current_workspace
from planner.outputs.files import FORMATS
from simulation.performance.specs import KINDS

REFUSED = {400, 401, 403, 404, 409, 412, 413, 415, 422, 429}


@pytest.fixture
def api(admin, tmp_path, data_dir):
    client = APIClient(raise_request_exception=False)
    client.force_login(admin)
    return client, api_of(admin, tmp_path)


def checked(client, action, body):
    answer = send(client, action, body)
    if answer.status_code >= 400:
        problem = answer.json()
        assert answer.status_code in REFUSED, (action.name, body, problem)
        assert len(problem["detail"].split()) > 2, (action.name, body, problem)
    return answer.status_code


def test_a_body_as_the_document_says_is_no_error_of_the_program(api):
    client, known = api
    assert current_workspace() and len(known.actions) > 50
    taken = 0
    for action in known.actions:
        for number in range(len(action.examples) + 1):
            status = checked(client, action, known.body(action, Choices(bytes([number]))))
            taken += status < 400
    assert taken > 40  # else what is changed below would be refused for something else


def test_a_refusal_does_not_repeat_thousands_of_characters(api):
    client, _ = api
    body = {"name": "x", "kind": "a" * 30_000}
    (fault,) = [
        fault
        for fault in client.post("/api/v1/gpus/", body, format="json").json()["errors"]
        if fault["field"] == "kind"
    ]
    assert len(fault["message"]) < 500 and fault["message"].endswith(f"{', '.join(KINDS)}.")


@pytest.mark.parametrize(
    ("serializer", "field", "choices"),
    [
        (REQUESTS["plan"], "solver", SOLVERS),
        (ExportQuery, "to", FORMATS),
        (ReadingRequest, "missing", OFFERED["missing"].choices),
    ],
)
def test_an_unknown_choice_is_refused_with_the_choices(serializer, field, choices):
    asked = serializer(data={field: "a {brace}"})
    assert not asked.is_valid()
    (message,) = asked.errors[field]
    assert "a {brace}" in message and all(name in message for name in choices)


@given(st.binary(max_size=48))
def test_no_body_is_an_error_of_the_program(api, data):
    client, known = api
    choices = Choices(data)
    action = known.action(choices)
    checked(client, action, known.body(action, choices))
