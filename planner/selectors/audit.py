"""What the audit log holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import Q, QuerySet

from planner.models import AuditRecord

FIELDS = ("number", "at", "actor", "action", "key", "name", "details", "previous", "sha256")


def audit_list(*, actor: str = "", action: str = "", search: str = "") -> QuerySet[AuditRecord]:
    """The newest first; ``action`` is a whole one, or the thing before its full stop."""
    rows: QuerySet[AuditRecord] = AuditRecord.objects.all()
    if actor:
        rows = rows.filter(actor=actor)
    if action:
        rows = rows.filter(Q(action=action) | Q(action__startswith=f"{action}."))
    for word in search.split():
        rows = rows.filter(Q(name__icontains=word) | Q(key=word) | Q(details__icontains=word))
    return rows


def audit_actions() -> list[str]:
    rows = AuditRecord.objects.order_by("action").values_list("action", flat=True)
    return list(rows.distinct())


def audit_rows(rows: Iterable[AuditRecord]) -> Iterator[dict[str, Any]]:
    """All that a record's hash is made from, as it was hashed, so that who has the file can check
    it: ``details`` is text."""
    for one in rows:
        yield {name: getattr(one, name) for name in FIELDS} | {"at": one.at.isoformat()}
