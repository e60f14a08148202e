"""Add records to the audit log; they are never changed or removed.

A record is added last in the transaction of the action that it describes. Nobody else adds one
until that transaction ends, so numbers have no gap, and an undone action leaves no record.
"""

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
NAME_FIELDS = ("username", "title", "name")  # fields that name a row for people
INSTALLATION_THINGS = ("user", "token", "backup", "audit")  # things that belong to no workspace
TRIGGER = "planner_audit_only_added"
GUARDED_STATEMENTS = ("UPDATE", "DELETE")


def record(
    action: str, thing: Model | str = "", *, by: User | None, rule: str = "", **details: object
) -> AuditRecord:
    """Add a record to the audit log.

    ``action`` is written thing.verb, such as "plan.ended". ``thing`` is the row or key acted on. If
    ``by`` is None, the actor is ``rule`` if given, else the command line. The record belongs to the
    current workspace; records on things in ``INSTALLATION_THINGS`` belong to no workspace.
    """
    actor = f"rule: {rule}" if rule else COMMAND_LINE
    if by is not None:
        actor = by.username
    with transaction.atomic():
        AuditHead.objects.get_or_create(pk=1)
        # locks the row until the transaction ends
        AuditHead.objects.filter(pk=1).update(number=F("number") + 1)
        return AuditRecord.objects.create(
            number=AuditHead.objects.get(pk=1).number,
            at=timezone.now(),
            actor=storable(actor)[:200],
            action=action,
            # Anybody may type anything as a user name, and that is recorded.
            key=storable(str(thing.pk if isinstance(thing, Model) else thing))[:120],
            name=storable(_display_name(thing))[:200],
            workspace="" if action.partition(".")[0] in INSTALLATION_THINGS else _workspace_slug(),
            details=json.dumps(details, default=str, sort_keys=True),
        )


def _workspace_slug() -> str:
    """Return the slug of the current workspace; "" if there is none."""
    try:
        return current_workspace().slug
    except NoWorkspace:
        return ""


def _display_name(thing: Model | str) -> str:
    """Return the first of NAME_FIELDS that the row has; "" if it has none, or for a text."""
    if isinstance(thing, str):
        return ""
    for field_name in NAME_FIELDS:
        if name := getattr(thing, field_name, ""):
            return str(name)
    return ""


@transaction.atomic  # the log is never without its triggers
def create_triggers() -> None:
    """Create database triggers that refuse to change or remove audit records.

    Repeating this is safe. Every migration repeats it, because SQLite drops triggers when it alters
    a table.
    """
    table = AuditRecord._meta.db_table
    if table not in connection.introspection.table_names():
        return
    _drop_triggers()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'The audit log is only added to.'; END $$"
            )
            cursor.execute(
                f"CREATE TRIGGER {TRIGGER} BEFORE UPDATE OR DELETE ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION {TRIGGER}()"
            )
        elif connection.vendor == "sqlite":
            for statement in GUARDED_STATEMENTS:
                cursor.execute(
                    f"CREATE TRIGGER {TRIGGER}_{statement.lower()} BEFORE {statement} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'The audit log is only added to.'); END"
                )


def _drop_triggers() -> None:
    """Remove the database triggers that keep the audit log append-only."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER} ON {AuditRecord._meta.db_table}")
        elif connection.vendor == "sqlite":
            for statement in GUARDED_STATEMENTS:
                cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER}_{statement.lower()}")


@contextmanager
def without_triggers() -> Iterator[None]:
    """Drop the triggers within the block, so that a restore can replace audit records.

    The caller must have opened a transaction around the block.
    """
    _drop_triggers()
    yield
    create_triggers()
