"""Count the security events of the audit log."""

from __future__ import annotations

from functools import reduce
from operator import or_

from django.db.models import Count, Q

from planner.models import AuditRecord

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


def security_events() -> dict[str, int]:
    """Return how often each event is in the log."""
    counts = {
        f"event{n}": Count("pk", filter=condition) for n, condition in enumerate(EVENTS.values())
    }
    any_event = reduce(or_, EVENTS.values())
    rows = AuditRecord.objects.filter(any_event).aggregate(**counts)
    return {event: rows[f"event{n}"] for n, event in enumerate(EVENTS)}
