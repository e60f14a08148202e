"""A workspace removed with all that is in it, after all of it was written to one file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Model
from django.db.models.deletion import Collector
from django.utils import timezone

from planner import storage
from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import Run, User, Workspace
from planner.models.workspace import MAIN
from planner.services.audit import record
from planner.services.backups import packed
from planner.services.trace_removal import GOING
from planner.services.workspaces import check_looks_after

REMOVED = "removed"  # folder of the data directory where their files lie


@dataclass(frozen=True, slots=True)
class Removed:
    rows: int
    path: str  # of the file with all of it


def workspace_remove(*, by: User | None, workspace: Workspace, confirm: str) -> Removed:
    """Raises NotReady while something is going in it. ``confirm`` is its slug, as its remover typed
    it. Accounts stay, and so does the audit log, which has the number of its rows and the file."""
    check_looks_after(by)
    slug = workspace.slug
    if slug == MAIN:
        raise NotAllowed(f"The workspace {MAIN} stays: it is the one that is always there.")
    if confirm.strip() != slug:
        raise PlannerError(f"confirm: type {slug}, the slug of what is removed for good.")
    path = storage.data_dir() / REMOVED / f"{slug}-{timezone.now():%Y%m%d-%H%M%S}.tar.zst"
    with transaction.atomic():
        locked = Workspace.objects.select_for_update().get(pk=workspace.pk)
        going = Run.everywhere.filter(workspace=locked, state__in=GOING).count()
        if going:
            raise NotReady(f"{going} runs are going in {slug}; cancel them, or wait for them.")
        collector = Collector(using="default", origin=locked)
        collector.collect([locked])
        rows = list(_rows(collector))
        stores = sorted(_stores(rows))
        with tempfile.TemporaryDirectory(prefix="removed-", dir=storage.data_dir()) as folder:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            packed(Path(folder), rows, stores, path)
        storage.keep(f"{REMOVED}/{path.name}")
        record("workspace.removed", locked, by=by, slug=slug, rows=len(rows), file=path.name)
        collector.delete()
    for store in stores:
        storage.remove(store)
    return Removed(len(rows), str(path))


def _rows(collector: Collector) -> Iterator[Model]:
    """All that goes with it, of whatever table, each once: some are come by on two ways. Pairs of
    many-to-many tables are written with their row."""
    seen: set[tuple[type[Model], int]] = set()
    for rows in (*collector.data.values(), *collector.fast_deletes):
        for row in rows:
            if (type(row), row.pk) not in seen and not row._meta.auto_created:
                seen.add((type(row), row.pk))
                yield row


def _stores(rows: list[Model]) -> set[str]:
    """Folders and files that they name."""
    named: set[str] = set()
    for row in rows:
        options: dict[str, Any] = row.options if isinstance(row, Run) else {}
        named |= {str(getattr(row, "store", "") or ""), str(options.get("upload", ""))}
    return {store for store in named if store and storage.exists(store)}
