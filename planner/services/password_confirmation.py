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
from planner.services.refused_requests import limit_reached

PROVED = "proved-at"  # key of a session: seconds since the epoch
FRESH_S = 900.0
WRONG = 10  # wrong passwords of one account within a minute
ASKED = "It is some time since you signed in; give your password once more."


def proved(request: HttpRequest, *, moment: float | None = None) -> None:
    """Store in the session when its person was verified: ``moment`` (s since the epoch), or now."""
    request.session[PROVED] = time.time() if moment is None else moment


def is_asked_again(request: HttpRequest) -> bool:
    """Return whether the password must be asked for again."""
    age = time.time() - float(request.session.get(PROVED, 0.0))
    return not 0 <= age < FRESH_S


def check_again(request: HttpRequest, user: User, password: str) -> None:
    """Raise NotAllowed unless the person signed in a moment ago, or this is their password."""
    if not is_asked_again(request):
        return
    if not user.has_usable_password():
        raise NotAllowed("It is some time since you signed in; sign in once more, on the page.")
    if not password:
        raise NotAllowed(ASKED)
    try:
        with failed_attempt("again", str(user.pk), most=WRONG):
            if not user.check_password(password):
                record("user.refused", user.username, by=None, rule="password, once more")
                raise NotAllowed("The password is wrong.")
    except TooManyAttempts as refusal:
        limit_reached(
            f"{WRONG} wrong passwords of {user.username} were given within a minute, in a session "
            "or with a token of theirs.",
            key=f"passwords of {user.username}",
            name=user.username,
        )
        raise TooManyAttempts(
            refusal.wait_s, f"Too many wrong passwords. Try again in {refusal.wait_s} seconds."
        ) from None
    if request.session.session_key:  # a token has no session to remember it
        proved(request)
