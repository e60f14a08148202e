"""A password that was forgotten, where the installation sends mail.

What is answered is the same whether there is such an account or not, and takes as long: the mail is
a worker's. A name gets one mail a minute, an address of the network asks ten times.
"""

from __future__ import annotations

import hashlib
import logging

from celery import current_app
from django.core.cache import cache
from django.core.mail import EmailMessage

from planner.errors import PlannerError
from planner.models import User
from planner.services.account_notices import tell
from planner.services.audit import record
from planner.services.notices import check_mailbox, link, mail_configured
from planner.services.people import password_path
from planner.services.sessions import sessions_end

logger = logging.getLogger(__name__)

MAIL = "planner.tasks.password_mail"
EVERY_S = 60
FROM_ONE_ADDRESS = 10


def password_forgotten(*, name: str, address: str) -> None:
    """Have a mail sent to the account of that name, if there is one with a mailbox. Raises
    PlannerError for who asks too often."""
    if not mail_configured():
        raise PlannerError("This installation sends no mail; ask an admin for a new password.")
    from_address = f"forgotten-{hashlib.sha256(address.encode()).hexdigest()}"
    cache.add(from_address, 0, EVERY_S)
    if cache.incr(from_address) > FROM_ONE_ADDRESS:
        logger.warning("password mails from %s are refused", address)
        raise PlannerError("Too many mails were asked for from your address; wait a minute.")
    key = f"forgotten-{hashlib.sha256(name.strip().casefold().encode()).hexdigest()}"
    if cache.add(key, 1, EVERY_S):
        current_app.send_task(MAIL, args=[name.strip()[:150]])


def password_mail(*, name: str) -> bool:
    """Whether a mail went out."""
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
    """Theirs was, by themselves; their sessions end, all ``but`` the one of that row."""
    record("user.password", user, by=user)
    tell(user, "Your password was changed.")
    sessions_end(user=user, by=user, but=but)


def mailbox_set(*, user: User, email: str) -> None:
    """Where mails about one's own account go; "" for nowhere."""
    email = email.strip()
    if email:
        check_mailbox(email)
    before, user.email = user.email, email
    if email == before:
        return
    user.save(update_fields=["email"])
    record("user.mailbox", user, by=user)
    # To the old one too: who takes an account over puts theirs in its place.
    for mailbox in filter(None, {before, email}):
        tell(
            user,
            f"Your mailbox is {email or 'none'} now; it was {before or 'none'}.",
            mailbox=mailbox,
        )
