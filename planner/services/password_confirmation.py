"""Ask for the password again before important changes of an account.

It is not asked if the person signed in a moment ago. Who finds an open browser, or a token, thus
cannot make these changes.
"""

from __future__ import annotations

import time

from django.http import HttpRequest

from planner.errors import NotAllowed, TooManyAttempts
from planner.models import User
from planner.services.attempts import failed_attempt
from planner.services.audit import record
from planner.services.refused_requests import record_limit_reached

VERIFIED_KEY = "proved-at"  # key of a session: seconds since the epoch
FRESH_S = 900.0
MAX_WRONG = 10  # wrong passwords of one account within a minute
CONFIRM_MESSAGE = "It is some time since you signed in. Give your password once more."


def mark_verified(request: HttpRequest, *, moment: float | None = None) -> None:
    """Store in the session when its person was verified: ``moment`` (s since the epoch), or now."""
    request.session[VERIFIED_KEY] = time.time() if moment is None else moment


def needs_password(request: HttpRequest) -> bool:
    """Return whether the password must be asked for again."""
    age = time.time() - float(request.session.get(VERIFIED_KEY, 0.0))
    return not 0 <= age < FRESH_S


def check_verified(request: HttpRequest, user: User, password: str) -> None:
    """Raise NotAllowed unless the person signed in a moment ago, or this is their password."""
    if not needs_password(request):
        return
    if not user.has_usable_password():
        raise NotAllowed("It is some time since you signed in. Sign in once more, on the page.")
    if not password:
        raise NotAllowed(CONFIRM_MESSAGE)
    try:
        with failed_attempt("again", str(user.pk), limit=MAX_WRONG):
            if not user.check_password(password):
                record("user.refused", user.username, by=None, rule="password, once more")
                raise NotAllowed("The password is wrong.")
    except TooManyAttempts as refusal:
        record_limit_reached(
            f"{MAX_WRONG} wrong passwords of {user.username} were given within a minute, in a "
            "session or with a token of theirs.",
            key=f"passwords of {user.username}",
            name=user.username,
        )
        raise TooManyAttempts(
            refusal.wait_s, f"Too many wrong passwords. Try again in {refusal.wait_s} seconds."
        ) from None
    if request.session.session_key:  # a token has no session to remember it
        mark_verified(request)
