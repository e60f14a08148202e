"""Handle Django signals: record sign-ins, guard new tables, check texts before they are stored."""

from collections.abc import Collection
from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import CharField, JSONField, Model, TextField
from django.db.models.signals import post_migrate, pre_save
from django.dispatch import receiver
from django.http import HttpRequest

from planner.errors import MalformedInput
from planner.files.stored_text import unstorable_character
from planner.models import User
from planner.services.audit import create_triggers, record
from planner.services.passwords import mark_verified
from planner.services.sessions import session_touch


@receiver(user_logged_in)
def _record_sign_in(user: User, request: HttpRequest, **_: Any) -> None:
    """Record a sign-in, with the address and time of its session."""
    session_touch(request)
    mark_verified(request)
    record("user.signed-in", user, by=user)


@receiver(user_logged_out)
def _record_sign_out(user: User | None, **_: Any) -> None:
    if user is not None:
        record("user.signed-out", user, by=user)


@receiver(user_login_failed)
def _record_refused_sign_in(credentials: dict[str, Any], **_: Any) -> None:
    """Record a refused sign-in, with the user name that was typed."""
    record("user.refused", str(credentials.get("username", "")), by=None, rule="log-in")


@receiver(post_migrate)
def _guard_audit_log(sender: Any, **_: Any) -> None:
    """Create the triggers of the audit log after each migration of the product's tables."""
    if sender.label == "planner":
        create_triggers()


@receiver(pre_save)
def _refuse_unstorable(
    sender: type[Model],
    instance: Model,
    raw: bool,
    update_fields: Collection[str] | None = None,
    **_: Any,
) -> None:
    """Raise MalformedInput if a column has a character that the database cannot store.

    Rows of a restore (``raw``) are not checked here: the restore reports the row itself.
    """
    if raw or sender._meta.app_label != "planner":
        return
    for column in sender._meta.concrete_fields:
        if update_fields is not None and column.name not in update_fields:
            continue
        if isinstance(column, CharField | TextField | JSONField):
            character = unstorable_character(getattr(instance, column.attname))
            if character is not None:
                raise MalformedInput(
                    f"{column.name}: a text holds the character {character}, which cannot be "
                    "stored. Remove it and try again."
                )
