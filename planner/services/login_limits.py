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


@contextmanager
def login_attempt(request: HttpRequest, name: str) -> Iterator[None]:
    """Count the block as an attempt to sign in as ``name``; successful ones are not counted.

    Raises TooManyAttempts with the delay (s) if a limit is reached.
    """
    name = User.normalize_username(name.strip())[:150]
    address = client_address(request)
    known_user = _known_user(request, name)
    limits = (
        (("known-browser", str(known_user.pk), KNOWN_ATTEMPTS, f"as {name} from a known browser"),)
        if known_user
        else (
            ("network", client_network(request), NETWORK_ATTEMPTS, f"from {address}"),
            ("name", name.casefold(), NAME_ATTEMPTS, f"as {name}"),
        )
    )
    with ExitStack() as stack:
        for kind, text, limit, description in limits:
            try:
                stack.enter_context(failed_attempt(kind, text, limit=limit))
            except TooManyAttempts as refusal:
                logger.warning(
                    "sign-ins %r are refused: too many, last from %s", description, address
                )
                record_limit_reached(
                    f"Sign-ins {description} were refused for a while: {limit} wrong passwords "
                    f"within a minute, the last from {address}.",
                    key=f"sign-ins {description}",
                    name="" if kind == "network" else name,
                )
                scope = "from your network" if kind == "network" else "for this name"
                raise TooManyAttempts(
                    refusal.wait_s,
                    f"Too many wrong passwords {scope}. Try again in {refusal.wait_s} seconds"
                    + (
                        "."
                        if known_user
                        else ", or use a browser that you have signed in with before."
                    ),
                ) from None
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


def _known_user(request: HttpRequest, name: str) -> User | None:
    """Return the user ``name`` if that person has signed in with this browser before."""
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
    """Count the block as an attempt; remove the count if the block succeeds.

    The count is also removed if another limit stops the block before its own attempt.
    """
    moment = attempt_count(kind, text, limit=limit)
    try:
        yield
    except TooManyAttempts:
        _forget(kind, text, moment)
        raise
    _forget(kind, text, moment)


def attempts_sweep(*, now: datetime) -> int:
    """Remove rows without a recent attempt; return how many were removed."""
    return AttemptWindow.objects.filter(newest_at__lt=now - timedelta(minutes=10)).delete()[0]


def _forget(kind: str, text: str, moment: float) -> None:
    """Remove one attempt from the count."""
    with transaction.atomic():
        window = _locked_window(_key(kind, text))
        window.moments = [other for other in window.moments if other != moment]
        window.save()


def _locked_window(key: str) -> AttemptWindow:
    rows = AttemptWindow.objects.select_for_update()
    return rows.get_or_create(key=key, defaults={"newest_at": timezone.now()})[0]


def _key(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()
