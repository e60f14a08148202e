"""Read the members of the current workspace, and the workspaces that a user may enter."""

from django.db.models import Count, IntegerField, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from planner.errors import NotAllowed, NotFound
from planner.models import Membership, Run, User, Workspace
from planner.models.workspace import current_workspace_id


def people_list() -> QuerySet[User]:
    """Return the members, enabled ones first, each with ``runs``: their number of runs here."""
    workspace_id = current_workspace_id()
    memberships = Prefetch(
        "memberships", Membership.objects.select_related("workspace"), to_attr="membership_list"
    )
    return (
        _members()  # type: ignore[no-redef]
        .annotate(runs=Count("run", filter=Q(run__workspace=workspace_id)))
        .select_related("second_factor")
        .prefetch_related(memberships)
        .order_by("-is_active", "username")
    )


def person_get(name: str) -> User:
    """Return a member of the workspace by user name; raise NotFound."""
    person = _members().filter(username=name).first()
    if person is None:
        raise NotFound(f"There is no member {name}.")
    return person


def admins_active() -> QuerySet[User]:
    """Return the enabled admins, who can invite people and give roles."""
    workspace_id = current_workspace_id()
    admin_ids = Membership.objects.filter(workspace=workspace_id, role=User.Role.ADMIN)
    is_admin = Q(pk__in=admin_ids.values("user")) | Q(is_superuser=True)
    return User.objects.filter(is_admin, is_active=True)


def _members() -> QuerySet[User]:
    return User.objects.filter(memberships__workspace=current_workspace_id())


def workspaces_list() -> QuerySet[Workspace]:
    """Return all workspaces, each with the counts ``people`` and ``runs``."""
    runs = Run.everywhere.filter(workspace=OuterRef("pk")).order_by().values("workspace")
    counts = runs.annotate(count=Count("pk")).values("count")
    run_count = Subquery(counts, output_field=IntegerField())
    return Workspace.objects.annotate(people=Count("memberships"), runs=Coalesce(run_count, 0))


def workspace_for(user: User, slug: str = "") -> Workspace:
    """Return the workspace with this slug, or the first that ``user`` belongs to.

    Raises NotFound for a workspace of others, so that its existence stays secret. Raises NotAllowed
    for users who belong to none.
    """
    if not user.workspaces:
        raise NotAllowed("You belong to no workspace. Ask an admin of one to invite you.")
    if not slug:
        return user.workspaces[0]
    for workspace in user.workspaces:
        if workspace.slug == slug:
            return workspace
    slugs = ", ".join(workspace.slug for workspace in user.workspaces[:10])
    raise NotFound(f"You belong to no workspace {slug[:40]!r}; you belong to: {slugs}.")


def last_workspace(user: User, slug: str) -> Workspace:
    """Return the user's workspace with this slug or, if there is none, the first."""
    known = any(workspace.slug == slug for workspace in user.workspaces)
    return workspace_for(user, slug if known else "")
