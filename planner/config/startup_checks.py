"""Check settings and database at every entry point of the product.

Bad settings, and a database that is too new or too old, end the process. Each prints one sentence
on stderr and gives exit status 2.
"""

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
REFUSED, INTERRUPTED = 2, 130  # exit status
knew_all_migrations = False  # True: at its start this process knew every applied migration


class UnfitDatabase(Exception):
    """The database can neither be used nor be migrated by this version."""


@contextmanager
def exit_with_sentence() -> Iterator[None]:
    """End with one sentence on an error of settings or database, and on an interruption."""
    try:
        yield
    except (ImproperlyConfigured, UnfitDatabase) as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(REFUSED)
    except KeyboardInterrupt:  # Ctrl-C, or a signal to end
        sys.stderr.write("Stopped before its end.\n")
        sys.exit(INTERRUPTED)


def applied_migrations() -> set[str]:
    """Return the names of the migrations of this product that the database has."""
    with connection.cursor() as cursor:
        if "django_migrations" not in connection.introspection.table_names(cursor):
            return set()
        cursor.execute("SELECT name FROM django_migrations WHERE app = %s", [APP])
        return {name for (name,) in cursor.fetchall()}


def own_migrations() -> dict[str, set[str]]:
    """Return the migrations of this version by name, each with the names of those it replaces."""
    package = import_module(f"{APP}.migrations")
    replaced_by: dict[str, set[str]] = {}
    for module in iter_modules(package.__path__):
        migration = getattr(import_module(f"{package.__name__}.{module.name}"), "Migration", None)
        replaces = getattr(migration, "replaces", ())
        replaced_by[module.name] = {old_name for app, old_name in replaces if app == APP}
    return replaced_by


def unknown_migrations() -> list[str]:
    """Return the applied migrations of this product that this version does not know.

    A migration is known if its file is here, or if ``replaces`` of a file here lists it.
    """
    return _unknown(applied_migrations(), own_migrations())


def _unknown(applied: set[str], own: dict[str, set[str]]) -> list[str]:
    """Return those of ``applied`` that are neither in ``own`` nor replaced by one of these."""
    known = set(own).union(*own.values())
    return sorted(applied - known)


def check_migrations() -> None:
    """Raise UnfitDatabase if this version can neither use nor migrate the database.

    There are two such cases: the database has a migration that this version does not know, or it
    has some, but not all, of the migrations that one of this version replaces. A database that does
    not answer, or does not exist yet, raises nothing here.
    """
    global knew_all_migrations
    opened_here = connection.connection is None
    try:
        file = Path(str(connection.settings_dict["NAME"]))
        if connection.vendor == "sqlite" and not file.exists():
            return  # connecting would create it
        applied = applied_migrations()
    except DatabaseError:
        return
    finally:
        if opened_here:  # the web server forks later, and children must not share a connection
            connection.close()
    own = own_migrations()
    unknown = _unknown(applied, own)
    if unknown:
        raise UnfitDatabase(
            f"A newer version of Headroom has migrated {_database()} ({unknown[-1]}), which this "
            f"version ({VERSION}) cannot use. Start the newer version. Or restore a backup of this "
            "one into an empty data folder and database."
        )
    for replaced in own.values():
        missing = sorted(replaced - applied)
        if missing and applied & replaced:
            raise UnfitDatabase(
                f"{_database()} is too old for this version ({VERSION}): it lacks the migration "
                f"{missing[0]}. Upgrade it with a version that has the migration {missing[-1]}, "
                "then start this one."
            )
    knew_all_migrations = True


def serves_while_upgraded() -> bool:
    """Return whether this process started before a newer version migrated its database.

    It may serve until it is replaced, since migrations leave the version before them working.
    """
    return knew_all_migrations


def _database() -> str:
    """Return the database as messages name it: its file, or its name on the server."""
    name = str(connection.settings_dict["NAME"])
    return name if connection.vendor == "sqlite" else f"the database {name}"
