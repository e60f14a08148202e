"""Sessions: listed with where they are used, ended, and of no use to who reads the database."""

from datetime import timedelta

from django.conf import settings
from django.test import Client
from django.utils import timezone

from planner.models import Session, User
from planner.services.sessions import SEEN_INTERVAL, key_hash, sessions_sweep
from tests.planner.web.pages import signed_in, text_of

PAGE = "/account/sessions/"


def cookie_of(client: Client) -> str:
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def by_form(password: str = "pia-secret", **headers: str) -> Client:
    client = Client(**headers)
    assert client.post("/login/", {"username": "pia", "password": password}).status_code == 302
    return client


def test_what_the_database_holds_signs_nobody_in(planner: User) -> None:
    client = signed_in(planner)
    row = Session.objects.get()
    assert row.pk == key_hash(cookie_of(client)) and row.user == planner
    thief = Client()
    thief.cookies[settings.SESSION_COOKIE_NAME] = row.pk
    assert client.get("/runs/").status_code == 200
    assert thief.get("/runs/").status_code == 302


def test_the_page_lists_them_and_ends_one_or_all_others(planner: User, viewer: User) -> None:
    here = by_form(REMOTE_ADDR="192.0.2.7")
    there = by_form(REMOTE_ADDR="2001:db8::1")
    third = by_form()
    other = signed_in(viewer)
    shown = text_of(here.get(PAGE))
    assert "192.0.2.7 this session" in shown
    assert "2001:db8::1" in shown
    foreign = here.post(PAGE, {"end": key_hash(cookie_of(other))})
    assert foreign.status_code == 404 and other.get("/runs/").status_code == 200
    here.post(PAGE, {"end": key_hash(cookie_of(there))})
    assert [visitor.get("/runs/").status_code for visitor in (here, there, third)] == [
        200,
        302,
        200,
    ]
    here.post(PAGE)
    assert [visitor.get("/runs/").status_code for visitor in (here, third, other)] == [
        200,
        302,
        200,
    ]


def test_where_one_is_used_is_written_once_a_minute_and_when_it_moves(planner: User) -> None:
    client = signed_in(planner)
    client.get("/glossary/")
    first = Session.objects.get()
    client.get("/glossary/")
    assert Session.objects.get().last_used_at == first.last_used_at
    client.get("/glossary/", REMOTE_ADDR="192.0.2.9")
    moved = Session.objects.get()
    assert (moved.address, moved.created_at) == ("192.0.2.9", first.created_at)
    Session.objects.update(last_used_at=first.last_used_at - SEEN_INTERVAL)
    client.get("/glossary/", REMOTE_ADDR="192.0.2.9")
    assert Session.objects.get().last_used_at > first.last_used_at


def test_use_does_not_put_off_the_end(planner: User) -> None:
    client = signed_in(planner)
    early = timezone.now() - timedelta(seconds=settings.SESSION_COOKIE_AGE - 60)
    Session.objects.update(created_at=early)
    session = client.session
    session["workspace"] = "main"
    session.save()
    row = Session.objects.get()
    assert row.expire_date == early + timedelta(seconds=settings.SESSION_COOKIE_AGE)
    assert sessions_sweep(now=row.expire_date - timedelta(seconds=1)) == 0
    assert sessions_sweep(now=row.expire_date + timedelta(seconds=1)) == 1
    assert client.get("/runs/").status_code == 302


def test_a_changed_password_ends_all_but_the_one_that_changed_it(planner: User) -> None:
    here, there = by_form(), by_form()
    new = "a longer phrase 7"
    fields = {"old_password": "pia-secret", "new_password1": new, "new_password2": new}
    assert here.post("/account/password/", fields).status_code == 302
    assert Session.objects.get().pk == key_hash(cookie_of(here))
    assert [visitor.get("/runs/").status_code for visitor in (here, there)] == [200, 302]


def test_signing_out_removes_the_row(planner: User) -> None:
    client = by_form()
    client.post("/logout/")
    assert not Session.objects.filter(user=planner).exists()
