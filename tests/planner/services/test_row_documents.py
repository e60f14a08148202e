"""A row written as a line of a backup is the same row again, whatever its text holds."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.files.stored_text import REPLACEMENT
from planner.models import Run
from planner.services.row_documents import (
    RowDigest,
    differences,
    document_of,
    line_of,
    load,
    tables_of_rows,
    tally_of,
)
from planner.services.scratch_database import scratch_database
from tests.planner.full_database import row_of, text_columns
from tests.unicode_blocks import BLOCK_STARTS

NUL, SURROGATE = "\x00", "\ud800"


@pytest.fixture(params=["sqlite", "postgresql"])
def scratch(request: pytest.FixtureRequest, db: None, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind, by its alias."""
    if request.param == "postgresql" and connection.vendor != "postgresql":
        pytest.skip("the tests run on SQLite")
    with scratch_database(tmp_path, sqlite=request.param == "sqlite") as database:
        assert database.vendor == request.param
        yield database.alias


def documents(text: str) -> list[dict[str, Any]]:
    """One row of every table, with the text in every column as far as it takes it."""
    first = {model: [model(pk=1)] for model in tables_of_rows()}  # each refers to the first rows
    return [document_of(row_of(model, 0, text, first)) for model in tables_of_rows()]


def test_every_character_fits_into_one_line_of_ascii() -> None:
    text = "|".join(map(chr, range(sys.maxunicode + 1)))  # surrogates too, none beside another
    document = {"model": "planner.run", "pk": 1, "fields": {"name": text, text: [text]}}
    line = line_of(document)
    assert line.isascii() and line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == document


def test_every_table_and_column_of_text_is_walked() -> None:
    tables = {model.__name__ for model in tables_of_rows()}
    assert {"User", "Run", "Trace", "AuditRecord", "AuditHead", "Membership"} <= tables
    assert "Session" not in tables
    columns = {f"{model.__name__}.{column.name}" for model, column in text_columns()}
    assert {"User.username", "Run.options", "Scenario.document", "AuditRecord.details"} <= columns
    assert len(BLOCK_STARTS) == 320


def check_stored(text: str, scratch: str) -> None:
    """Load a row of every table, and compare what the database returns with what was written."""
    written, tally = documents(text), RowDigest()
    for document in written:
        tally.add(document)
    with transaction.atomic(using=scratch):
        loaded = load(map(line_of, written), using=scratch)
        assert differences(tally.tables(), tally_of(scratch).tables()) == []
        assert (loaded.file_digest.tables(), loaded.stored_digest.tables()) == (
            tally.tables(),
            tally.tables(),
        )
        assert (loaded.left_out, loaded.replaced) == ({}, 0)
        fields = {document["model"]: document["fields"] for document in written}
        for model, column in text_columns():
            (value,) = model._base_manager.using(scratch).values_list(column.attname, flat=True)
            assert value == fields[model._meta.label_lower][column.name], (model, column)
        transaction.set_rollback(True, using=scratch)


# Hypothesis checks its examples in one transaction of the test each; rows are rolled back.
@settings(max_examples=10)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=NUL), min_size=1))
def test_any_text_survives_in_every_column_of_text(scratch: str, text: str) -> None:
    check_stored(text, scratch)


def test_numbers_in_json_are_the_same_numbers(scratch: str) -> None:
    numbers = [1e22, 1e23, -0.0, 5e-324, sys.float_info.max, 2**70, 0.1, 100.0, True, None]
    document = one_user_and_run(options={"numbers": numbers})
    with transaction.atomic(using=scratch):
        loaded = load(map(line_of, document), using=scratch)
        assert differences(loaded.file_digest.tables(), tally_of(scratch).tables()) == []
        (options,) = Run._base_manager.using(scratch).values_list("options", flat=True)
        assert [float(n) for n in options["numbers"][:-1]] == [float(n) for n in numbers[:-1]]


def one_user_and_run(**fields: Any) -> list[dict[str, Any]]:
    """Documents of a run and of the workspace that it is in."""
    of_table = {document["model"]: document for document in documents("x")}
    run = of_table["planner.run"]
    run["fields"] |= dict.fromkeys(("scenario", "trace", "sweep", "owner")) | fields
    return [of_table["planner.workspace"], run]


@pytest.mark.parametrize("character", [NUL, SURROGATE])
@pytest.mark.parametrize("column", ["name", "options"])
def test_what_a_database_cannot_store_is_named_with_its_remedy(
    scratch: str, character: str, column: str
) -> None:
    text = f"a{character}b"
    value: Any = {text: [text]} if column == "options" else text
    lines = [line_of(document) for document in one_user_and_run(**{column: value})]
    sqlite = connections[scratch].vendor == "sqlite"
    if sqlite and (character == NUL or column == "options"):
        assert load(lines, using=scratch).replaced == 0
        row = Run._base_manager.using(scratch).get()
        assert getattr(row, column) == value
        return
    with pytest.raises(PlannerError) as problem, transaction.atomic(using=scratch):
        load(lines, using=scratch)
    for words in ("planner.run 1", column, f"U+{ord(character):04X}", "--replace-characters"):
        assert words in str(problem.value)
    with transaction.atomic(using=scratch):
        loaded = load(lines, using=scratch, replace_characters=True)
    assert loaded.replaced == 1
    row = Run._base_manager.using(scratch).get()
    clean = f"a{REPLACEMENT}b"
    assert getattr(row, column) == ({clean: [clean]} if column == "options" else clean)
    assert differences(loaded.stored_digest.tables(), tally_of(scratch).tables()) == []


def test_a_refused_row_is_named(scratch: str) -> None:
    for fields, words in (
        ({"seed": "many"}, "planner.run 1"),
        ({"scenario": 77}, "77"),  # there is none
        ({"seed": 2**80}, "planner.run 1"),
    ):
        lines = [line_of(document) for document in one_user_and_run(**fields)]
        with pytest.raises(PlannerError, match=words), transaction.atomic(using=scratch):
            load(lines, using=scratch)
    for line in (b"{", b"[]\n", b'{"model": 3, "fields": {}}', b"null", b"\xff"):
        with pytest.raises(PlannerError, match="Line 1 "):
            load([line], using=scratch)


def test_text_longer_than_its_column_is_named(scratch: str) -> None:
    if connections[scratch].vendor == "sqlite":
        pytest.skip("SQLite takes text of any length")
    lines = [line_of(document) for document in one_user_and_run(name="x" * 121)]
    with pytest.raises(PlannerError, match=r"planner\.run 1, column name: 121 characters"):
        load(lines, using=scratch)


def test_what_this_version_does_not_have_is_counted(scratch: str) -> None:
    gone = {"model": "planner.gone", "pk": 1, "fields": {"a": 1}}
    rows = [*one_user_and_run(was_here=1), gone, gone | {"pk": 2}]
    with transaction.atomic(using=scratch):
        loaded = load(map(line_of, rows), using=scratch)
    assert loaded.left_out == {"planner.run.was_here": 1, "planner.gone": 2}
    assert loaded.file_digest.rows == 4
    assert differences(loaded.stored_digest.tables(), tally_of(scratch).tables()) == []


def test_a_changed_value_or_a_missing_row_is_a_difference() -> None:
    def tables(*names: str) -> dict[str, Any]:
        tally = RowDigest()
        for number, name in enumerate(names):
            tally.add({"model": "planner.run", "pk": number, "fields": {"name": name}})
        return tally.tables()

    assert differences(tables("a", "b"), tables("a", "b")) == []
    for other in (tables("a", "c"), tables("b", "a"), tables("a"), tables("a", "b", "c"), {}):
        assert len(differences(tables("a", "b"), other)) == 1
    assert differences(tables("a", "b"), tables("a", "c"), digests=False) == []
