"""Hand a person the data stored about them, and remove an account.

Both read the relations that the tables declare, so a table that is added later is included. A row
that is deleted with its person is about them. Any other row is something that they made.
"""

from collections.abc import Iterator
from typing import Any

from django.db import models, transaction
from django.db.models import Q

from planner.errors import NotAllowed, PlannerError
from planner.models import AuditRecord, Membership, Role, User
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.people import check_may_change_account

SECRET_COLUMNS = {
    "session_key",
    "session_data",
    "encrypted_key",
    "recovery",
    "sha256",
    "salt",
    "key",
}
# Rows with this foreign key to the removed user get a new owner.
OWNER_FIELD = "owner"


def account_data(user: User, *, by: User | None) -> dict[str, Any]:
    """Return everything stored about a person, without passwords, keys and tokens.

    Objects that they made are listed by number and name, if in a workspace that they may enter.
    """
    record("user.data-taken", user, by=by)
    rows_about_user = {}
    for field in _user_foreign_keys(models.CASCADE):
        rows = _rows_of_user(field, user)
        rows_about_user[_table_name(field)] = [_public_columns(row) for row in rows]
    # Tables that belong to no workspace have no column workspace_id: None.
    visible_workspaces = {None, *(workspace.pk for workspace in user.workspaces)}
    rows_made = {}
    for field in _user_foreign_keys(models.SET_NULL):
        rows_made[f"{_table_name(field)}, {field.name}"] = [
            {"number": row.pk, "name": str(row)}
            for row in _rows_of_user(field, user)
            if getattr(row, "workspace_id", None) in visible_workspaces
        ]
    # Audit records of their actions, and of actions on their account.
    is_about_user = Q(action__startswith="user.") & (Q(name=user.username) | Q(key=user.username))
    records = AuditRecord.objects.filter(
        Q(actor=user.username) | is_about_user,
        workspace__in=["", *(workspace.slug for workspace in user.workspaces)],
    )
    columns = ("number", "at", "actor", "action", "name", "details")
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
        "about": rows_about_user,
        "made": rows_made,
        "audit_log": list(records.order_by("number").values(*columns)),
    }


def owned_row_count(person: User) -> int:
    """Return the number of rows that need a new owner before the account is removed."""
    return sum(_rows_of_user(field, person).count() for field in _owner_fields())


@transaction.atomic
def account_remove(*, by: User | None, person: User, confirm: str, new_owner: User | None) -> int:
    """Remove an account for good, and return the number of rows that pass to ``new_owner``.

    Sessions, tokens, the second factor and notices are deleted. Approvals and comments stay without
    a name. The audit log keeps the name. ``confirm`` must repeat the user name.

    Raises NotAllowed for the last admin and for one's own account. Raises PlannerError if
    ``confirm`` differs, or if ``new_owner`` is missing or cannot take over.
    """
    check_may_administer(by)
    check_may_change_account(by, person, "remove")
    if by is not None and by.pk == person.pk:
        raise NotAllowed("You cannot remove your own account. Ask another admin.")
    if confirm.strip() != person.username:
        raise PlannerError(f"confirm: type {person.username}, to remove the account permanently.")
    _check_not_last(person)
    owned_rows = owned_row_count(person)
    if owned_rows and new_owner is None:
        raise PlannerError(
            f"{person.username} owns {owned_rows:,} items. Choose a new owner, or remove them "
            "first."
        )
    if new_owner is not None:
        _check_can_take_over(new_owner, person)
        for field in _owner_fields():
            changes: dict[str, Any] = {OWNER_FIELD: new_owner}
            if "idempotency_key" in {column.name for column in field.model._meta.get_fields()}:
                changes["idempotency_key"] = ""  # keys are unique per owner
            _rows_of_user(field, person).update(**changes)
    record(
        "user.removed", person, by=by, passed=owned_rows, to=new_owner.username if new_owner else ""
    )
    person.delete()
    return owned_rows


def _user_foreign_keys(on_delete: Any) -> Iterator[models.ForeignKey[Any, Any]]:
    """Yield the foreign keys to users, in tables of the planner, with the rule ``on_delete``."""
    for relation in User._meta.related_objects:
        field = relation.field
        meta = field.model._meta
        is_planner_table = meta.app_label == User._meta.app_label and not meta.auto_created
        if (
            is_planner_table
            and isinstance(field, models.ForeignKey)
            and relation.on_delete is on_delete
        ):
            yield field


def _owner_fields() -> Iterator[models.ForeignKey[Any, Any]]:
    """Return the foreign keys called "owner", whose rows pass to the new owner."""
    return (field for field in _user_foreign_keys(models.SET_NULL) if field.name == OWNER_FIELD)


def _rows_of_user(field: models.ForeignKey[Any, Any], user: User) -> models.QuerySet[Any]:
    """Return the rows, of all workspaces, whose foreign key ``field`` is ``user``."""
    return field.model._base_manager.filter(**{field.name: user}).order_by("pk")


def _public_columns(row: models.Model) -> dict[str, Any]:
    """Return the values of a row by column, without those with which one could sign in."""
    return {
        column.name: column.value_from_object(row)
        for column in row._meta.concrete_fields
        if column.name not in SECRET_COLUMNS
    }


def _table_name(field: models.ForeignKey[Any, Any]) -> str:
    return str(field.model._meta.verbose_name_plural)


def _check_not_last(person: User) -> None:
    """Raise NotAllowed for the last admin of the installation or of a workspace."""
    other_users = User.objects.filter(is_active=True).exclude(pk=person.pk)
    # Nobody could invite people or give roles without an admin.
    if person.is_superuser and not other_users.filter(is_superuser=True).exists():
        raise NotAllowed(f"{person.username} is the last admin of the installation.")
    for membership in person.membership_list:
        admins = Membership.objects.filter(workspace=membership.workspace, role=Role.ADMIN)
        remaining = other_users.filter(Q(pk__in=admins.values("user")) | Q(is_superuser=True))
        if membership.role == Role.ADMIN and not remaining.exists():
            raise NotAllowed(
                f"{person.username} is the last admin of {membership.workspace.name}. Make "
                "another person admin first."
            )


def _check_can_take_over(new_owner: User, person: User) -> None:
    """Raise PlannerError unless ``new_owner`` is a planner wherever ``person`` owns something."""
    if new_owner.pk == person.pk or not new_owner.is_active:
        raise PlannerError(f"{new_owner.username} cannot take over what {person.username} owns.")
    workspaces = {}
    for field in _owner_fields():
        for row in _rows_of_user(field, person):
            workspaces[row.workspace.slug] = row.workspace
    for _slug, workspace in sorted(workspaces.items()):
        may_plan = new_owner.role_in(workspace) not in (None, Role.VIEWER)
        if not may_plan and not new_owner.is_superuser:
            raise PlannerError(
                f"{person.username} owns items in {workspace.name}, where {new_owner.username} "
                "may not plan. Give them a role there, or choose another owner."
            )
