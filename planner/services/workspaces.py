"""Create and rename workspaces, as an admin of the installation; add and remove members."""

from django.db import IntegrityError, transaction
from django.utils.text import slugify

from planner.errors import NotAllowed, NotFound, PlannerError
from planner.models import Role, User, Workspace
from planner.models.workspace import current_workspace
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.people import check_admin_left, parse_role
from planner.services.tokens import tokens_of


def check_installation_admin(by: User | None) -> None:
    """Raise NotAllowed for users who are not installation admins; None, the command line, may."""
    if by is not None and not by.is_superuser:
        raise NotAllowed("Only an admin of the installation may make, rename or remove one.")


def workspace_add(*, by: User | None, name: str, slug: str = "") -> Workspace:
    """Create an empty workspace with its creator as admin; ``by`` None (command line): no admin."""
    check_installation_admin(by)
    name = _name(name)
    workspace = Workspace(name=name, slug=slug.strip() or slugify(name)[:40])
    if slugify(workspace.slug) != workspace.slug or not 1 <= len(workspace.slug) <= 40:
        raise PlannerError(
            f"slug {workspace.slug[:50]!r}: give 1 to 40 lower-case letters, digits and hyphens."
        )
    _save(workspace)
    if by is not None:
        by.join(workspace, Role.ADMIN)
    record("workspace.made", workspace, by=by, slug=workspace.slug)
    return workspace


def workspace_rename(*, by: User | None, workspace: Workspace, name: str) -> Workspace:
    """Change the name of a workspace; its slug, which addresses and scripts use, stays."""
    check_installation_admin(by)
    workspace.name = _name(name)
    _save(workspace)
    record("workspace.renamed", workspace, by=by)
    return workspace


def workspace_rule(*, by: User | None, workspace: Workspace, second_factor: bool) -> Workspace:
    """Set whether all members of the workspace need a second factor, as an admin of it.

    They do if ``second_factor`` is True.
    """
    if by is not None and not by.is_superuser and by.role_in(workspace) != Role.ADMIN:
        raise NotAllowed("Only an admin of the workspace may set its requirements.")
    workspace.second_factor = second_factor
    workspace.save(update_fields=["second_factor"])
    record("workspace.second-factor", workspace, by=by, asked=second_factor)
    return workspace


def person_join(*, by: User | None, name: str, role: str) -> User:
    """Add an existing account to the current workspace; ``by`` None: the command line."""
    check_may_administer(by)
    person = User.objects.filter(username=name.strip()).first()
    if person is None:
        raise NotFound(f"Nobody called {name.strip()[:80]} has an account. Invite them.")
    parsed_role, workspace = parse_role(role), current_workspace()
    if person.role_in(workspace) is not None:
        raise PlannerError(f"{person.username} is already a member of this workspace.")
    person.join(workspace, parsed_role)
    record("user.joined", person, by=by, workspace=workspace.slug, role=role)
    return person


@transaction.atomic
def person_leave(*, by: User | None, person: User) -> None:
    """Remove a member (``by`` None: the command line); the account stays, its tokens here end."""
    check_may_administer(by)
    workspace = Workspace.objects.select_for_update().get(pk=current_workspace().pk)
    person.leave(workspace)
    check_admin_left(person)
    # A token would otherwise give access to the workspace again after a new invitation.
    tokens_of(person).filter(workspace=workspace).delete()
    record("user.left", person, by=by, workspace=workspace.slug)


def installation_admin(*, person: User, on: bool) -> User:
    """Make a person an installation admin, or end that; for the command line.

    Such an admin creates workspaces and is an admin in each.
    """
    if not on and not User.objects.filter(is_superuser=True, is_active=True).exclude(
        pk=person.pk
    ).exists():  # fmt: skip
        raise NotAllowed(f"{person.username} is the last admin of the installation.")
    person.is_superuser = on
    person.save(update_fields=["is_superuser"])
    record("user.installation-admin", person, by=None, on=on)
    return person


def _name(name: str) -> str:
    """Return a workspace's name without outer spaces; raise PlannerError for a bad length."""
    name = name.strip()
    if not 1 <= len(name) <= 80:
        raise PlannerError("name: give a workspace a name of 1 to 80 characters.")
    return name


def _save(workspace: Workspace) -> None:
    """Save a workspace; raise PlannerError if its name or slug exists."""
    try:
        with transaction.atomic():
            workspace.save()
    except IntegrityError:
        raise PlannerError(
            f"A workspace has the name {workspace.name!r} or slug {workspace.slug!r}. Choose "
            "another one."
        ) from None
