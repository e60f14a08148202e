"""People hear of what changes about how they sign in: in the product, and by mail where the
installation sends mail and they keep a mailbox.

A mail that does not go out is tried again for a day; the row is what is sent from, so a worker that
dies loses none.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from planner.errors import PlannerError
from planner.models import AccountNotice, KnownBrowser, User
from planner.services.notices import check_mailbox, link, mail_configured
from planner.whence import address_of, browser_of, network_of

logger = logging.getLogger(__name__)

AGAIN = timedelta(minutes=5)  # after which a mail is tried again, by whom a dead worker left it to
GIVEN_UP = timedelta(days=1)
KEPT = timedelta(days=180)
FORGOTTEN = timedelta(days=365)  # a browser that was not used for so long
NOT_YOU = (
    "If it was not you, change your password, end your other sessions and your tokens, and tell an "
    "admin."
)


def tell(user: User, text: str, *, mailbox: str | None = None) -> AccountNotice:
    """``mailbox``: another than theirs of now."""
    to = user.email if mailbox is None else mailbox
    due = timezone.now() if to and mail_configured() else None
    return AccountNotice.objects.create(user=user, text=text[:300], mailbox=to, mail_due=due)


def signed_in_from(user: User, request: HttpRequest) -> None:
    """Told, unless this browser was seen in this network before; of the very first nobody is."""
    browser, address = browser_of(request), address_of(request)
    _, new = KnownBrowser.objects.update_or_create(
        user=user,
        browser=browser,
        network=network_of(address),
        defaults={"seen_at": timezone.now()},
    )
    if new and user.known_browsers.count() > 1:
        tell(user, f"You signed in by {browser} at {address}, where you had not before.")


def notices_of(user: User) -> QuerySet[AccountNotice]:
    """The newest first."""
    return AccountNotice.objects.filter(user=user)


def seen(user: User) -> None:
    notices_of(user).filter(seen_at=None).update(seen_at=timezone.now())


def account_mails_send(*, now: datetime) -> int:
    """Send what is due, and forget what is long over; returns how many mails went out."""
    AccountNotice.objects.filter(at__lt=now - KEPT).delete()
    KnownBrowser.objects.filter(seen_at__lt=now - FORGOTTEN).delete()
    due = AccountNotice.objects.filter(mail_due__lte=now).select_related("user")
    return sum(_sent(notice, now) for notice in due.order_by("pk")[:100])


def _sent(notice: AccountNotice, now: datetime) -> bool:
    row = AccountNotice.objects.filter(pk=notice.pk)
    if not row.filter(mail_due__lte=now).update(mail_due=now + AGAIN):
        return False  # another worker has it
    try:
        check_mailbox(notice.mailbox)  # the operator's domains may be others since
        _mail(notice)
    except (PlannerError, OSError) as failed:
        over = now > notice.at + GIVEN_UP or not isinstance(failed, OSError)  # SMTP's are OSErrors
        logger.warning("mail to %s: %s%s", notice.user, failed, "; given up" if over else "")
        if over:
            row.update(mail_due=None)
        return False
    row.update(mail_due=None)
    return True


def _mail(notice: AccountNotice) -> None:
    text = (
        f"{notice.user.username}, at {notice.at:%Y-%m-%d %H:%M} UTC: {notice.text}\n\n{NOT_YOU}\n\n"
        f"{link(reverse('web:sessions'))}"
    )
    subject = "[Headroom] About your account"
    EmailMessage(subject, text, settings.DEFAULT_FROM_EMAIL, [notice.mailbox]).send()
