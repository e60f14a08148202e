"""An upgrade from the migrations before 0042 gives the tables of a new installation.

``database_0041`` holds the tables that migrations 0001 to 0041 made, and rows for them.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from tests.conftest import database_url
from tests.platform.conftest import manage

BEFORE = Path(__file__).parent / "database_0041"
REMOVED_TABLES = {
    "authtoken_token",
    "django_session",
    "planner_accountnotice",
    "planner_knownbrowser",
}
REMOVED_COLUMNS = {
    ("planner_audithead", "sha256"),
    ("planner_auditrecord", "previous"),
    ("planner_auditrecord", "sha256"),
    ("planner_session", "browser"),
}
RENAMED_TABLES = {"planner_planinforce": "planner_activeplan"}
RENAMED_COLUMNS = {
    ("planner_firing", "settled_at"): "finished_at",
    ("planner_outcome", "begun_at"): "started_at",
    ("planner_run", "removal_told_at"): "removal_announced_at",
    ("planner_secondfactor", "sealed"): "encrypted_key",
    ("planner_session", "begun_at"): "created_at",
    ("planner_session", "seen_at"): "last_used_at",
    ("planner_source", "read_to"): "read_until",
    ("planner_sourcereading", "what"): "file_name",
    ("planner_trace", "removal_told_at"): "removal_announced_at",
}
EMPTY = {  # 0041 empties the first two, and nothing fills the others
    "planner_accountnotice",
    "planner_knownbrowser",
    "planner_user_groups",
    "planner_user_user_permissions",
}
Rows = dict[str, dict[Any, dict[str, Any]]]  # of each table, by the first column


class Database:
    """A database of a given version, and what is in it."""

    def __init__(self, url: str) -> None:
        self.sqlite = url.startswith("sqlite")
        self.url = url

    def connect(self) -> Any:
        if self.sqlite:
            return sqlite3.connect(unquote(urlsplit(self.url).path))
        return psycopg.connect(self.url)

    def load_0041(self) -> None:
        """Create the tables and rows of ``database_0041``."""
        kind = "sqlite" if self.sqlite else "postgresql"
        statements = (BEFORE / f"{kind}.sql").read_text().splitlines()
        tables = json.loads((BEFORE / "rows.json").read_text())
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)
            for table, (columns, *rows) in tables.items():
                for row in rows:
                    self._insert(connection, table, columns, row)
                if not self.sqlite and columns[0] == "id":
                    connection.execute(
                        f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) "
                        f"FROM {table}"
                    )

    def _insert(self, connection: Any, table: str, columns: list[str], row: list[Any]) -> None:
        names = ", ".join(f'"{column}"' for column in columns)
        marks = ", ".join("?" if self.sqlite else "%s" for _ in columns)
        values = [bytes.fromhex(one["hex"]) if isinstance(one, dict) else one for one in row]
        if not self.sqlite:  # the server reads each text as the type of its column
            values = [str(one) if isinstance(one, int | float) else one for one in values]
        connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', values)

    def rows(self) -> Rows:
        found: Rows = {}
        with self.connect() as connection:
            for table in self._tables(connection):
                cursor = connection.execute(f'SELECT * FROM "{table}"')
                names = [column[0] for column in cursor.description]
                found[table] = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
        return found

    def _tables(self, connection: Any) -> list[str]:
        listed = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            if self.sqlite
            else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        )
        return [name for (name,) in connection.execute(listed)]

    def schema(self) -> set[tuple[str, ...]]:
        """Return every column, constraint, index and trigger."""
        with self.connect() as connection:
            return set(_sqlite_schema(connection) if self.sqlite else _postgres_schema(connection))


def _sqlite_schema(connection: Any) -> Iterator[tuple[str, ...]]:
    for kind, table, name, sql in connection.execute(
        "SELECT type, tbl_name, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    ):
        if kind == "table":
            yield from ((table, part) for part in _parts(sql))
        else:
            yield table, kind, name, sql


def _parts(create_table: str) -> list[str]:
    """Split what stands in the outer brackets at its commas: columns come in any order."""
    body, depth, parts = create_table.partition("(")[2].rpartition(")")[0], 0, [""]
    for character in body:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts]


def _postgres_schema(connection: Any) -> Iterator[tuple[str, ...]]:
    for query in (
        "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, "
        "column_default, is_identity FROM information_schema.columns WHERE table_schema = 'public'",
        "SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace",
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT tgrelid::regclass, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT sequencename, data_type FROM pg_sequences WHERE schemaname = 'public'",
    ):
        for row in connection.execute(query):
            yield tuple(str(value) for value in row)


@pytest.mark.django_db
@pytest.mark.parametrize("server", ["sqlite", "postgresql"])
def test_an_upgrade_gives_the_tables_of_a_new_installation_and_keeps_every_value(
    server: str, embedded: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = embedded | {"HEADROOM_DATA_DIR": str(tmp_path)}
    if server == "sqlite":
        migrated = Path(embedded["HEADROOM_DATA_DIR"]).with_name("migrated")
        new = Database(f"sqlite://{migrated}/headroom.sqlite3").schema()
        content = Database(f"sqlite://{tmp_path}/headroom.sqlite3")
    else:
        environment["DATABASE_URL"] = request.getfixturevalue("new_database")
        new = Database(database_url()).schema()  # the tests' own database is a new one
        content = Database(environment["DATABASE_URL"])
    assert {"planner_run", "planner_auditrecord"} <= {table for table, *_ in new}
    content.load_0041()
    before = content.rows()
    (plans,) = (row for row in before["planner_counter"].values() if row["kind"] == "planinforce")
    plans["kind"] = "activeplan"
    empty = {table for table, rows in before.items() if table.startswith("planner_") and not rows}
    assert empty <= EMPTY
    done = manage(environment, "migrate", "--verbosity=0", "--skip-checks")
    assert done.returncode == 0, done.stderr
    assert content.schema() == new
    after = content.rows()
    for table, rows in before.items():
        if table in REMOVED_TABLES:
            assert table not in after
            continue
        now = after[RENAMED_TABLES.get(table, table)]
        for key, row in rows.items():
            expected = {
                RENAMED_COLUMNS.get((table, column), column): value
                for column, value in row.items()
                if (table, column) not in REMOVED_COLUMNS
            }
            assert {column: now[key].get(column) for column in expected} == expected, table
