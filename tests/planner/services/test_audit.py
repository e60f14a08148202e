"""The audit log: numbered without a gap, and only added to."""

import json

import pytest
from django.db import DatabaseError, connection, transaction

from planner.errors import NotAllowed
from planner.models import AuditRecord
from planner.services.audit import record

TABLE = AuditRecord._meta.db_table


@pytest.fixture
def log(planner) -> list[AuditRecord]:
    return [record("thing.done", f"{n}", by=planner, share=n / 7) for n in range(4)]


def numbers() -> list[int]:
    return list(AuditRecord.objects.order_by("number").values_list("number", flat=True))


def assert_refused_by_the_log(statement: str) -> None:
    with (
        pytest.raises(DatabaseError, match="only added to"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def test_records_are_numbered_in_order(log, planner):
    record("thing.done", planner, by=None, rule="nightly")
    assert numbers() == [1, 2, 3, 4, 5]
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
        assert_refused_by_the_log(statement)


def test_an_undone_action_leaves_no_record_and_no_gap(log, planner):
    with transaction.atomic():
        record("thing.done", "x", by=planner)
        transaction.set_rollback(True)
    record("thing.done", "y", by=planner)
    assert numbers() == [1, 2, 3, 4, 5]
