"""Add records to the audit log; they are never changed or removed.

A record is added last in the transaction of the action that it describes. Nobody else adds one
until that transaction ends, so numbers have no gap, and an undone action leaves no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.models import F, Model
from django.utils import timezone

from planner.files.stored_text import storable
from planner.models import AuditHead, AuditRecord, User
from planner.models.workspace import NoWorkspace, current_workspace

COMMAND_LINE = "command line"
NAMES = ("username", "title", "name")  # fields that name a row for people
OF_ALL = ("user", "token", "backup", "audit")  # things that belong to no workspace
GUARD = "planner_audit_only_added"
DEEDS = ("UPDATE", "DELETE")


def record(
    action: str, what: Model | str = "", *, by: User | None, rule: str = "", **details: object
) -> AuditRecord:
    """Add a record to the audit log.

    ``action`` is thing.verb, and ``what`` is the thing. If ``by`` is None, the actor is ``rule`` if
    it is named, else the command line. The record belongs to the current workspace. Records of
    things in ``OF_ALL`` belong to the installation.
    """
    actor = by.username if by is not None else f"rule: {rule}" if rule else COMMAND_LINE
    with transaction.atomic():
        AuditHead.objects.get_or_create(pk=1)
        # locks the row until the transaction ends
        AuditHead.objects.filter(pk=1).update(number=F("number") + 1)
        return AuditRecord.objects.create(
            number=AuditHead.objects.get(pk=1).number,
            at=timezone.now(),
            actor=storable(actor)[:200],
            action=action,
            # A stranger may type anything as a user name, and that is recorded.
            key=storable(str(what.pk if isinstance(what, Model) else what))[:120],
            name=storable(_name(what))[:200],
            workspace="" if action.partition(".")[0] in OF_ALL else _here(),
            details=json.dumps(details, default=str, sort_keys=True),
        )


def _here() -> str:
    try:
        return current_workspace().slug
    except NoWorkspace:
        return ""


def _name(what: Model | str) -> str:
    if not isinstance(what, Model):
        return ""
    return str(next((getattr(what, name) for name in NAMES if getattr(what, name, "")), ""))


def guard() -> None:
    """Create triggers by which the database itself refuses to change or remove records.

    It is safe to repeat. Every migration repeats it, because SQLite drops triggers when it alters a
    table.
    """
    table = AuditRecord._meta.db_table
    if table not in connection.introspection.table_names() or is_guarded():
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {GUARD}() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'The audit log is only added to.'; END $$"
            )
            cursor.execute(
                f"CREATE TRIGGER {GUARD} BEFORE UPDATE OR DELETE ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION {GUARD}()"
            )
        elif connection.vendor == "sqlite":
            for deed in DEEDS:
                cursor.execute(
                    f"CREATE TRIGGER IF NOT EXISTS {GUARD}_{deed.lower()} BEFORE {deed} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'The audit log is only added to.'); END"
                )


@contextmanager
def unguarded() -> Iterator[None]:
    """Remove the triggers while a restore replaces everything, within one transaction."""
    table = AuditRecord._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"DROP TRIGGER IF EXISTS {GUARD} ON {table}")
        elif connection.vendor == "sqlite":
            for deed in DEEDS:
                cursor.execute(f"DROP TRIGGER IF EXISTS {GUARD}_{deed.lower()}")
    yield
    guard()


def is_guarded() -> bool:
    """Return whether the database has the triggers."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT count(*) FROM pg_trigger WHERE tgname = %s", [GUARD])
            return bool(cursor.fetchone()[0])
        if connection.vendor == "sqlite":
            cursor.execute(
                "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name LIKE %s",
                [f"{GUARD}%"],
            )
            return bool(cursor.fetchone()[0] == len(DEEDS))
    return False
