"""Count refused requests, and record who reached a limit.

/metrics exports the counts. The records are in the audit log. The page of sessions shows them to
the admins of the installation and to the person concerned.
"""

import hashlib
import json
import logging
from datetime import datetime
from typing import NamedTuple

from django.core.cache import cache

from planner.models import AuditRecord, User
from planner.models.workspace import MAIN
from planner.services.audit import record

logger = logging.getLogger(__name__)

STATUSES = (401, 403, 404, 429)
SIGNED_IN, NOT_SIGNED_IN = CALLERS = ("person", "stranger")
RECORD_EVERY_S = 3600  # seconds in which the same limit is recorded once
MAX_RECORDS = 20  # records within RECORD_EVERY_S: an attacker tries thousands of names
ACTION = "user.refused-often"
MAX_SHOWN = 20


class LimitReached(NamedTuple):
    """A limit on requests or sign-ins that somebody reached, as recorded in the audit log."""

    at: datetime
    sentence: str  # who reached which limit


def count_refusal(status: int, *, signed_in: bool) -> None:
    """Count one refused request by its HTTP status, and by whether its sender was signed in.

    In a file-based cache, two refusals at the same moment may count as one.
    """
    key = _key(status, SIGNED_IN if signed_in else NOT_SIGNED_IN)
    cache.add(key, 0, timeout=None)
    cache.incr(key)
    cache.touch(key, timeout=None)  # incr() in a file-based cache sets the default timeout


def refusal_counts() -> dict[tuple[int, str], int]:
    """Return the refusals counted since the cache was emptied, by HTTP status and caller."""
    keys = {(status, caller): _key(status, caller) for status in STATUSES for caller in CALLERS}
    counts = cache.get_many(keys.values())
    return {refusal: int(counts.get(key, 0)) for refusal, key in keys.items()}


def record_limit_reached(sentence: str, *, key: str, name: str = "") -> bool:
    """Record in the audit log that somebody reached a limit; return whether it was recorded.

    ``key`` names the limit. In an hour, each key is recorded at most once, and all keys together at
    most ``MAX_RECORDS`` times. ``name`` is the affected account, which may not exist.
    """
    # Cache keys must be short and without spaces; a typed user name may be neither.
    digest = hashlib.sha256(key.encode()).hexdigest()
    if not cache.add(f"refused-often-{digest}", 1, RECORD_EVERY_S):
        return False
    logger.warning("limit reached: %r", sentence)
    cache.add("refused-often-records", 0, RECORD_EVERY_S)  # unless it counts already
    if cache.incr("refused-often-records") > MAX_RECORDS:
        return False
    person = User.objects.filter(username__iexact=name, is_active=True).first() if name else None
    record(ACTION, person or key, by=None, rule="limits", sentence=sentence)
    return True


def limits_reached(user: User) -> list[LimitReached]:
    """Return the newest limits that ``user`` reached, or for an installation admin, anybody."""
    # An installation without admins has those of its first workspace.
    active = User.objects.filter(is_active=True)
    admins = active.filter(is_superuser=True)
    if not admins.exists():
        admins = active.filter(memberships__workspace__slug=MAIN, memberships__role=User.Role.ADMIN)
    records = AuditRecord.objects.filter(action=ACTION)
    if not admins.filter(pk=user.pk).exists():
        records = records.filter(key=str(user.pk), name=user.username)
    newest = records.order_by("-number")[:MAX_SHOWN]
    return [
        LimitReached(entry.at, str(json.loads(entry.details).get("sentence", entry.key)))
        for entry in newest
    ]


def _key(status: int, caller: str) -> str:
    return f"refused-{status}-{caller}"
