"""How often somebody was wrong within a minute: what can be guessed at is refused for a while."""

from __future__ import annotations

import hashlib
import time

from django.core.cache import cache

WITHIN_S = 60.0


def guesses(kind: str, text: str) -> int:
    """Wrong ones within the last minute, of a name, an address or an account."""
    return len(_recent(_key(kind, text)))


def guessed(kind: str, text: str) -> None:
    """One more was wrong."""
    key = _key(kind, text)
    cache.set(key, [*_recent(key), time.time()], WITHIN_S)


def _key(kind: str, text: str) -> str:
    return f"login-{kind}-{hashlib.sha256(text.encode()).hexdigest()}"


def _recent(key: str) -> list[float]:
    return [moment for moment in cache.get(key, []) if moment > time.time() - WITHIN_S]
