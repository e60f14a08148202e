"""The audit log: records added, one after the other, and the chain of their hashes checked.

A record is added in the transaction of the deed it tells of, last of all: until that ends nobody
else adds one, so numbers have no gap, and a deed that is undone leaves no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import F, Model
from django.utils import timezone

from planner.models import AuditHead, AuditRecord, User
from planner.models.workspace import NoWorkspace, current_workspace

COMMAND_LINE = "command line"
NAMES = ("username", "title", "name")  # of a row, for people
OF_ALL = ("user", "token", "backup", "audit")  # things that are in no workspace
GUARD = "planner_audit_only_added"
DEEDS = ("UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class Verified:
    """``problem``: the first record that does not follow, in a sentence; "" where all do."""

    records: int
    head: str  # NUMBER:SHA256 of the newest, to be kept elsewhere
    guarded: bool  # the database refuses changes
    problem: str


def record(
    action: str, what: Model | str = "", *, by: User | None, rule: str = "", **details: object
) -> AuditRecord:
    """Add one: ``action`` is thing.deed, ``what`` the thing. ``by`` None is a rule, where one is
    named, or the command line. It is of the current workspace, or of the installation where what
    was done is (``OF_ALL``)."""
    actor = by.username if by is not None else f"rule: {rule}" if rule else COMMAND_LINE
    with transaction.atomic():
        AuditHead.objects.get_or_create(pk=1)
        AuditHead.objects.filter(pk=1).update(number=F("number") + 1)  # and hold it
        head = AuditHead.objects.get(pk=1)
        added = AuditRecord(
            number=head.number,
            at=timezone.now(),
            actor=actor[:200],
            action=action,
            key=str(what.pk if isinstance(what, Model) else what)[:120],
            name=_name(what)[:200],
            workspace="" if action.partition(".")[0] in OF_ALL else _here(),
            details=json.dumps(details, default=str, sort_keys=True),
            previous=head.sha256,
        )
        added.sha256 = added.digest()
        added.save()
        AuditHead.objects.filter(pk=1).update(sha256=added.sha256)
    return added


def _here() -> str:
    try:
        return current_workspace().slug
    except NoWorkspace:
        return ""


def _name(what: Model | str) -> str:
    if not isinstance(what, Model):
        return ""
    return str(next((getattr(what, name) for name in NAMES if getattr(what, name, "")), ""))


def verify(known: str = "") -> Verified:
    """Whether every record is as it was written and follows the one before. ``known``: a head,
    NUMBER:SHA256, that was noted earlier and must still be there."""
    number, previous, problem = 0, "", ""
    number_known, _, sha256 = known.partition(":")
    seen = not known
    for entry in AuditRecord.objects.order_by("number").iterator(chunk_size=2000):
        number += 1
        problem = _fault(entry, number, previous)
        if problem:
            break
        seen = seen or (str(entry.number) == number_known and entry.sha256 == sha256)
        previous = entry.sha256
    head = AuditHead.objects.filter(pk=1).first() or AuditHead()
    if not problem and (head.number, head.sha256) != (number, previous):
        problem = f"The log ends with record {number}, and {head.number} were written."
    if not problem and not seen:
        problem = f"There is no record {known}: what was noted is not in this log."
    return Verified(number, f"{number}:{previous}", is_guarded(), problem)


def _fault(entry: AuditRecord, number: int, previous: str) -> str:
    if entry.number != number:
        return f"Record {number} is missing."
    if entry.digest() != entry.sha256:
        return f"Record {number} was changed after it was written."
    if entry.previous != previous:
        return f"Record {number} does not follow record {number - 1}, which was put there later."
    return ""


def guard() -> None:
    """Have the database itself refuse to change or remove records. Safe to repeat, which every
    migration does: SQLite forgets it when a table is altered."""
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
    """For a restore, which replaces everything; within one transaction."""
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
