"""Create, rename and remove workspaces, as an admin of the installation; change their members."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Model
from django.db.models.deletion import Collector
from django.utils import timezone
from django.utils.text import slugify

from planner.errors import NotAllowed, NotFound, NotReady, PlannerError
from planner.models import Role, Run, User, Workspace
from planner.models.workspace import MAIN, current_workspace
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.backups import write_workspace
from planner.services.people import check_has_admin, parse_role
from planner.services.tokens import tokens_of
from planner.storage import row_arrays

REMOVED = "removed"  # folder of the data directory with the files of removed workspaces


def check_installation_admin(by: User | None) -> None:
    """Raise NotAllowed if the user is no admin of the installation; None (command line) may."""
    if by is not None and not by.is_superuser:
        raise NotAllowed("Only an admin of the installation may make, rename or remove one.")


def workspace_add(*, by: User | None, name: str, slug: str = "") -> Workspace:
    """Create an empty workspace, of which ``by`` is the admin; None (command line): nobody."""
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


def workspace_require_second_factor(
    *, by: User | None, workspace: Workspace, second_factor: bool
) -> Workspace:
    """Set whether all members of the workspace need a second factor, as an admin of it."""
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
    """Remove a person from the current workspace, with their tokens for it; the account stays."""
    check_may_administer(by)
    workspace = Workspace.objects.select_for_update().get(pk=current_workspace().pk)
    person.leave(workspace)
    check_has_admin(person)
    # A token would otherwise give access to the workspace again after a new invitation.
    tokens_of(person).filter(workspace=workspace).delete()
    record("user.left", person, by=by, workspace=workspace.slug)


def installation_admin(*, person: User, on: bool) -> User:
    """Make a person an admin of the installation, or with ``on`` False end that.

    Such an admin creates workspaces and is an admin in each.
    """
    other_admins = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=person.pk)
    if not on and not other_admins.exists():
        raise NotAllowed(f"{person.username} is the last admin of the installation.")
    person.is_superuser = on
    person.save(update_fields=["is_superuser"])
    record("user.installation-admin", person, by=None, on=on)
    return person


def _name(name: str) -> str:
    """Return the name without outer spaces; raise PlannerError unless it has 1 to 80 characters."""
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


@dataclass(frozen=True, slots=True)
class RemovedWorkspace:
    """What was removed with a workspace."""

    rows: int
    path: str  # of the file to which they were saved


def workspace_remove(*, by: User | None, workspace: Workspace, confirm: str) -> RemovedWorkspace:
    """Save a workspace to a file and remove it; raise NotReady while a run is active in it.

    ``by`` None: the command line. ``confirm`` must repeat the slug. Accounts and the audit log
    stay.
    """
    check_installation_admin(by)
    slug = workspace.slug
    if slug == MAIN:
        raise NotAllowed(f"The workspace {MAIN} cannot be removed. Every installation has it.")
    if confirm.strip() != slug:
        raise PlannerError(f"confirm: type {slug}, the slug of the workspace to remove.")
    path = row_arrays.data_dir() / REMOVED / f"{slug}-{timezone.now():%Y%m%d-%H%M%S}.tar.zst"
    with transaction.atomic():
        locked = Workspace.objects.select_for_update().get(pk=workspace.pk)
        active = Run.everywhere.filter(workspace=locked, state__in=Run.ACTIVE_STATES).count()
        if active:
            raise NotReady(
                f"{active} runs are going in {locked.slug}. Cancel them, or wait for them."
            )
        collector = Collector(using="default", origin=locked)
        collector.collect([locked])
        rows = list(_rows(collector))
        # The stored files of its rows go into the file too, and are removed at the end.
        named_stores: set[str] = set()
        for row in rows:
            named_stores.add(str(getattr(row, "store", "") or ""))
            if isinstance(row, Run):
                named_stores.add(str(row.options.get("upload", "")))
        stores = sorted(store for store in named_stores if store and row_arrays.exists(store))
        with tempfile.TemporaryDirectory(prefix="removed-", dir=row_arrays.data_dir()) as folder:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_workspace(slug, Path(folder), _with_referenced_rows(rows), stores, path)
        row_arrays.keep(f"{REMOVED}/{path.name}")
        record("workspace.removed", locked, by=by, slug=slug, rows=len(rows), file=path.name)
        collector.delete()
    for store in stores:
        row_arrays.remove(store)
    return RemovedWorkspace(len(rows), str(path))


def _rows(collector: Collector) -> Iterator[Model]:
    """Yield every row that ``collector`` found, once.

    Rows of many-to-many tables are left out: they are saved with the row that they belong to.
    """
    keys: dict[type[Model], set[Any]] = defaultdict(set)
    for rows in (*collector.data.values(), *collector.fast_deletes):
        for row in rows:
            if not row._meta.auto_created:
                keys[type(row)].add(row.pk)
    for model, pks in keys.items():  # read again: the collector loads few columns
        yield from model._base_manager.in_bulk(sorted(pks)).values()


def _with_referenced_rows(rows: list[Model]) -> list[Model]:
    """Return the rows and all rows that they refer to, such as accounts.

    With them, the file can be restored into another installation.
    """
    known = {(type(row), row.pk) for row in rows}
    collected = list(rows)
    for row in collected:  # the list grows in the loop
        for model, pk in _references(row):
            if (model, pk) not in known:
                known.add((model, pk))
                collected.append(model._base_manager.get(pk=pk))
    return collected


def _references(row: Model) -> Iterator[tuple[type[Model], Any]]:
    """Yield the model and key of every row that ``row`` refers to."""
    for field in row._meta.concrete_fields:
        pk = getattr(row, field.attname)
        if field.related_model and pk is not None:
            yield field.related_model, pk
    for relation in row._meta.many_to_many:
        for pk in getattr(row, relation.name).values_list("pk", flat=True):
            yield relation.related_model, pk
