"""Remove a workspace with its content, after writing all of it to one file."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Model
from django.db.models.deletion import Collector
from django.utils import timezone

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import Run, User, Workspace
from planner.models.workspace import MAIN
from planner.services.audit import record
from planner.services.backups import write_workspace
from planner.services.workspaces import check_installation_admin
from planner.storage import row_arrays

REMOVED = "removed"  # folder of the data directory with the files of removed workspaces


@dataclass(frozen=True, slots=True)
class RemovedWorkspace:
    """The number of removed rows, and the file that they were saved to."""

    rows: int
    path: str  # of the file with all of it


def workspace_remove(*, by: User | None, workspace: Workspace, confirm: str) -> RemovedWorkspace:
    """Save a workspace to a file and remove it; raise NotReady while a run is active in it.

    ``by`` None: the command line. ``confirm`` must repeat the slug. Accounts stay. The audit log
    stays too, and records the number of rows and the file.
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
        active_runs = Run.everywhere.filter(workspace=locked, state__in=Run.ACTIVE_STATES).count()
        if active_runs:
            raise NotReady(
                f"{active_runs} runs are going in {slug}. Cancel them, or wait for them."
            )
        collector = Collector(using="default", origin=locked)
        collector.collect([locked])
        rows = list(_rows(collector))
        stores = sorted(_stores(rows))
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
    """Yield every row of the workspace once, from all tables.

    Rows of many-to-many tables are saved as part of the row that they belong to.
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

    Thus the file can be restored into another installation.
    """
    known, collected = {(type(row), row.pk) for row in rows}, list(rows)
    for row in collected:  # which grows by the rows that are not known yet
        for model, pk in _references(row):
            if (model, pk) not in known:
                known.add((model, pk))
                collected.append(model._base_manager.get(pk=pk))
    return collected


def _references(row: Model) -> Iterator[tuple[type[Model], Any]]:
    """Yield the model and key of every row that ``row`` refers to."""
    for field in row._meta.concrete_fields:
        if field.related_model and (pk := getattr(row, field.attname)) is not None:
            yield field.related_model, pk
    for relation in row._meta.many_to_many:
        for pk in getattr(row, relation.name).values_list("pk", flat=True):
            yield relation.related_model, pk


def _stores(rows: list[Model]) -> set[str]:
    """Return the existing folders and files that the rows name."""
    named: set[str] = set()
    for row in rows:
        options: dict[str, Any] = row.options if isinstance(row, Run) else {}
        named |= {str(getattr(row, "store", "") or ""), str(options.get("upload", ""))}
    return {store for store in named if store and row_arrays.exists(store)}
