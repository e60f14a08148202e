"""Limit the guessing of passwords, in the sign-in form and in the API's log-in.

Each user name and each network has a limit. A browser that has signed in as somebody before has a
signed cookie, and a limit of its own. So the guesses of others do not lock the owner out.
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
KNOWN_ATTEMPTS = 10  # of one person, in all browsers in which they have signed in before
KNOWN_COOKIE = "headroom_known"
KNOWN_S = 180 * 24 * 3600


class GuessLimit(NamedTuple):
    """A limit on the wrong guesses at one target within a minute."""

    kind: str  # of the target, such as "network"
    target: str  # what is counted: the address of a network, a name or the key of a user
    max_wrong: int  # wrong guesses within a minute
    log_key: str  # what was refused, such as "codes of anna"
    audit_sentence: str
    guess_words: str  # such as "wrong passwords", for the person who gave them
    account_name: str = ""  # the affected account, which may not exist
    remedy: str = ""  # ends the sentence "Try again in 30 seconds"


@contextmanager
def login_attempt(request: HttpRequest, name: str) -> Iterator[None]:
    """Count the block as a failed attempt to sign in as ``name``, unless it succeeds.

    Raises TooManyAttempts with the seconds to wait if a limit is reached.
    """
    name = User.normalize_username(name.strip())[:150]
    address = client_address(request)
    known_user = _user_of_browser(request, name)

    def limit(kind: str, target: str, max_wrong: int, origin: str) -> GuessLimit:
        """Return the limit of ``max_wrong`` wrong passwords for ``target``, of kind ``kind``.

        The kind is known-browser, network or name. ``origin`` describes the target in the log and
        the audit log, such as "from 10.0.0.1".
        """
        scope = "from your network" if kind == "network" else "for this name"
        return GuessLimit(
            kind=kind,
            target=target,
            max_wrong=max_wrong,
            log_key=f"sign-ins {origin}",
            audit_sentence=f"Sign-ins {origin} were refused for a while: {max_wrong} wrong "
            f"passwords within a minute, the last from {address}.",
            guess_words=f"wrong passwords {scope}",
            account_name="" if kind == "network" else name,
            remedy="" if known_user else ", or use a browser that you have signed in with before",
        )

    if known_user:
        origin = f"as {name} from a known browser"
        limits = [limit("known-browser", str(known_user.pk), KNOWN_ATTEMPTS, origin)]
    else:
        limits = [
            limit("network", client_network(request), NETWORK_ATTEMPTS, f"from {address}"),
            limit("name", name.casefold(), NAME_ATTEMPTS, f"as {name}"),
        ]
    with ExitStack() as stack:
        for guess_limit in limits:
            stack.enter_context(guess(guess_limit))
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
def attempt_count(kind: str, target: str, *, limit: int) -> float:
    """Count an attempt at ``target`` (of the kind ``kind``) and return its time (epoch seconds).

    Raises TooManyAttempts with the seconds to wait if ``limit`` were counted within a minute.
    """
    with transaction.atomic():
        window = _locked_window(kind, target)
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
    """Count the block as a wrong guess at the target of ``limit``, unless it succeeds.

    It is not counted either if the block raises TooManyAttempts, since another limit then stopped
    it before the guess. Do not call it within a transaction: a rollback would undo the count.
    Raises TooManyAttempts, and records it, if the limit is reached.
    """
    try:
        moment = attempt_count(limit.kind, limit.target, limit=limit.max_wrong)
    except TooManyAttempts as refusal:
        logger.warning("%r are refused: too many", limit.log_key)
        record_limit_reached(limit.audit_sentence, key=limit.log_key, name=limit.account_name)
        wait = f"Try again in {refusal.wait_s} seconds{limit.remedy}."
        raise TooManyAttempts(refusal.wait_s, f"Too many {limit.guess_words}. {wait}") from None
    try:
        yield
    except TooManyAttempts:
        _forget(limit, moment)
        raise
    _forget(limit, moment)


def attempts_sweep(*, now: datetime) -> int:
    """Remove rows without a recent attempt; return how many were removed."""
    old_rows = AttemptWindow.objects.filter(newest_at__lt=now - timedelta(minutes=10))
    removed, _ = old_rows.delete()
    return removed


def _forget(limit: GuessLimit, moment: float) -> None:
    """Remove the attempt made at ``moment`` (epoch seconds) from the count of ``limit``."""
    with transaction.atomic():
        window = _locked_window(limit.kind, limit.target)
        window.moments = [other for other in window.moments if other != moment]
        window.save()


def _locked_window(kind: str, target: str) -> AttemptWindow:
    """Return the row that counts the attempts at ``target``, locked in this transaction."""
    key = hashlib.sha256(f"{kind} {target}".encode()).hexdigest()
    rows = AttemptWindow.objects.select_for_update()
    window, _ = rows.get_or_create(key=key, defaults={"newest_at": timezone.now()})
    return window
