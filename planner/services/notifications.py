"""Notify people by e-mail and by webhooks in the format of Slack.

``notify`` writes one row per address and has the workers send it after the transaction commits. A
failed delivery is tried again after 1, 4, 16 ... minutes, MAX_TRIES times, and stays visible. A
webhook is signed: ``Headroom-Signature: t=SECONDS,v1=HEX``, where HEX is the HMAC-SHA256 of
``SECONDS.BODY`` under the channel's key.
"""

import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from planner.errors import NotFound, PlannerError
from planner.models import Channel, Delivery, Event, Firing, Outcome, User, Workspace
from planner.models.workspace import current_workspace, use_workspace
from planner.services import outgoing_requests
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.messages import send_task

SEND_TASK = "planner.tasks.notice_send"
MAX_TRIES = 6
FIRST_WAIT = timedelta(minutes=1)
LEASE = timedelta(minutes=5)  # after this time a sender that did not finish is taken for dead
KEPT_FOR = timedelta(days=30)
MAX_CHANNELS = 20  # most addresses of a person, and of a workspace
ANSWER_BYTES = 2_000  # of a receiver's answer that are read
RETRIED_STATUSES = (408, 425, 429)  # worth another try, as is every status above 499
# Characters that Slack reads as markup.
MARKUP_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
WEEK = timedelta(days=7)
# Firings of the digest that are listed one by one.
LISTED_STATES = (Firing.State.REVIEW, Firing.State.FAILED, Firing.State.MISSED)
MAX_LINES = 20  # lines of the digest per kind of event


class SendFailed(PlannerError):
    """An error for a delivery that failed and is not worth another try."""


def notify(
    workspace: Workspace, event: str, text: str, url: str = "", *, people: Iterable[User] = ()
) -> int:
    """Notify the subscribers of ``event`` in a workspace; return the number of addresses.

    ``event`` is one of models.notification.Event, and ``url`` a path on this site. If ``people``
    are given, nobody else gets a message at a personal address.
    """
    event = Event(event).value
    may_enter = Q(user__memberships__workspace=workspace) | Q(user__is_superuser=True)
    recipients = may_enter & Q(user__is_active=True)
    if people_ids := [person.pk for person in people]:
        recipients &= Q(user__in=people_ids)
    with use_workspace(workspace):
        channels = Channel.objects.filter(Q(user=None) | recipients).distinct()
        subscribed = [row for row in channels if not row.events or event in row.events]
        for channel in subscribed:
            _queue_delivery(channel, event, text, url)
    return len(subscribed)


def channel_add(
    *, user: User, kind: str, address: str, events: Sequence[str] = (), mine: bool = True
) -> Channel:
    """Add a personal address; with ``mine`` false, an address of the workspace, as an admin."""
    if not mine:
        check_may_administer(user)
    if kind not in Channel.Kind.values:
        raise PlannerError(f"kind {kind!r}: choose from {', '.join(Channel.Kind.values)}.")
    if unknown := [event for event in events if event not in Event.values]:
        raise PlannerError(f"events: {unknown[0]!r} is none of {', '.join(Event.values)}.")
    row = Channel(
        kind=kind,
        address=address.strip(),
        events=sorted(set(events)),
        user=user if mine else None,
        by=user,
        salt=secrets.token_hex(16),
    )
    _check_address(row)
    if Channel.objects.filter(user=row.user).count() >= MAX_CHANNELS:
        raise PlannerError(
            f"You already have {MAX_CHANNELS} addresses, the maximum. Remove one first."
        )
    row.save()
    record("channel.added", row, by=user, kind=row.kind, mine=mine)
    return row


def channel_get(user: User, number: int) -> Channel:
    """Return a user's own channel or, for admins, one of the workspace; else raise NotFound."""
    owned = Q(user=user)
    if user.may_administer:
        owned |= Q(user=None)  # of the workspace
    row = Channel.objects.filter(owned, pk=number).first()
    if row is None:
        raise NotFound(f"There is no notification address {number}.")
    return row


def channel_remove(*, user: User, channel: Channel) -> None:
    """Remove an address with its deliveries."""
    record("channel.removed", channel, by=user, kind=channel.kind)
    channel.delete()


def channel_test(*, channel: Channel) -> Delivery:
    """Send a test message now."""
    text = f"Notices of workspace {current_workspace().name} reach this address."
    return _queue_delivery(channel, Event.TEST, text, "")


def signing_key(channel: Channel) -> str:
    """Return the key that signs messages to a channel, which its receiver needs to check them.

    It is derived from the installation's SECRET_KEY, so a reader of the database cannot sign.
    """
    return salted_hmac(
        "planner.notices", f"{channel.pk}:{channel.salt}", algorithm="sha256"
    ).hexdigest()


def notice_send(*, number: int) -> str:
    """Try to send the delivery ``number`` once; return its new state.

    If it is not due, or another worker is sending it, do nothing and return "".
    """
    now = timezone.now()
    due = Delivery.everywhere.filter(pk=number, state=Delivery.State.WAITING, due_at__lte=now)
    if not due.update(due_at=now + LEASE, tries=F("tries") + 1):
        return ""
    row = Delivery.everywhere.select_related("channel", "workspace").get(pk=number)
    row.problem = ""
    try:
        _send(row)
        row.state, row.sent_at = Delivery.State.SENT, timezone.now()
    except (PlannerError, OSError) as error:  # errors of SMTP are OSErrors
        row.problem = str(error)[:500]
        is_final = isinstance(error, (SendFailed, outgoing_requests.AddressNotAllowed))
        if is_final or row.tries >= MAX_TRIES:
            row.state = Delivery.State.FAILED
        else:
            row.due_at = timezone.now() + FIRST_WAIT * 4 ** (row.tries - 1)
    row.save(update_fields=["state", "problem", "due_at", "sent_at"])
    return row.state


def notices_sweep() -> int:
    """Send due deliveries and remove old ones; return the number of deliveries tried."""
    now = timezone.now()
    Delivery.everywhere.filter(created_at__lt=now - KEPT_FOR).delete()
    due = Delivery.everywhere.filter(state=Delivery.State.WAITING, due_at__lte=now)
    numbers = list(due.order_by("due_at").values_list("pk", flat=True)[:100])
    for number in numbers:
        notice_send(number=number)
    return len(numbers)


def _queue_delivery(channel: Channel, event: str, text: str, url: str) -> Delivery:
    """Store a delivery, and queue it once the transaction is committed."""
    row = Delivery.objects.create(
        channel=channel, event=event, text=text, url=url, due_at=timezone.now()
    )
    # Before the commit, a worker would not find the row.
    transaction.on_commit(partial(send_task, SEND_TASK, args=[row.pk]))
    return row


def _send(row: Delivery) -> None:
    """Send a notification by webhook or email; raise an error if that fails."""
    # Checked again: the operator may have changed the list of allowed addresses since.
    _check_address(row.channel)
    if row.channel.kind == Channel.Kind.WEBHOOK:
        _send_webhook(row)
        return
    subject = f"[Headroom {row.workspace.name}] {row.get_event_display()}"
    text = f"{row.text}\n\n{site_url(row.url)}".strip()
    EmailMessage(subject, text, to=[row.channel.address]).send()


def _send_webhook(row: Delivery) -> None:
    """Send a delivery to a webhook, with a signature."""
    text = f"{row.workspace.name}: {row.text}".translate(MARKUP_ESCAPES)
    if address := site_url(row.url):
        text += f" <{address}>"
    body = json.dumps({"text": text}).encode()
    sent_s = str(int(timezone.now().timestamp()))
    signature = hmac.new(
        signing_key(row.channel).encode(), f"{sent_s}.".encode() + body, hashlib.sha256
    )
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Headroom",
        "Headroom-Event": row.event,
        "Headroom-Workspace": row.workspace.slug,
        # the same at each try, so receivers can detect duplicates
        "Headroom-Delivery": str(row.pk),
        "Headroom-Signature": f"t={sent_s},v1={signature.hexdigest()}",
    }
    status = outgoing_requests.request(
        "POST", row.channel.address, _allowed_addresses(),
        body=body, headers=headers, max_bytes=ANSWER_BYTES,
    ).status  # fmt: skip
    if status in RETRIED_STATUSES or status >= 500:
        raise outgoing_requests.Unreachable(f"It answered with status {status}.")
    if not 200 <= status < 300:
        raise SendFailed(f"It answered with status {status}; redirects are not followed.")


def site_url(path: str) -> str:
    """Return the full URL of a path on this site; the path alone if the site has no address."""
    return f"{settings.HEADROOM_URL}{path}" if path and settings.HEADROOM_URL else path


def mail_configured() -> bool:
    """Return whether this installation sends mail."""
    return bool(settings.HEADROOM_SMTP)


def _allowed_addresses() -> outgoing_requests.AllowList:
    return outgoing_requests.parse_allowed(settings.HEADROOM_WEBHOOKS)


def _check_address(row: Channel) -> None:
    """Raise an error if the operator no longer allows the channel's address."""
    if row.kind == Channel.Kind.WEBHOOK:
        outgoing_requests.check_listed(row.address, _allowed_addresses())
    elif not mail_configured():
        raise SendFailed("This installation sends no mail; an operator sets HEADROOM_SMTP.")
    else:
        check_mailbox(row.address)


def check_mailbox(address: str) -> None:
    """Raise PlannerError for an invalid mailbox, or one outside the operator's domains."""
    try:
        validate_email(address)
    except ValidationError:
        raise PlannerError(f"{address[:80]!r} is not an e-mail address.") from None
    domains = settings.HEADROOM_MAIL_DOMAINS
    _, _, domain = address.rpartition("@")
    if domains and domain.lower() not in domains:
        raise PlannerError(f"Mail goes to {', '.join(domains)} alone; {address[:80]} is elsewhere.")


def digest_text(*, now: datetime) -> str:
    """Return the text of the digest about the seven days before ``now``."""
    return "\n".join(_digest_lines(now))


def digest_send(*, now: datetime) -> None:
    """Send the digest about the seven days before ``now`` to its subscribers."""
    notify(current_workspace(), Event.DIGEST, digest_text(now=now), "/schedules/")


def _digest_lines(now: datetime) -> Iterator[str]:
    """Yield the lines: active plans, how schedules fired, and outcomes of plans that ended."""
    since = now - WEEK
    dates = f"{since:%Y-%m-%d} to {now:%Y-%m-%d} (UTC)"
    yield f"Headroom, {dates}, workspace {current_workspace().name}."
    from planner.selectors.active_plans import active_plans  # slow to import, for one mail a week

    plans = active_plans()
    if not plans:
        yield "No plan is active."
    for plan in plans:
        ends = f" until {plan.ends:%Y-%m-%d %H:%M} UTC" if plan.repeat == "once" else ""
        policy = plan.label or plan.policy
        yield f"Active: run {plan.number} of {plan.scenario}, {policy}, {plan.repeat}{ends}."
    yield from _firing_lines(Firing.objects.filter(due_at__gt=since, due_at__lte=now))
    ended = Outcome.objects.filter(ends__gt=since, ends__lte=now)
    outcomes = ended.exclude(state=Outcome.State.RUNNING)
    for outcome in outcomes[:MAX_LINES]:
        yield f"- {outcome.begins:%Y-%m-%d} to {outcome.ends:%Y-%m-%d}: {outcome.words}"
    if not outcomes:
        yield "No plan ended with known traffic."


def _firing_lines(firings: QuerySet[Firing]) -> Iterator[str]:
    """Yield how often schedules fired, and a line for each firing that needs attention."""
    fired = list(firings.select_related("schedule"))
    if not fired:
        yield "No schedule fired."
        return
    counts = Counter(firing.get_state_display().lower() for firing in fired)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    yield f"Schedules fired {len(fired)} times: {states}."
    listed = [firing for firing in fired if firing.state in LISTED_STATES]
    for firing in listed[:MAX_LINES]:
        when = f"{firing.due_at:%Y-%m-%d %H:%M} UTC"
        yield f"- {firing.schedule.name}, {when}: {firing.get_state_display()}. {firing.words}"
