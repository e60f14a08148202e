"""Read the members of the current workspace."""

from django.db.models import Count, Prefetch, Q, QuerySet

from planner.errors import NotFound
from planner.models import Membership, User
from planner.models.workspace import current_workspace_id


def people_list() -> QuerySet[User]:
    """Return all members, enabled ones first; ``runs`` is how many runs each started here."""
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
    """Return a member by name; raise NotFound."""
    person = _members().filter(username=name).first()
    if person is None:
        raise NotFound(f"There is no member {name}.")
    return person


def admins_active() -> QuerySet[User]:
    """Return the enabled admins, who can invite people and give roles."""
    workspace_id = current_workspace_id()
    admins = Membership.objects.filter(workspace=workspace_id, role=User.Role.ADMIN).values("user")
    admin = Q(pk__in=admins) | Q(is_superuser=True)
    return User.objects.filter(admin, is_active=True)


def _members() -> QuerySet[User]:
    return User.objects.filter(memberships__workspace=current_workspace_id())
