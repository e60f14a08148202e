"""What Django itself does of what the audit log tells: people signing in, tables being made."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from django.http import HttpRequest

from planner.models import User
from planner.services.account_notices import signed_in_from
from planner.services.audit import guard, record
from planner.services.proving import proved
from planner.services.sessions import session_noted


@receiver(user_logged_in)
def _signed_in(user: User, request: HttpRequest, **_: Any) -> None:
    session_noted(request)
    proved(request)
    signed_in_from(user, request)
    record("user.signed-in", user, by=user)


@receiver(user_logged_out)
def _signed_out(user: User | None, **_: Any) -> None:
    if user is not None:
        record("user.signed-out", user, by=user)


@receiver(user_login_failed)
def _refused(credentials: dict[str, Any], **_: Any) -> None:
    record("user.refused", str(credentials.get("username", "")), by=None, rule="log-in")


@receiver(post_migrate)
def _migrated(sender: Any, **_: Any) -> None:
    if sender.label == "planner":
        guard()
