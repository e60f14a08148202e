"""The audit log: a chain that tells when a link was changed, taken out, or put in."""

from __future__ import annotations

import json

import pytest
from django.db import DatabaseError, connection, transaction

from planner.errors import NotAllowed
from planner.models import AuditHead, AuditRecord
from planner.services.audit import record, unguarded, verify

TABLE = AuditRecord._meta.db_table


@pytest.fixture
def log(planner) -> list[AuditRecord]:
    return [record("thing.done", f"{n}", by=planner, share=n / 7) for n in range(4)]


def test_each_record_follows_the_one_before(log, planner):
    assert [record.number for record in log] == [1, 2, 3, 4]
    assert [record.previous for record in log] == ["", *(record.sha256 for record in log[:-1])]
    verdict = verify()
    assert (verdict.records, verdict.problem, verdict.guarded) == (4, "", True)
    assert verdict.head == f"4:{log[-1].sha256}"
    record("thing.done", planner, by=None, rule="nightly")
    assert verify(known=verdict.head).problem == ""  # what was noted earlier is still there
    last = AuditRecord.objects.first()
    assert last is not None and (last.actor, last.name) == ("rule: nightly", "pia")
    assert json.loads(log[3].details) == {"share": 3 / 7}


def test_nothing_is_changed_or_removed(log):
    for act in (
        lambda: AuditRecord.objects.update(actor="nobody"),
        lambda: AuditRecord.objects.all().delete(),
        log[0].delete,
        log[0].save,
    ):
        with pytest.raises(NotAllowed, match="only added to"):
            act()
    for statement in (f"UPDATE {TABLE} SET actor = 'nobody'", f"DELETE FROM {TABLE}"):
        with (
            pytest.raises(DatabaseError, match="only added to"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"UPDATE {TABLE} SET actor = 'nobody' WHERE number = 2", "Record 2 was changed"),
        (f"DELETE FROM {TABLE} WHERE number = 2", "Record 2 is missing"),
        (f"DELETE FROM {TABLE} WHERE number = 4", "ends with record 3, and 4 were written"),
        (f"DELETE FROM {TABLE} WHERE number = 1", "Record 1 is missing"),
    ],
)
def test_who_goes_round_the_guard_is_found_out(log, statement, words):
    with unguarded(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert words in verify().problem


def test_a_log_written_anew_is_not_the_one_that_was_noted(log):
    noted = verify().head
    with unguarded(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")
    AuditHead.objects.update(number=0, sha256="")
    for n in range(5):
        record("thing.done", f"{n}", by=None)
    assert verify().problem == ""
    assert "There is no record 4:" in verify(known=noted).problem


def test_what_is_undone_leaves_no_record(log, planner):
    with transaction.atomic():
        record("thing.done", "x", by=planner)
        transaction.set_rollback(True)
    assert verify().records == 4 and verify().problem == ""
