"""Read which workspaces a user may enter."""

from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from planner.errors import NotAllowed, NotFound
from planner.models import Run, User, Workspace


def workspaces_list() -> QuerySet[Workspace]:
    """Return all workspaces, each with the counts ``people`` and ``runs``."""
    runs = Run.everywhere.filter(workspace=OuterRef("pk")).order_by().values("workspace")
    run_count = Subquery(runs.annotate(n=Count("pk")).values("n"), output_field=IntegerField())
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
    """Return the workspace that was entered last or, if it is gone, the first."""
    known = any(workspace.slug == slug for workspace in user.workspaces)
    return workspace_for(user, slug if known else "")
