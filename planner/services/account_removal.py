"""Hand a person the data stored about them, and remove an account.

Both read the relations that the tables declare, so a table that is added later is included. A row
that is deleted with its person is about them. Any other row is something that they made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import models, transaction
from django.db.models import Q

from planner.errors import NotAllowed, PlannerError
from planner.models import AuditRecord, Membership, Role, User
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.people import check_theirs

SECRET = {"session_key", "session_data", "encrypted_key", "recovery", "sha256", "salt", "key"}
OWNER = "owner"  # rows of this relation get a new owner; who approved or wrote something stays


@dataclass(frozen=True, slots=True)
class Removed:
    """The name of a removed account, and the number of rows that it passed on."""

    name: str
    passed: int  # rows that have a new owner


def account_data(user: User, *, by: User | None) -> dict[str, Any]:
    """Return everything stored about a person, without the secrets they sign in with.

    Of the things that they made it has the names, in the workspaces that they may enter.
    """
    record("user.data-taken", user, by=by)
    return {
        "account": {
            "user": user.username,
            "mailbox": user.email,
            "joined": user.date_joined,
            "last_login": user.last_login,
            "active": user.is_active,
            "admin_of_the_installation": user.is_superuser,
            "second_factor": user.has_second_factor,
        },
        "about": {
            _name(field): [_row(row) for row in _rows(field, user)]
            for field in _relations(models.CASCADE)
        },
        "made": {
            f"{_name(field)}, {field.name}": [
                {"number": row.pk, "name": str(row)}
                for row in _rows(field, user)
                if _may_see(row, user)
            ]
            for field in _relations(models.SET_NULL)
        },
        "audit_log": list(
            AuditRecord.objects.filter(
                Q(actor=user.username)
                | Q(action__startswith="user.", name=user.username)
                | Q(action__startswith="user.", key=user.username)
            )
            .filter(workspace__in=["", *(workspace.slug for workspace in user.workspaces)])
            .order_by("number")
            .values("number", "at", "actor", "action", "name", "details")
        ),
    }


def account_owned(person: User) -> int:
    """Return the number of rows that need a new owner before the account is removed."""
    return sum(_rows(field, person).count() for field in _owners())


@transaction.atomic
def account_remove(*, by: User | None, person: User, confirm: str, to: User | None) -> Removed:
    """Remove an account for good and pass its possessions to ``to``.

    Sessions, tokens, second factor and notices go. Approvals and comments stay without a name. The
    audit log keeps the name. ``confirm`` is the user name as it was typed.

    Raises NotAllowed for the last admin and for an own account. Raises PlannerError if ``confirm``
    differs, or if ``to`` is missing or cannot take over.
    """
    check_may_administer(by)
    check_theirs(by, person, "remove")
    if by is not None and by.pk == person.pk:
        raise NotAllowed("Another admin removes your account, so that one stays.")
    if confirm.strip() != person.username:
        raise PlannerError(f"confirm: type {person.username}, whose account is removed for good.")
    _check_not_last(person)
    owned = account_owned(person)
    if owned and to is None:
        raise PlannerError(
            f"{person.username} owns {owned:,} things; say to whom they pass, or remove them first."
        )
    if to is not None:
        _check_takes(to, person)
        for field in _owners():
            changes: dict[str, Any] = {OWNER: to}
            if "idempotency_key" in {column.name for column in field.model._meta.get_fields()}:
                changes["idempotency_key"] = ""  # keys are unique per owner
            _rows(field, person).update(**changes)
    # The row is gone after delete(), and the answer names the account.
    name = person.username
    record("user.removed", person, by=by, passed=owned, to=to.username if to else "")
    person.delete()
    return Removed(name, owned)


def _relations(on_delete: Any) -> Iterator[models.ForeignKey[Any, Any]]:
    """Yield the foreign keys of our tables to users with this ``on_delete``."""
    for relation in User._meta.related_objects:
        field = relation.field
        meta = field.model._meta
        ours = meta.app_label == User._meta.app_label and not meta.auto_created
        if ours and isinstance(field, models.ForeignKey) and relation.on_delete is on_delete:
            yield field


def _owners() -> Iterator[models.ForeignKey[Any, Any]]:
    return (field for field in _relations(models.SET_NULL) if field.name == OWNER)


def _rows(field: models.ForeignKey[Any, Any], user: User) -> models.QuerySet[Any]:
    return field.model._base_manager.filter(**{field.name: user}).order_by("pk")


def _row(row: models.Model) -> dict[str, Any]:
    # Keys, hashes and session data would let a reader of the export sign in.
    columns = (column for column in row._meta.concrete_fields if column.name not in SECRET)
    return {column.name: column.value_from_object(row) for column in columns}


def _name(field: models.ForeignKey[Any, Any]) -> str:
    return str(field.model._meta.verbose_name_plural)


def _may_see(row: models.Model, user: User) -> bool:
    here = getattr(row, "workspace_id", None)
    return here is None or any(workspace.pk == here for workspace in user.workspaces)


def _check_not_last(person: User) -> None:
    others = User.objects.filter(is_active=True).exclude(pk=person.pk)
    # Nobody could invite people or give roles without an admin.
    if person.is_superuser and not others.filter(is_superuser=True).exists():
        raise NotAllowed(f"{person.username} is the last admin of the installation.")
    for held in person.membership_list:
        admins = Membership.objects.filter(workspace=held.workspace, role=Role.ADMIN)
        left = others.filter(Q(pk__in=admins.values("user")) | Q(is_superuser=True))
        if held.role == Role.ADMIN and not left.exists():
            raise NotAllowed(
                f"{person.username} is the last admin of {held.workspace.name}; make somebody else "
                "admin first."
            )


def _check_takes(to: User, person: User) -> None:
    """Raise PlannerError unless ``to`` is active and plans wherever ``person`` owns something."""
    if to.pk == person.pk or not to.is_active:
        raise PlannerError(f"{to.username} cannot take over what {person.username} owns.")
    places = {row.workspace for field in _owners() for row in _rows(field, person)}
    plans = {held.workspace_id for held in to.membership_list if held.role != Role.VIEWER}
    for workspace in sorted(places, key=lambda place: place.slug):
        if workspace.pk not in plans and not to.is_superuser:
            raise PlannerError(
                f"{person.username} owns things in {workspace.name}, where {to.username} does not "
                "plan; give them a role there, or name somebody else."
            )
