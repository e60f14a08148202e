"""Reset forgotten passwords by mail, if the installation sends mail.

Whether the account exists or not, the answer is the same and takes the same time, because a worker
sends the mail. A name gets one mail a minute, and a network may request ten.

Sensitive changes need the password again, unless the user gave it within FRESH_S. So a person who
finds an open browser, or a token, cannot make them.
"""

import logging
import time
from contextlib import suppress

from django.core.mail import EmailMessage
from django.http import HttpRequest

from planner.errors import NotAllowed, PlannerError, TooManyAttempts
from planner.models import User
from planner.services.audit import record
from planner.services.login_limits import GuessLimit, attempt_count, guess
from planner.services.messages import send_task
from planner.services.notifications import check_mailbox, mail_configured, site_url
from planner.services.people import password_path
from planner.services.sessions import sessions_end

VERIFIED_KEY = "proved-at"  # in a session: when its user gave the password, in epoch seconds
FRESH_S = 900.0  # for this time, a password need not be given again
MAX_WRONG = 10  # wrong passwords of one account within a minute
CONFIRM_MESSAGE = "Confirm your password to continue. Give your password once more."
logger = logging.getLogger(__name__)
MAIL_TASK = "planner.tasks.password_mail"
MAX_PER_NETWORK = 10  # most mails within a minute


def password_forgotten(*, name: str, network: str) -> None:
    """Have a worker mail a link for a new password to the account ``name``, if it has a mailbox.

    Raises PlannerError if the network asks too often, or if this installation sends no mail.
    """
    if not mail_configured():
        raise PlannerError("This installation sends no mail. Ask an admin for a new password.")
    try:
        attempt_count("forgotten-network", network, limit=MAX_PER_NETWORK)
    except TooManyAttempts as refusal:
        logger.warning("password mails asked for from %s are refused", network)
        raise PlannerError(
            f"Too many mails from your network. Try again in {refusal.wait_s} seconds."
        ) from None
    with suppress(TooManyAttempts):  # a mail was sent less than a minute ago
        attempt_count("forgotten-name", name.strip().casefold(), limit=1)
        send_task(MAIL_TASK, args=[name.strip()[:150]])


def password_mail(*, name: str) -> bool:
    """Mail the account ``name`` a link for a new password; return False if it has no mailbox."""
    person = User.objects.filter(username=name, is_active=True).exclude(email="").first()
    if person is None or not mail_configured():
        return False
    text = (
        f"Choose a new password for {person.username} here; the address works once, for three "
        f"days:\n\n{site_url(password_path(person))}\n\nIf you did not ask for it, do nothing."
    )
    EmailMessage("[Headroom] A new password", text, to=[person.email]).send()
    return True


def password_changed(*, user: User, except_key: str = "") -> None:
    """Record a changed password, and end all of the user's sessions but that of ``except_key``."""
    record("user.password", user, by=user)
    sessions_end(user=user, by=user, except_key=except_key)


def mailbox_set(*, user: User, email: str) -> None:
    """Set the mailbox for password mails; "" removes it."""
    email = email.strip()
    if email:
        check_mailbox(email)
    if email == user.email:
        return
    user.email = email
    user.save(update_fields=["email"])
    record("user.mailbox", user, by=user)


def mark_verified(request: HttpRequest, *, moment: float | None = None) -> None:
    """Store in the session when its user was last verified: ``moment`` (epoch s); None: now."""
    request.session[VERIFIED_KEY] = time.time() if moment is None else moment


def needs_password(request: HttpRequest) -> bool:
    """Return whether the user must enter the password again before this action."""
    age = time.time() - float(request.session.get(VERIFIED_KEY, 0.0))
    return not 0 <= age < FRESH_S


def check_verified(request: HttpRequest, user: User, password: str) -> None:
    """Raise NotAllowed unless the user was verified recently, or ``password`` is correct."""
    if not needs_password(request):
        return
    if not user.has_usable_password():
        raise NotAllowed("Confirm your password to continue. Sign in once more, on the page.")
    if not password:
        raise NotAllowed(CONFIRM_MESSAGE)
    limit = GuessLimit(
        kind="again",
        target=str(user.pk),
        max_wrong=MAX_WRONG,
        log_key=f"passwords of {user.username}",
        audit_sentence=f"{MAX_WRONG} wrong passwords of {user.username} were given within a "
        "minute, in a session or with a token of theirs.",
        guess_words="wrong passwords",
        account_name=user.username,
    )
    with guess(limit):
        if not user.check_password(password):
            record("user.refused", user.username, by=None, rule="password, once more")
            raise NotAllowed("The password is wrong.")
    if request.session.session_key:  # a token has no session to remember it
        mark_verified(request)
