"""The OpenAPI document, the page that shows it, and how errors look."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml
from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.urls import get_resolver

from forecasting.errors import ForecastError
from planner import errors
from planner.api.errors import problem_handler
from planner.api.schema import DOCUMENT, Generator
from planner.api.views import docs
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from simulation.errors import SimulationError
from tests.planner.web.pages import signed_in
from tests.single_run import once

HTTP = {"get", "post", "put", "patch", "delete"}


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "schema.json"

    def make():
        strict = ("--validate", "--fail-on-warn", "--format=openapi-json")
        call_command("spectacular", *strict, file=path)
        return json.loads(path.read_text())

    return once("schema", make)


def operations(schema):
    return [
        (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if method in HTTP
    ]


def test_the_schema_is_valid_openapi_3_1(schema):
    assert schema["openapi"].startswith("3.1")


def test_every_address_is_in_the_schema(schema):
    resolver = next(r for r in get_resolver().url_patterns if getattr(r, "namespace", "") == "api")
    routes = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern))
        for pattern in resolver.url_patterns
        if pattern.name not in (None, "docs", "schema")
    }
    assert {path.removeprefix("/api/v1/") for path in schema["paths"]} == routes


def test_every_operation_says_what_it_does_and_how_it_fails(schema):
    for path, method, operation in operations(schema):
        assert operation["summary"], path
        for code, answer in operation["responses"].items():
            if int(code) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (path, method)
        assert "401" in operation["responses"]


def test_every_operation_of_a_workspace_takes_its_header_and_lists_that_grow_a_cursor(schema):
    for path, _, operation in operations(schema):
        header = "Headroom-Workspace" in [p["name"] for p in operation.get("parameters", [])]
        assert header == (path != "/api/v1/token/"), path
    lists = ("audit", "proposals", "runs", "scenarios", "schedules", "sources", "sweeps", "traces")
    for name in lists:
        listing = schema["paths"][f"/api/v1/{name}/"]["get"]
        assert "cursor" in [p["name"] for p in listing["parameters"]], name


def test_what_starts_work_takes_a_key_and_has_an_example(schema):
    trials = "/api/v1/notices/channels/{number}/test/"  # a message is sent, no run begins
    begun = [o for o in operations(schema) if "202" in o[2]["responses"]]
    started = [o for o in begun if o[0] != trials]
    assert len(started) == len(begun) - 1 == 19
    for path, _, operation in started:
        assert "Idempotency-Key" in [p["name"] for p in operation["parameters"]], path
        assert "Location" in operation["responses"]["202"]["headers"]


def test_the_scenario_shown_as_an_example_is_one():
    assert build_hardware(parse(DOCUMENT))


FIRST_REQUESTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import django
django.setup()
from rest_framework.test import APIClient
from planner.models import User

def ask(number):
    client = APIClient()
    client.force_authenticate(User(pk=number, username=str(number)))
    media = "application/json" if number % 2 else "application/vnd.oai.openapi"
    answer = client.get("/api/v1/schema/", HTTP_ACCEPT=media, HTTP_HOST="localhost")
    return f"{answer.status_code} {media} {answer['ETag']}"

with ThreadPoolExecutor(8) as pool:
    print("\\n".join(pool.map(ask, range(8))))
"""


@pytest.mark.django_db  # else it comes after the tests that read what it makes
def test_the_document_is_made_once_however_many_ask_for_it_first(data_dir):
    """Two fresh processes on one data folder, each with eight first requests at once; then this
    one."""
    folder = data_dir / docs.FOLDER
    shutil.rmtree(folder, ignore_errors=True)

    def process():
        environment = {**os.environ, "HEADROOM_DATA_DIR": str(data_dir)}
        environment["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
        return subprocess.Popen(
            [sys.executable, "-c", FIRST_REQUESTS],
            env=environment, stdout=subprocess.PIPE, text=True, cwd=settings.BASE_DIR,
        )  # fmt: skip

    def files():
        return {
            path: (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in folder.rglob("openapi.*")
        }

    first = [each.communicate()[0] for each in (process(), process())]
    answers = [line.split() for output in first for line in output.splitlines()]
    assert [status for status, *_ in answers] == ["200"] * 16
    assert len({(media, tag) for _, media, tag in answers}) == 2
    made = files()
    assert len(made) == 2
    docs.document.cache_clear()
    assert all(docs.document(format) for format in docs.FORMATS)
    assert files() == made


def test_the_schema_and_its_page_are_for_those_who_logged_in(stranger, reader):
    assert stranger.get("/api/v1/schema/").status_code == 401
    assert stranger.get("/api/v1/docs/").status_code == 302
    answer = reader.get("/api/v1/schema/")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("application/vnd.oai.openapi")


def test_another_version_of_the_code_has_a_document_of_its_own(
    reader, data_dir, tmp_path, monkeypatch
):
    def kept(folder):
        docs.document.cache_clear()
        reader.get("/api/v1/schema/")
        return [path.parent.name for path in (folder / docs.FOLDER).rglob("openapi.yaml")]

    first = kept(data_dir)
    shutil.copytree(data_dir / docs.FOLDER, tmp_path / docs.FOLDER)
    monkeypatch.setattr(Generator, "get_schema", lambda *_, **__: {})
    monkeypatch.setattr(settings, "HEADROOM_DATA_DIR", tmp_path)
    monkeypatch.setattr(docs, "code_digest", lambda: "another")
    assert (len(first), kept(tmp_path)) == (1, ["another"])
    docs.document.cache_clear()


def test_the_document_is_the_generators_and_has_an_etag(schema, reader):
    answer = reader.get("/api/v1/schema/", HTTP_ACCEPT="application/vnd.oai.openapi+json")
    assert answer.json() == schema
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: a tenth of the time
    assert yaml.load(reader.get("/api/v1/schema/").content, loader) == schema
    again = reader.get("/api/v1/schema/", HTTP_ACCEPT="application/vnd.oai.openapi+json",
                       HTTP_IF_NONE_MATCH=answer["ETag"])  # fmt: skip
    assert (again.status_code, again.content) == (304, b"")


class Scripts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.inline, self.handlers = [], 0, []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.handlers += [name for name in values if name.startswith("on")]
        if tag == "script" and "src" not in values:
            self.inline += 1
        self.sources += [values[name] for name in ("src", "href") if name in values]


def test_the_docs_page_needs_nothing_from_elsewhere_and_no_inline_script(viewer):
    answer = signed_in(viewer).get("/api/v1/docs/")
    assert answer.status_code == 200
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    page = Scripts()
    page.feed(answer.content.decode())
    assert (page.inline, page.handlers) == (0, [])
    static = [s for s in page.sources if s.startswith(f"/{settings.STATIC_URL.strip('/')}/")]
    assert len(static) >= 4  # of the page itself, and of the product around it
    for source in static:
        assert finders.find(source.removeprefix("/static/")), source
    others = set(page.sources) - set(static)  # the menu's pages, and places of this one
    assert "/api/v1/schema/" in others
    assert all(re.match(r"#|/(?!/)", source) for source in others), others


def test_an_unknown_address_is_a_problem_and_names_the_one_meant(reader, stranger):
    for method in ("get", "post", "delete"):
        answer = getattr(reader, method)("/api/v1/nothing/")
        assert answer.status_code == 404
        assert answer["Content-Type"] == "application/problem+json"
    slash = reader.post("/api/v1/runs", {}, format="json")
    assert slash.status_code == 404
    assert "/api/v1/runs/" in slash.json()["detail"]
    assert "slash" not in reader.get("/api/v1/nothing").json()["detail"]
    assert stranger.get("/api/v1/nothing/").status_code == 404
    with_body = stranger.post("/api/v1/nothing/", {"a": 1}, format="json")
    assert with_body.status_code == 401  # a stranger's body is not read


def test_every_expected_outcome_has_its_status_and_keeps_its_sentence():
    planned = (errors.PlannerError, *errors.PlannerError.__subclasses__())
    for kind in (*planned, ForecastError, SimulationError):
        error = kind("Say what to do.")
        answer = problem_handler(error, {})
        body = json.loads(answer.content)
        assert answer.status_code == body["status"] == errors.status_of(error)
        # Else it is the fault of where things are kept, not the client's.
        assert 400 <= answer.status_code < 500 or answer.status_code in (503, 507)
        assert body["detail"] == str(error) and body["title"]


def test_a_bug_tells_nothing_of_itself_and_is_logged(api, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("a secret of the program")

    monkeypatch.setattr("planner.api.views.runs.run_get", broken)
    answer = api.get("/api/v1/runs/1/")
    assert answer.status_code == 500
    assert answer["Content-Type"] == "application/problem+json"
    assert b"secret" not in answer.content
    assert "a secret of the program" in caplog.text
