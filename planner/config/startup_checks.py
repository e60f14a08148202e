"""Check settings and database at every entry point of the product.

Bad settings, and a database that a newer version has migrated, end the process. Both print one
sentence on stderr and give exit status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection

from planner.version import VERSION

APP = "planner"
REFUSED = 2  # exit status
started_on_known = False  # True: at its start this process knew every migration


class NewerDatabase(Exception):
    """A newer version of the product has migrated the database."""


@contextmanager
def exit_with_sentence() -> Iterator[None]:
    """End the process with one sentence if the block raises an error of settings or database."""
    try:
        yield
    except (ImproperlyConfigured, NewerDatabase) as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(REFUSED)


def unknown_migrations() -> list[str]:
    """Return the applied migrations of this product that this version does not have.

    A migration is known if its file is here, or if ``replaces`` of a file here lists it.
    """
    with connection.cursor() as cursor:
        if "django_migrations" not in connection.introspection.table_names(cursor):
            return []
        cursor.execute("SELECT name FROM django_migrations WHERE app = %s", [APP])
        applied = {name for (name,) in cursor.fetchall()}
    package = import_module(f"{APP}.migrations")
    here = {module.name for module in iter_modules(package.__path__)}
    unknown = applied - here
    if unknown:  # rare, so only then is each file imported
        for name in here:
            migration = getattr(import_module(f"{package.__name__}.{name}"), "Migration", None)
            unknown -= {old for app, old in getattr(migration, "replaces", ()) if app == APP}
    return sorted(unknown)


def check_migrations_known() -> None:
    """Raise NewerDatabase if the database has a migration that this version does not know.

    A database that does not answer, or does not exist yet, raises nothing here: the code that needs
    it reports it.
    """
    global started_on_known
    opened_here = connection.connection is None
    try:
        if connection.vendor == "sqlite" and not _exists():
            return  # connecting would create it
        unknown = unknown_migrations()
    except DatabaseError:
        return
    finally:
        if opened_here:  # the web server forks later, and children must not share a connection
            connection.close()
    if unknown:
        raise NewerDatabase(newer(unknown))
    started_on_known = True


def newer(unknown: list[str]) -> str:
    """Return the sentence about a database with ``unknown`` migrations."""
    return (
        f"A newer version of Headroom has migrated {_place()} ({unknown[-1]}), which this version "
        f"({VERSION}) cannot use: start the newer version, or restore a backup of this one into an "
        "empty data folder and database."
    )


def serves_while_upgraded() -> bool:
    """Return whether this process started before a newer version migrated its database.

    It serves until it is replaced: migrations leave the version before them working.
    """
    return started_on_known


def _place() -> str:
    if connection.vendor == "sqlite":
        return str(connection.settings_dict["NAME"])
    return f"the database {connection.settings_dict['NAME']}"


def _exists() -> bool:
    return Path(str(connection.settings_dict["NAME"])).exists()
