"""Manage the team: who belongs to it, what each may do, and how somebody new gets in.

Nobody chooses a password for somebody else. An invited person gets an address that works once, for
``PASSWORD_RESET_TIMEOUT``, and chooses one there. The admin passes it on in any way that the team
trusts. No mail server is needed.
"""

from typing import NamedTuple

from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from planner.errors import NotAllowed, PlannerError
from planner.models import User, Workspace
from planner.models.workspace import current_workspace
from planner.selectors.people import admins_active
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.cron import zone_of
from planner.services.sessions import sessions_end
from planner.services.tokens import tokens_end


class Invitation(NamedTuple):
    """A new person and their invitation."""

    person: User
    path: str  # path of the page where the password is chosen


def person_invite(*, by: User | None, name: str, role: str) -> Invitation:
    """Create a person who must first choose a password at the returned path.

    ``by`` is an admin; None: the command line. Raises PlannerError if the user name is invalid or
    exists, or if the role is unknown.
    """
    check_may_administer(by)
    parsed_role = parse_role(role)
    person = User(username=User.normalize_username(name.strip()))
    person.set_unusable_password()
    try:
        person.full_clean(exclude=["password"])
    except ValidationError as invalid:
        if User.objects.filter(username=person.username).exists():
            raise PlannerError(
                f"User name {person.username!r} already exists. Choose another name."
            ) from None
        raise PlannerError(f"User name {person.username!r}: {' '.join(invalid.messages)}") from None
    person.save()
    person.join(current_workspace(), parsed_role)
    record("member.invited", person, by=by, role=str(parsed_role))
    return Invitation(person, invitation_path(by=by, person=person))


def invitation_path(*, by: User | None, person: User) -> str:
    """Return the path of a page where ``person`` may choose a password once.

    It is for new people and for those who forgot their password. It is signed with the current
    password, so it becomes invalid once the password changes. ``by`` is an admin; None: the command
    line.
    """
    check_may_administer(by)
    check_may_change_account(by, person, "give a new password to")
    if not person.is_active:
        raise PlannerError(f"{person.username} is disabled; enable the account first.")
    record("user.invited", person, by=by)
    return password_path(person)


def password_path(person: User) -> str:
    """Return the path of the password page; the caller has checked that the person may get it."""
    encoded = urlsafe_base64_encode(force_bytes(person.pk))
    token = default_token_generator.make_token(person)
    return reverse("web:welcome", kwargs={"uidb64": encoded, "token": token})


@transaction.atomic
def person_change(
    *, by: User | None, person: User, role: str | None = None, active: bool | None = None
) -> User:
    """Change the role of a person in the workspace, or disable (``active`` False) or enable them.

    None: no change. Disabling ends all of their sessions and tokens.
    """
    check_may_administer(by)
    # One change at a time: two admins must not remove each other's role.
    Workspace.objects.select_for_update().get(pk=current_workspace().pk)
    if role is not None:
        person.join(current_workspace(), parse_role(role))
    if active is not None:
        check_may_change_account(by, person, "end or give back the access of")
        person.is_active = active
        person.save(update_fields=["is_active"])
    check_has_admin(person)
    if not person.is_active:
        tokens_end(user=person)
        sessions_end(user=person, by=by)
    record("member.changed", person, by=by, role=role, active=active)
    return person


def check_has_admin(person: User) -> None:
    """Raise NotAllowed, naming the changed ``person``, if the workspace now has no admin."""
    if not admins_active().exists():
        raise NotAllowed(
            f"{person.username} is the last admin who can sign in. Make another person admin first."
        )


def check_may_change_account(by: User | None, person: User, action: str) -> None:
    """Raise NotAllowed if ``by`` may not change the account of ``person``.

    An account with other workspaces may only be changed by an admin of the installation or by the
    command line (``by`` None).
    ``action`` is what the message says that ``by`` may not do, such as "remove".
    """
    if by is None or by.is_superuser:
        return
    workspace_ids = {membership.workspace_id for membership in person.membership_list}
    has_other_workspaces = bool(workspace_ids - {current_workspace().pk})
    if person.is_superuser or has_other_workspaces:
        raise NotAllowed(
            f"{person.username} belongs to other workspaces too, so only an admin of the "
            f"installation may {action} them."
        )


def parse_role(role: str) -> User.Role:
    """Return the role of this name; raise PlannerError if there is none."""
    try:
        return User.Role(role)
    except ValueError:
        roles = ", ".join(User.Role.values)
        raise PlannerError(f"There is no role {role!r}. Choose from {roles}.") from None


def time_zone_set(*, by: User, name: str, workspace: bool = False) -> None:
    """Set the time zone of a person or, with ``workspace``, the default of the workspace.

    ``name`` is an IANA name. An empty name removes the person's own setting.
    """
    if workspace:
        check_may_administer(by)
    changed = current_workspace() if workspace else by
    changed.time_zone = zone_of(name).key if name or workspace else ""
    changed.save(update_fields=["time_zone"])
    if workspace:
        record("workspace.time-zone", changed, by=by, zone=changed.time_zone)
