"""Store workspaces, and keep track of the current one.

Every object belongs to one workspace. The current workspace is set once per request, run or
command: by the session, token or header of a request, the row of a run, or ``--workspace`` of a
command. The manager ``objects`` returns only rows of the current workspace, and raises NoWorkspace
if there is none, so that no query can forget it. ``everywhere`` returns the rows of all workspaces.

django-scopes filters in the same way, but leaves the workspace of a new row to each caller. Here a
new row gets the current workspace.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from django.conf import settings
from django.db import models

from planner.errors import NotFound

MAIN = "main"  # slug of the workspace that always exists
Row = TypeVar("Row", bound=models.Model)


class NoWorkspace(RuntimeError):
    """An error for a query without a current workspace, which is a bug of the caller."""


class Role(models.TextChoices):
    """The rights of a member, from least to most."""

    VIEWER = "viewer", "Viewer: reads"
    PLANNER = "planner", "Planner: uploads, edits and runs"
    APPROVER = "approver", "Approver: also decides on what others propose"
    ADMIN = "admin", "Admin: also removes what others made, and invites people"


class Workspace(models.Model):
    """A team's traces, scenarios, runs and plans, which no other workspace sees."""

    name = models.CharField(max_length=80, unique=True)  # name that people read
    slug = models.SlugField(max_length=40, unique=True)  # name in addresses, headers and commands
    created_at = models.DateTimeField(auto_now_add=True)
    time_zone = models.CharField(max_length=64, default="UTC", db_default="UTC")
    second_factor = models.BooleanField(default=False)  # True: everybody in it needs one

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """The role of a user in a workspace."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["workspace", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["user", "workspace"], name="membership_once")
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace}: {self.role}"


_current: ContextVar[Workspace | Callable[[], Workspace] | None] = ContextVar(
    "workspace", default=None
)


def current_workspace() -> Workspace:
    """Return the current workspace, which is loaded when first needed."""
    current = _current.get()
    if current is None:
        raise NoWorkspace(
            "No workspace is set. Wrap this in `with use_workspace(...)` of "
            "planner.models.workspace."
        )
    if not isinstance(current, Workspace):
        current = current()
        _current.set(current)
    return current


def current_workspace_id() -> int:
    """Return the key of the current workspace."""
    return current_workspace().pk


@contextmanager
def use_workspace(workspace: Workspace | str | Callable[[], Workspace] | None) -> Iterator[None]:
    """Make a workspace the current one within the block.

    It is given as a row, as a slug, or as a function that returns it when it is first needed. None:
    there is no current workspace.
    """
    token = _current.set(_resolve_slug(workspace))
    try:
        yield
    finally:
        _current.reset(token)


def enter(workspace: Workspace | str) -> None:
    """Make a workspace the current one until the enclosing ``use_workspace`` block ends."""
    _current.set(_resolve_slug(workspace))


def workspace_of(slug: str) -> Workspace:
    """Return the workspace with this slug; raise NotFound that lists the known slugs."""
    if slug == MAIN:
        main, _ = Workspace.objects.get_or_create(slug=MAIN, defaults={"name": "Main"})
        return main
    workspace = Workspace.objects.filter(slug=slug).first()
    if workspace is None:
        have = ", ".join(Workspace.objects.values_list("slug", flat=True)[:10])
        raise NotFound(f"There is no workspace {slug[:40]!r}. Known: {have or MAIN}.")
    return workspace


def _resolve_slug(
    workspace: Workspace | str | Callable[[], Workspace] | None,
) -> Workspace | Callable[[], Workspace] | None:
    """Return a function that loads the workspace with this slug; other values unchanged."""
    if isinstance(workspace, str):
        slug = workspace
        return lambda: workspace_of(slug)
    return workspace


class WorkspaceManager(models.Manager[Row]):
    """A manager that selects only the rows of the current workspace."""

    def get_queryset(self) -> models.QuerySet[Row]:
        return super().get_queryset().filter(workspace=current_workspace_id())


class InWorkspace(models.Model):
    """A row that belongs to a workspace, by default the current one.

    A migration that adds the foreign key must not use the current workspace as the default. Add it
    as null, fill it, and set the default in ``SeparateDatabaseAndState`` only.
    """

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, default=current_workspace_id, related_name="+"
    )

    objects = WorkspaceManager()
    everywhere = models.Manager()  # noqa: DJ012 - a manager too

    class Meta:
        abstract = True


class Owned(InWorkspace):
    """A named row of a workspace that ``owner`` made; None: the command line, or removed since."""

    name: "models.CharField[str, str]"
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.name)
