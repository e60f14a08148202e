"""Notices: who is told, how a webhook is signed, what is never called, what becomes of failures."""

import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from planner.errors import NotAllowed, NotFound, PlannerError
from planner.models import Channel, Delivery, User, Workspace
from planner.models.workspace import current_workspace, use_workspace
from planner.services import notifications, outgoing_requests
from tests.local_http import Handler, serving

PUBLIC = "https://hooks.example.com/T1"


class Receiver:
    """A server of this machine that keeps what it is sent, and answers with ``status``."""

    origin = ""

    def __init__(self) -> None:
        self.status, self.got = 200, list[tuple[dict[str, str], bytes]]()


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    listener = Receiver()

    class Hook(Handler):
        def do_POST(self) -> None:
            listener.got.append((dict(self.headers), self.body()))
            self.answer(listener.status, headers={"Location": "http://127.0.0.1:9/"})

    with serving(Hook) as address:
        listener.origin = f"http://{address.replace('127.0.0.1', 'localhost')}"
        settings.HEADROOM_WEBHOOKS = [listener.origin, "127.0.0.0/8", "::1/128"]
        settings.HEADROOM_URL = "https://headroom.example"
        yield listener


def sent(row: Delivery) -> Delivery:
    notifications.notice_send(number=row.pk)
    row.refresh_from_db()
    return row


def webhook(user: User, address: str, **chosen: Any) -> Channel:
    return notifications.channel_add(user=user, kind="webhook", address=address, **chosen)


def test_a_webhook_hears_in_the_shape_of_slack_and_can_check_who_speaks(
    planner: User, receiver: Receiver
) -> None:
    channel = webhook(planner, f"{receiver.origin}/hook")
    assert (
        notifications.notify(current_workspace(), "plan.in-force", "Plan <7> & 8", "/runs/7/") == 1
    )
    row = sent(channel.deliveries.get())
    assert (row.state, row.problem, row.tries) == ("sent", "", 1)
    headers, body = receiver.got[0]
    text = json.loads(body)["text"]
    assert text == "Main: Plan &lt;7&gt; &amp; 8 <https://headroom.example/runs/7/>"
    moment, _, signature = headers["Headroom-Signature"].removeprefix("t=").partition(",v1=")
    key = notifications.signing_key(channel).encode()
    assert signature == hmac.new(key, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert sent(row).tries == 1  # once it is sent nothing is sent again
    assert len(receiver.got) == 1


def test_people_choose_what_they_hear_of_and_only_members_hear(
    planner: User, viewer: User, admin: User, settings: Any
) -> None:
    settings.HEADROOM_WEBHOOKS = ["hooks.example.com"]
    channel_made = webhook(planner, PUBLIC, events=["mention"])
    theirs = webhook(viewer, PUBLIC)
    ours = webhook(admin, PUBLIC, mine=False)
    here = current_workspace()

    def told(event: str, **about: Any) -> set[int]:
        before = set(Delivery.objects.values_list("pk", flat=True))
        notifications.notify(here, event, "x", **about)
        rows = Delivery.objects.exclude(pk__in=before)
        return set(rows.values_list("channel", flat=True))

    assert told("mention") == {channel_made.pk, theirs.pk, ours.pk}
    assert told("digest") == {theirs.pk, ours.pk}
    assert told("mention", people=[planner]) == {channel_made.pk, ours.pk}
    viewer.leave(here)
    assert told("digest") == {ours.pk}
    other = Workspace.objects.create(name="Other", slug="other")
    assert notifications.notify(other, "mention", "x") == 0
    with use_workspace(other):
        assert not Channel.objects.exists() and not Delivery.objects.exists()


def test_an_address_belongs_to_a_person_or_is_an_admin_s(
    planner: User, colleague: User, admin: User, settings: Any
) -> None:
    settings.HEADROOM_WEBHOOKS = ["hooks.example.com"]
    with pytest.raises(NotAllowed):
        webhook(planner, PUBLIC, mine=False)
    own_hook, ours = webhook(planner, PUBLIC), webhook(admin, PUBLIC, mine=False)
    assert notifications.channel_get(planner, own_hook.pk) == own_hook
    assert notifications.channel_get(admin, ours.pk) == ours
    for user, row in ((colleague, own_hook), (admin, own_hook), (colleague, ours)):
        with pytest.raises(NotFound):
            notifications.channel_get(user, row.pk)


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/x",
        "http://hooks.example.com/x",
        "https://hooks.example.com:8443/x",
        "https://hooks.example.com@evil.example/",
        "https://user:secret@hooks.example.com/",
        "file:///etc/passwd",
        "hooks.example.com",
        "https://hooks.example.com:port/",
    ],
)
def test_what_is_not_listed_is_refused_before_any_name_is_looked_up(
    planner: User, settings: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    settings.HEADROOM_WEBHOOKS = ["hooks.example.com"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(PlannerError):
        webhook(planner, address)


def call_hook() -> None:
    allowed = outgoing_requests.parse_allowed(["hooks.example.com"])
    outgoing_requests.request("POST", PUBLIC, allowed, body=b"{}", headers={}, max_bytes=10)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1"]
)
def test_a_listed_name_that_lies_in_a_private_network_is_not_called(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 443))
    private = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [public, private])
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("called"))
    with pytest.raises(outgoing_requests.AddressNotAllowed, match="not public"):
        call_hook()


def test_a_name_is_looked_up_once_and_that_address_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter(["93.184.215.14", "127.0.0.1"])
    called = []

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 443))]

    def connect(address: tuple[str, int], **_: Any) -> socket.socket:
        called.append(address)
        raise ConnectionRefusedError("no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(outgoing_requests.Unreachable):
        call_hook()
    assert called == [("93.184.215.14", 443)]


@pytest.mark.parametrize(
    ("status", "state", "says"),
    [
        (302, "failed", "redirects are not followed"),
        (404, "failed", "status 404"),
        (503, "waiting", "status 503"),
    ],
)
def test_a_redirect_is_not_followed_and_what_may_pass_is_tried_again(
    planner: User, receiver: Receiver, status: int, state: str, says: str
) -> None:
    receiver.status = status
    row = sent(notifications.channel_test(channel=webhook(planner, receiver.origin)))
    assert row.state == state and says in row.problem and len(receiver.got) == 1


def test_a_failure_is_tried_again_ever_later_and_in_the_end_shown(
    planner: User, receiver: Receiver
) -> None:
    receiver.status = 500
    row = notifications.channel_test(channel=webhook(planner, receiver.origin))
    waits = []
    while sent(row).state == "waiting":
        waits.append(round((row.due_at - timezone.now()) / timedelta(minutes=1)))
        assert notifications.notices_sweep() == 0  # not before it is due
        Delivery.objects.filter(pk=row.pk).update(due_at=timezone.now())
    assert waits == [1, 4, 16, 64, 256] and row.state == "failed"
    receiver.status = 200
    Delivery.objects.filter(pk=row.pk).update(state="waiting", due_at=timezone.now())
    assert notifications.notices_sweep() == 1
    Delivery.objects.update(created_at=timezone.now() - notifications.KEPT_FOR - timedelta(days=1))
    notifications.notices_sweep()
    assert not Delivery.objects.exists()


def test_mail_goes_where_the_operator_lets_it(planner: User, settings: Any) -> None:
    def add(address: str) -> Channel:
        return notifications.channel_add(user=planner, kind="email", address=address)

    with pytest.raises(PlannerError, match="sends no mail"):
        add("pia@example.com")
    settings.HEADROOM_SMTP = "smtp://mail.example.com"
    settings.HEADROOM_URL = "https://headroom.example"
    settings.HEADROOM_MAIL_DOMAINS = ["example.com"]
    for wrong in ("pia", "pia@elsewhere.example", "a@example.com\nBcc: b@example.com"):
        with pytest.raises(PlannerError):
            add(wrong)
    channel = add("pia@example.com")
    notifications.notify(current_workspace(), "digest", "All well.", "/")
    assert sent(channel.deliveries.get()).state == "sent"
    assert mail.outbox[0].subject == "[Headroom Main] The weekly digest"
    assert mail.outbox[0].to == ["pia@example.com"]
    assert mail.outbox[0].body == "All well.\n\nhttps://headroom.example/"
