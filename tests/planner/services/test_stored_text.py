"""Characters that no database stores are refused with one sentence, on either database."""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from planner.errors import MalformedInput
from planner.files.stored_text import REPLACEMENT, storable, unstorable_character
from planner.models import AuditRecord, Run, Scenario
from planner.services.audit import record
from planner.services.worker import run_execute
from tests.planner.samples import DOCUMENT, client_of
from tests.unicode_blocks import ALPHABET

CHARACTERS = ("\x00", "\ud800", "\udfff")


def test_only_what_no_database_stores_is_found() -> None:
    assert unstorable_character({ALPHABET: [ALPHABET, 1, None, {"a": 0.5}]}) is None
    for character in CHARACTERS:
        name = f"U+{ord(character):04X}"
        text = f"a{character}b"
        for value in (text, [1, text], {text: 1}, {"a": [{"b": text}]}):
            assert unstorable_character(value) == name
            assert unstorable_character(storable(value)) is None
        assert storable({text: [text]}) == {f"a{REPLACEMENT}b": [f"a{REPLACEMENT}b"]}


@pytest.mark.parametrize("character", CHARACTERS)
def test_a_row_with_one_is_not_written(db: None, character: str) -> None:
    for fields in ({"name": character}, {"options": {"a": [character]}}, {"log": f"a{character}"}):
        with pytest.raises(
            MalformedInput, match=f"^{next(iter(fields))}: .*U\\+{ord(character):04X}"
        ):
            Run.objects.create(kind="plan", **fields)
    run = Run.objects.create(kind="plan", name=ALPHABET[:120])
    run.log = character
    with pytest.raises(MalformedInput, match="log"):
        run.save()
    run.save(update_fields=["state"])


def test_the_audit_log_records_what_a_stranger_types(db: None) -> None:
    for character in CHARACTERS:
        assert record("user.refused", f"a{character}b", by=None).key == f"a{REPLACEMENT}b"
    assert AuditRecord.objects.count() == len(CHARACTERS)


@pytest.mark.parametrize("name", ['"a\\0b"', '"a\\ud800b"'])  # YAML knows such escapes
def test_a_scenario_with_one_is_refused(planner, name: str) -> None:
    document = DOCUMENT.replace("name: Chat", f"name: {name}")
    answer = client_of(planner).post("/api/v1/scenarios/", {"document": document}, format="json")
    assert answer.status_code in (400, 422), answer.content
    assert not Scenario.objects.exists()


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud800"])
@pytest.mark.parametrize(
    "body", ['{"username": "a%s", "password": "x"}', '{"a%s": 1}', '{"a": [{"b": "c%s"}]}']
)
def test_a_body_with_one_is_refused_at_every_address(planner, body: str, escape: str) -> None:
    for path in ("token", "scenarios", "sources", "schedules"):
        answer = client_of(planner).post(
            f"/api/v1/{path}/", body % escape, content_type="application/json"
        )
        assert answer.status_code == 400, (path, answer.content)
        assert f"U+{escape[2:].upper()}" in answer.json()["detail"]


def test_a_file_whose_names_hold_one_is_refused(planner) -> None:
    row = {"timestamp": "2024-05-10T00:00:00Z", "input_tokens": 1, "output_tokens": 2}
    lines = [json.dumps(row | {"model": "a\x00b"}), json.dumps(row | {"model": "a\x00b"})]
    file = SimpleUploadedFile("t.jsonl", "\n".join(lines).encode())
    assert client_of(planner).post("/api/v1/traces/", {"file": file}).status_code == 202
    run = run_execute(run_id=Run.objects.get().pk)
    assert run.state == Run.State.FAILED and "U+0000" in run.problem
