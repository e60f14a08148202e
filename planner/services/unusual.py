"""What is refused is counted, and whoever looks after the installation hears of what is refused
unusually often (OWASP ASVS 8.1.4, 11.1.7, 11.1.8)."""

from __future__ import annotations

import hashlib
import logging

from django.core.cache import cache
from django.db.models import QuerySet

from planner.models import User
from planner.models.workspace import MAIN
from planner.services.account_notices import tell
from planner.services.audit import record

logger = logging.getLogger(__name__)

STATUSES = (401, 403, 404, 429)
WHO = ("person", "stranger")  # signed in, or not
EVERY_S = 3600  # the same is told once
MOST = 20  # told within that: names are guessed at by the thousand


def refusal_counted(status: int, *, by_person: bool) -> None:
    """Since the cache was emptied; where it lies in files, two at one moment may count as one."""
    key = _key(status, WHO[0] if by_person else WHO[1])
    cache.add(key, 0, None)
    cache.incr(key)
    cache.touch(key, None)


def refusals() -> dict[tuple[int, str], int]:
    """By status and by who was refused."""
    keys = {(status, who): _key(status, who) for status in STATUSES for who in WHO}
    counts = cache.get_many(keys.values())
    return {of: int(counts.get(key, 0)) for of, key in keys.items()}


def refused_often(sentence: str, *, key: str, name: str = "") -> bool:
    """Tell those who look after the installation, and whose account ``name`` is; whether they were
    told. ``key`` is what is refused: the same is told once an hour."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    if not cache.add(f"refused-often-{digest}", 1, EVERY_S):
        return False
    logger.warning("refused often: %s", sentence)
    cache.add("refused-often", 0, EVERY_S)
    if cache.incr("refused-often") > MOST:
        return False
    person = User.objects.filter(username__iexact=name, is_active=True).first() if name else None
    record("user.refused-often", key, by=None, rule="limits")
    for user in {*_looks_after(), *([person] if person else [])}:
        tell(user, sentence)
    return True


def _looks_after() -> QuerySet[User]:
    """Admins of the installation; where there are none, of its first workspace."""
    active = User.objects.filter(is_active=True)
    admins = active.filter(is_superuser=True)
    if admins.exists():
        return admins
    return active.filter(memberships__workspace__slug=MAIN, memberships__role=User.Role.ADMIN)


def _key(status: int, who: str) -> str:
    return f"refused-{status}-{who}"
