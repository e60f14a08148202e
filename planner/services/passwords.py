"""Reset forgotten passwords by mail, if the installation sends mail.

The answer is the same, and takes the same time, whether the account exists or not, because a worker
sends the mail. A name gets one mail a minute, and one network may ask for ten.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from celery import current_app
from django.core.mail import EmailMessage

from planner.errors import PlannerError, TooManyAttempts
from planner.models import User
from planner.services.attempts import attempt_count
from planner.services.audit import record
from planner.services.notifications import (
    check_mailbox,
    link,
    mail_configured,
)
from planner.services.people import password_path
from planner.services.sessions import sessions_end

logger = logging.getLogger(__name__)

MAIL = "planner.tasks.password_mail"
FROM_ONE_NETWORK = 10  # most mails within a minute


def password_forgotten(*, name: str, network: str) -> None:
    """Have a mail sent to the account of that name, if it exists and has a mailbox.

    Raises PlannerError for a network that asks too often.
    """
    if not mail_configured():
        raise PlannerError("This installation sends no mail; ask an admin for a new password.")
    try:
        attempt_count("forgotten-network", network, most=FROM_ONE_NETWORK)
    except TooManyAttempts as refusal:
        logger.warning("password mails asked for from %s are refused", network)
        raise PlannerError(
            f"Too many mails were asked for from your network. Try again in {refusal.wait_s} "
            "seconds."
        ) from None
    with suppress(TooManyAttempts):  # a mail was sent less than a minute ago
        attempt_count("forgotten-name", name.strip().casefold(), most=1)
        current_app.send_task(MAIL, args=[name.strip()[:150]])


def password_mail(*, name: str) -> bool:
    """Send the mail; return whether one was sent."""
    person = User.objects.filter(username=name, is_active=True).exclude(email="").first()
    if person is None or not mail_configured():
        return False
    text = (
        f"Choose a new password for {person.username} here; the address works once, for three "
        f"days:\n\n{link(password_path(person))}\n\nIf you did not ask for it, do nothing."
    )
    EmailMessage("[Headroom] A new password", text, to=[person.email]).send()
    return True


def password_changed(*, user: User, but: str = "") -> None:
    """Record that users changed their password, and end their sessions except the row ``but``."""
    record("user.password", user, by=user)
    sessions_end(user=user, by=user, but=but)


def mailbox_set(*, user: User, email: str) -> None:
    """Set the address that gets the mail for a new password; "" for none."""
    email = email.strip()
    if email:
        check_mailbox(email)
    if email == user.email:
        return
    user.email = email
    user.save(update_fields=["email"])
    record("user.mailbox", user, by=user)
