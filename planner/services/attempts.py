"""Limit the failed attempts at guessing a password or code within a minute.

An attempt is counted before it is made, under the lock of its row, so that parallel attempts cannot
pass the limit together.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from planner.errors import TooManyAttempts
from planner.models import AttemptWindow

WINDOW_S = 65.0  # the minute that limits promise, and the time that an attempt may take


def attempt_count(kind: str, text: str, *, limit: int) -> float:
    """Count an attempt at ``text`` and return its moment.

    Raise TooManyAttempts, with the seconds to wait, if there were ``limit`` within the last minute.
    """
    with transaction.atomic():
        window = _locked_window(_key(kind, text))
        now = time.time()
        # ``<= now``: if the clock was set back, moments in the future must not count.
        recent = [moment for moment in window.moments if now - WINDOW_S < moment <= now]
        if len(recent) >= limit:
            raise TooManyAttempts(math.ceil(recent[-limit] + WINDOW_S - now))
        window.moments = [*recent, now]
        window.newest_at = timezone.now()
        window.save()
    return now


@contextmanager
def failed_attempt(kind: str, text: str, *, limit: int) -> Iterator[None]:
    """Count the block as an attempt; forget it if the block succeeds.

    It is forgotten too if another limit stops the block before it tries anything.
    """
    moment = attempt_count(kind, text, limit=limit)
    try:
        yield
    except TooManyAttempts:
        _forget(kind, text, moment)
        raise
    _forget(kind, text, moment)


def attempts_sweep(*, now: datetime) -> int:
    """Remove rows without a recent attempt; return how many."""
    return AttemptWindow.objects.filter(newest_at__lt=now - timedelta(minutes=10)).delete()[0]


def _forget(kind: str, text: str, moment: float) -> None:
    with transaction.atomic():
        window = _locked_window(_key(kind, text))
        window.moments = [other for other in window.moments if other != moment]
        window.save()


def _locked_window(key: str) -> AttemptWindow:
    rows = AttemptWindow.objects.select_for_update()
    return rows.get_or_create(key=key, defaults={"newest_at": timezone.now()})[0]


def _key(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()
