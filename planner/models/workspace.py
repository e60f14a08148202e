"""Workspaces: who works on what together, and which one is meant at the moment.

Every object belongs to one workspace. Which one is current is said once, at the edge: a request's
by its session, token or header, a run's by its row, a command's by ``--workspace``. Managers answer
only for the current one and refuse where none is, so that no list and no look-up can forget it;
``everywhere`` is for what looks after the whole installation. (django-scopes does the former, and
leaves what is created to each caller: here a row is of the current workspace from its making.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from django.conf import settings
from django.db import models

from planner.errors import NotFound

MAIN = "main"  # the one that is always there
Row = TypeVar("Row", bound=models.Model)


class NoWorkspace(RuntimeError):
    """Rows were asked for where nothing says of which workspace: a bug of whoever asks."""


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer: reads"
    PLANNER = "planner", "Planner: uploads, edits and runs"
    APPROVER = "approver", "Approver: also decides on what others propose"
    ADMIN = "admin", "Admin: also removes what others made, and invites people"


class Workspace(models.Model):
    """A team's traces, scenarios, runs and plans, which no other workspace sees."""

    name = models.CharField(max_length=80, unique=True)  # for people
    slug = models.SlugField(max_length=40, unique=True)  # for addresses, headers and commands
    created_at = models.DateTimeField(auto_now_add=True)
    second_factor = models.BooleanField(default=False)  # asked of everybody in it

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """What somebody may do in a workspace."""

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
    """The one that is meant; looked up when it is first needed."""
    current = _current.get()
    if current is None:
        raise NoWorkspace(
            "Nothing says which workspace is meant; wrap this in `with within(...)` of "
            "planner.models.workspace."
        )
    if not isinstance(current, Workspace):
        current = current()
        _current.set(current)
    return current


def current_workspace_id() -> int:
    return current_workspace().pk


@contextmanager
def within(workspace: Workspace | str | Callable[[], Workspace] | None) -> Iterator[None]:
    """What is inside is about this workspace: itself, its slug, what finds it once it is needed, or
    None for none yet."""
    token = _current.set(_meant(workspace))
    try:
        yield
    finally:
        _current.reset(token)


def enter(workspace: Workspace | str) -> None:
    """From here to the end of what is around it: of a request by its token, or of a script."""
    _current.set(_meant(workspace))


def workspace_of(slug: str) -> Workspace:
    """Raises NotFound listing what there is."""
    if slug == MAIN:
        return Workspace.objects.get_or_create(slug=MAIN, defaults={"name": "Main"})[0]
    workspace = Workspace.objects.filter(slug=slug).first()
    if workspace is None:
        have = ", ".join(Workspace.objects.values_list("slug", flat=True)[:10])
        raise NotFound(f"There is no workspace {slug[:40]!r}; there are: {have or MAIN}.")
    return workspace


def _meant(
    workspace: Workspace | str | Callable[[], Workspace] | None,
) -> Workspace | Callable[[], Workspace] | None:
    if isinstance(workspace, str):
        slug = workspace
        return lambda: workspace_of(slug)
    return workspace


class Here(models.Manager[Row]):
    """The rows of the current workspace, and no others."""

    def get_queryset(self) -> models.QuerySet[Row]:
        return super().get_queryset().filter(workspace=current_workspace_id())


class InWorkspace(models.Model):
    """What belongs to a workspace: the current one, unless its maker names another.

    A migration that adds the key to a table with rows must not ask for the current workspace; see
    how 0018 to 0020 do it.
    """

    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, default=current_workspace_id, related_name="+"
    )

    objects = Here()
    everywhere = models.Manager()  # noqa: DJ012 - a manager too

    class Meta:
        abstract = True
