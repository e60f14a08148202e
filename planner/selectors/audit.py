"""Read the audit log."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Count, Q, QuerySet

from planner.models import AuditRecord, User
from planner.models.workspace import current_workspace

# Events for alerts, by their name in /metrics.
EVENTS = {
    "signed-in": Q(action="user.signed-in"),
    "sign-in-refused": Q(action="user.refused"),
    "refused-often": Q(action="user.refused-often"),
    "password-changed": Q(action="user.password"),
    "recovery-code-used": Q(action="user.recovery-code"),
    "second-factor-ended": Q(action="user.second-factor", details__contains='"on": false'),
    "token-made": Q(action="token.made"),
    "installation-admin-made": Q(action="user.installation-admin", details__contains='"on": true'),
    "audit-exported": Q(action="audit.exported"),
}
FIELDS = ("number", "at", "actor", "action", "key", "name", "details", "workspace")


def audit_list(
    *, all_workspaces: bool = False, actor: str = "", action: str = "", search: str = ""
) -> QuerySet[AuditRecord]:
    """Return the records of the current workspace and of its members, newest first.

    ``action`` is a whole action such as ``run.create``, or only its part before the full stop. With
    ``all_workspaces``, return those of every workspace.
    """
    rows: QuerySet[AuditRecord] = AuditRecord.objects.all()
    if not all_workspaces:
        workspace = current_workspace()
        members = User.objects.filter(memberships__workspace=workspace).values("username")
        rows = rows.filter(Q(workspace=workspace.slug) | Q(workspace="", actor__in=members))
    if actor:
        rows = rows.filter(actor=actor)
    if action:
        rows = rows.filter(Q(action=action) | Q(action__startswith=f"{action}."))
    for word in search.split():
        rows = rows.filter(Q(name__icontains=word) | Q(key=word) | Q(details__icontains=word))
    return rows


def audit_actions() -> list[str]:
    """Return the distinct actions in the log, sorted."""
    rows = AuditRecord.objects.order_by("action").values_list("action", flat=True)
    return list(rows.distinct())


def audit_rows(all_workspaces: bool) -> Iterator[dict[str, Any]]:
    """Yield the records of ``audit_list``, oldest first, as dicts of FIELDS.

    The value of ``details`` is a JSON text.
    """
    for row in audit_list(all_workspaces=all_workspaces).order_by("number"):
        yield {name: getattr(row, name) for name in FIELDS} | {"at": row.at.isoformat()}


def security_events() -> dict[str, int]:
    """Return the number of log records of each security event."""
    # The name of an event has hyphens, and an aggregate's must be an identifier.
    counts = {
        event.replace("-", "_"): Count("pk", filter=condition)
        for event, condition in EVENTS.items()
    }
    any_event = reduce(or_, EVENTS.values())
    counted = AuditRecord.objects.filter(any_event).aggregate(**counts)
    return {event: counted[event.replace("-", "_")] for event in EVENTS}
