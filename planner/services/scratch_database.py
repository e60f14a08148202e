"""Create an empty database with this version's tables for the check of a backup."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

SQLITE = "django.db.backends.sqlite3"
PREFIX = "headroom_scratch_"
MAX_AGE = timedelta(days=1)  # older ones are dropped: a killed backup leaves its own behind


@contextmanager
def scratch_database(folder: Path, *, sqlite: bool = False) -> Iterator[BaseDatabaseWrapper]:
    """Yield a connection to an empty database, which is dropped after the block.

    It is of the installation's kind. With ``sqlite``, or if the PostgreSQL role may not create
    databases, it is an SQLite file in ``folder``. Django knows the connection by its alias, in this
    thread only.
    """
    with ExitStack() as stack:
        scratch = None
        if connection.vendor == "postgresql" and not sqlite:
            scratch = _create_in_postgresql(stack)
        if scratch is None:
            options = {"init_command": "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;"}
            path = str(folder / "scratch.sqlite3")
            scratch = _connect(stack, {"ENGINE": SQLITE, "NAME": path, "OPTIONS": options})
        # Create the tables from the models: the same tables as by all migrations, and far faster.
        with scratch.schema_editor() as editor:
            for model in apps.get_models():
                if model._meta.can_migrate(scratch):
                    editor.create_model(model)
        yield scratch


def _create_in_postgresql(stack: ExitStack) -> BaseDatabaseWrapper | None:
    """Create a database on the same server and connect to it; None if the server refuses.

    ``stack`` gets the callbacks that drop it.
    """
    server = connection.copy("scratch-server")  # CREATE DATABASE runs outside of transactions
    stack.callback(server.close)
    now = datetime.now(UTC)
    name = f"{_dated_prefix(now)}_{secrets.token_hex(4)}"
    try:
        with server.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0")
            stack.callback(_drop, server, name, "WITH (FORCE)")
            cursor.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", [f"{PREFIX}%"])
            for (old_name,) in cursor.fetchall():
                if old_name < _dated_prefix(now - MAX_AGE):
                    _drop(server, old_name)
        scratch = _connect(stack, {"NAME": name})
        scratch.ensure_connection()
    except DatabaseError:
        return None
    return scratch


def _dated_prefix(moment: datetime) -> str:
    return f"{PREFIX}{moment:%Y%m%d%H%M%S}"


def _drop(server: BaseDatabaseWrapper, name: str, option: str = "") -> None:
    """Drop a database, with an ``option`` of SQL; do nothing if the server refuses."""
    with suppress(DatabaseError), server.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name} {option}")


def _connect(stack: ExitStack, changes: dict[str, Any]) -> BaseDatabaseWrapper:
    """Return a connection with the installation's settings, except for ``changes``."""
    settings = {**connection.settings_dict, **changes}
    alias = f"scratch-{secrets.token_hex(4)}"
    scratch: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, alias)
    connections[alias] = scratch
    stack.callback(connections.__delitem__, alias)
    stack.callback(scratch.close)
    return scratch
