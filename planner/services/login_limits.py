"""Limit the guessing of passwords, in the sign-in form and in the API's log-in.

A name and a network each have a limit. A browser that has signed in as somebody before carries a
signed cookie and has its own limit. A stranger's guesses thus do not lock the owner out.
"""

import hashlib
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from planner.errors import TooManyAttempts
from planner.models import AttemptWindow, User
from planner.services.client_address import client_address, client_network
from planner.services.refused_requests import record_limit_reached

WINDOW_S = 65.0  # the minute that limits promise, and the time that an attempt may take
logger = logging.getLogger(__name__)
NAME_ATTEMPTS = 10  # wrong passwords of one name in a minute, against guesses at one account
NETWORK_ATTEMPTS = 60  # of any names, against one password tried on every account
KNOWN_ATTEMPTS = 10  # of one person, by all browsers that know them
KNOWN_COOKIE = "headroom_known"
KNOWN_S = 180 * 24 * 3600


class GuessLimit(NamedTuple):
    """A limit on the wrong guesses at one target within a minute."""

    kind: str  # of the target
    target: str
    most: int
    key: str  # what was refused, such as "codes of anna"
    record: str  # sentence for the audit log
    words: str  # what was given too often, for the person who gave it
    name: str = ""  # the affected account, which may not exist
    remedy: str = ""


@contextmanager
def login_attempt(request: HttpRequest, name: str) -> Iterator[None]:
    """Count the block as an attempt to sign in as ``name``; successful ones are not counted.

    Raises TooManyAttempts with the delay (s) if a limit is reached.
    """
    name = User.normalize_username(name.strip())[:150]
    address = client_address(request)

    def limit(kind: str, target: str, most: int, origin: str) -> GuessLimit:
        """Return the limit of ``most`` wrong passwords of ``target``, a network or a name.

        ``origin`` names the target in the log.
        """
        scope = "from your network" if kind == "network" else "for this name"
        return GuessLimit(
            kind=kind,
            target=target,
            most=most,
            key=f"sign-ins {origin}",
            record=f"Sign-ins {origin} were refused for a while: {most} wrong passwords within a "
            f"minute, the last from {address}.",
            words=f"wrong passwords {scope}",
            name="" if kind == "network" else name,
            remedy="" if known_user else ", or use a browser that you have signed in with before",
        )

    known_user = _user_of_browser(request, name)
    with ExitStack() as stack:
        if known_user:
            origin = f"as {name} from a known browser"
            limits = [limit("known-browser", str(known_user.pk), KNOWN_ATTEMPTS, origin)]
        else:
            limits = [
                limit("network", client_network(request), NETWORK_ATTEMPTS, f"from {address}"),
                limit("name", name.casefold(), NAME_ATTEMPTS, f"as {name}"),
            ]
        for each in limits:
            stack.enter_context(guess(each))
        try:
            yield
        except Exception:
            logger.warning("sign-in failed as %r from %s", name, address)
            raise


def remember_browser(response: HttpResponse, user_id: str) -> None:
    """Set the cookie by which the sign-in form recognises this browser later."""
    response.set_cookie(
        KNOWN_COOKIE,
        signing.dumps(user_id, salt=KNOWN_COOKIE),
        max_age=KNOWN_S,
        path=reverse("web:login"),
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _user_of_browser(request: HttpRequest, name: str) -> User | None:
    """Return the user ``name`` if they signed in with this browser before; else None."""
    try:
        user_id = signing.loads(
            request.COOKIES.get(KNOWN_COOKIE, ""), salt=KNOWN_COOKIE, max_age=KNOWN_S
        )
    except signing.BadSignature:
        return None
    return User.objects.filter(pk=user_id, username=name).first()


# An attempt is counted before it is made, under the lock of its row, so that parallel attempts
# cannot pass the limit together.
def attempt_count(kind: str, text: str, *, limit: int) -> float:
    """Count an attempt at ``text`` and return its time (epoch seconds).

    Raises TooManyAttempts, with the seconds to wait, if there were ``limit`` within the last
    minute.
    """
    with transaction.atomic():
        window = _locked_window(kind, text)
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
def guess(limit: GuessLimit) -> Iterator[None]:
    """Count the block as an attempt at ``limit``; remove the count if the block succeeds.

    The count is also removed if another limit stops the block before its own attempt. Do not call
    it within a transaction, because a rollback would undo the count. Raises TooManyAttempts, and
    records it, if the limit is reached.
    """
    try:
        moment = attempt_count(limit.kind, limit.target, limit=limit.most)
    except TooManyAttempts as refusal:
        logger.warning("%r are refused: too many", limit.key)
        record_limit_reached(limit.record, key=limit.key, name=limit.name)
        wait = f"Try again in {refusal.wait_s} seconds{limit.remedy}."
        raise TooManyAttempts(refusal.wait_s, f"Too many {limit.words}. {wait}") from None
    try:
        yield
    except TooManyAttempts:
        _forget(limit, moment)
        raise
    _forget(limit, moment)


def attempts_sweep(*, now: datetime) -> int:
    """Remove rows without a recent attempt; return how many were removed."""
    return AttemptWindow.objects.filter(newest_at__lt=now - timedelta(minutes=10)).delete()[0]


def _forget(limit: GuessLimit, moment: float) -> None:
    """Remove one attempt from the count."""
    with transaction.atomic():
        window = _locked_window(limit.kind, limit.target)
        window.moments = [other for other in window.moments if other != moment]
        window.save()


def _locked_window(kind: str, text: str) -> AttemptWindow:
    key = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()
    rows = AttemptWindow.objects.select_for_update()
    return rows.get_or_create(key=key, defaults={"newest_at": timezone.now()})[0]
