"""One file with every row and every array, made while the product is in use, and what restores it.

The file is a tar, packed with zstd: ``manifest.json``, ``rows.jsonl`` (a row per line, as Django
serialises it: it fits SQLite and PostgreSQL alike) and the folders that rows name in ``store``.
Rows are read in one transaction, within which their arrays, which are never changed once a row
names them, are linked aside: what is removed meanwhile is still there. Sessions are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import zstandard
from django.apps import apps
from django.core import serializers
from django.core.management.color import no_style
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model
from django.utils import timezone

from planner import storage
from planner.errors import Damaged, NotReady, PlannerError
from planner.models import (
    Calibration,
    ProfileVersion,
    Run,
    Session,
    Source,
    Trace,
    User,
    Workspace,
)
from planner.models.workspace import MAIN, current_workspace, within
from planner.services.audit import record, unguarded
from planner.services.execution import RUNS
from planner.services.traces import TRACES, UPLOADS
from planner.version import VERSION

FORMAT = 1
MANIFEST, ROWS = "manifest.json", "rows.jsonl"
TRIES = 3  # a store may be removed between its row and the linking of its files
KEPT = (TRACES, RUNS, UPLOADS, "calibrations", "profiles", "live")  # folders of the data directory
STORED: tuple[type[Model], ...] = (Trace, Calibration, ProfileVersion)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself."""

    format: int
    version: str  # of the program
    migration: str  # the last that the rows had
    made_at: str
    rows: int
    stores: list[str]  # folders and files of arrays, relative to the data directory


@dataclass(frozen=True, slots=True)
class Done:
    path: str
    rows: int
    bytes: int  # of the file


def backup(path: Path) -> Done:
    """Write everything to ``path``, which appears whole or not at all."""
    if path.is_dir():
        raise PlannerError(f"{path} is a folder; name a file in it.")
    record("backup.begun", path.name, by=None)  # which it holds itself
    draft = path.with_name(f"{path.name}.{os.getpid()}.partial")
    storage.data_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="backup-", dir=storage.data_dir()) as name:
        folder = Path(name)
        manifest = _taken(folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _pack(folder, manifest, draft)
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    return Done(str(path), manifest.rows, path.stat().st_size)


def packed(folder: Path, rows: Iterable[Model], stores: list[str], path: Path) -> None:
    """A file like a backup's, of these rows and of the arrays that they name; it appears whole or
    not at all. ``folder`` is an empty one beside the arrays."""
    count = _written(folder, rows)
    for store in stores:
        _link(storage.held(store), folder / "arrays" / store)
    made_at = timezone.now().isoformat()
    draft = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        _pack(folder, Manifest(FORMAT, VERSION, _last_migration(), made_at, count, stores), draft)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def restore(path: Path, *, replace: bool = False) -> Done:
    """Put back what ``backup`` wrote: into an empty installation, or with ``replace`` instead of
    what is there. All of it, or nothing."""
    if not path.is_file():
        raise PlannerError(f"{path}: there is no such file; check the path.")
    if not replace and (there := _to_be_replaced()):
        raise NotReady(
            f"This installation holds {there} already; restore into an empty one, or say --replace "
            "to have all of it replaced by the backup."
        )
    with tempfile.TemporaryDirectory(prefix="restore-", dir=storage.data_dir()) as name:
        folder = Path(name)
        _unpack(path, folder)
        manifest = _manifest(folder, path)
        before = set(stores_named()) if storage.bucket() else set()
        with _swapped(folder), transaction.atomic(), unguarded():
            Session.objects.all().delete()
            for model in _models():
                model._base_manager.all().delete()
            rows = _load(folder / ROWS)
            if rows != manifest.rows:
                raise PlannerError(f"{path} holds {rows} rows and speaks of {manifest.rows}.")
            with connection.cursor() as cursor:
                for statement in connection.ops.sequence_reset_sql(no_style(), _models()):
                    cursor.execute(statement)
            record("backup.restored", path.name, by=None, made_at=manifest.made_at, rows=rows)
            storage.send(manifest.stores)  # what can fail, while all can still be put back
        storage.renew(manifest.stores, before)
    return Done(str(path), manifest.rows, path.stat().st_size)


class _Exact(DjangoJSONEncoder):
    """Moments to the microsecond; Django's cuts them to milliseconds."""

    def default(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else super().default(value)


def _models() -> list[type[Model]]:
    """All, but for sessions: everybody signs in again."""
    models = apps.get_app_config("planner").get_models()
    return [model for model in models if model is not Session]


def _to_be_replaced() -> str:
    """What an installation holds that a restore would replace, in words; "" for nothing."""
    replaced = (model for model in _models() if model is not Workspace)  # one is always there
    counts = ((model._meta.verbose_name_plural, model._base_manager.count()) for model in replaced)
    return ", ".join(f"{count} {name}" for name, count in counts if count)


def _last_migration() -> str:
    applied = MigrationRecorder(connection).applied_migrations()
    return max(name for app, name in applied if app == "planner")


def _taken(folder: Path) -> Manifest:
    for left in reversed(range(TRIES)):
        outermost = not connection.in_atomic_block
        try:
            with transaction.atomic():
                if outermost and connection.vendor == "postgresql":
                    with connection.cursor() as cursor:
                        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return _snapshot(folder)
        except (FileNotFoundError, Damaged):  # removed meanwhile, or lost
            if not left:
                raise
    raise AssertionError("every try returns or raises")


def _snapshot(folder: Path) -> Manifest:
    rows = _written(
        folder,
        (
            row
            for model in _models()
            for row in model._base_manager.order_by("pk").iterator(chunk_size=100)
        ),
    )
    stores = list(stores_named())
    shutil.rmtree(folder / "arrays", ignore_errors=True)
    for store in stores:
        _link(storage.held(store), folder / "arrays" / store)
    return Manifest(
        FORMAT, VERSION, _last_migration(), timezone.now().isoformat(), rows, sorted(stores)
    )


def _written(folder: Path, rows: Iterable[Model]) -> int:
    """How many rows were written there."""
    count = 0
    with (folder / ROWS).open("w", encoding="utf-8") as out:
        for row in rows:
            serializers.serialize("jsonl", [row], stream=out, cls=_Exact)
            count += 1
    return count


def stores_named() -> Iterator[str]:
    """Paths that rows name. Of runs those that are completed: one that is going writes its tables
    anew when it is taken up, and nobody sees what another may have left."""
    runs = Run.everywhere.filter(state=Run.State.COMPLETED)
    for rows in (runs, *(model._base_manager.all() for model in STORED)):
        yield from rows.exclude(store="").values_list("store", flat=True)
    for source in Source._base_manager.exclude(store=""):
        # One that has never counted anything may have no folder yet.
        if source.trace_id is not None or storage.exists(source.store):
            yield source.store
    uploads = set(storage.listed(UPLOADS))
    for options in Run.everywhere.filter(kind=Run.Kind.INGEST).values_list("options", flat=True):
        if (upload := options.get("upload", "")) in uploads:
            yield upload


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                _link(path, target / path.relative_to(source))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _pack(folder: Path, manifest: Manifest, path: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it holds tokens
    with (
        os.fdopen(descriptor, "wb") as file,
        zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for name in (MANIFEST, ROWS, "arrays"):
            if (folder / name).exists():
                tar.add(folder / name, arcname=name)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _unpack(path: Path, folder: Path) -> None:
    try:
        with (
            path.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as tar,
        ):
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise PlannerError(
            f"{path} is no backup, or is damaged ({error}); nothing was changed."
        ) from None


def _manifest(folder: Path, path: Path) -> Manifest:
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise PlannerError(f"{path} is no backup of Headroom; nothing was changed.") from None
    if manifest.format > FORMAT or manifest.migration > _last_migration():
        raise PlannerError(
            f"{path} was made by version {manifest.version}, which is newer than this one; restore "
            "it with that version."
        )
    missing = [store for store in manifest.stores if not (folder / "arrays" / store).exists()]
    if missing:
        raise PlannerError(f"{path} lacks {missing[0]}, so it is damaged; nothing was changed.")
    return manifest


def _load(path: Path) -> int:
    rows = 0
    # The main one is for rows from before there were workspaces.
    with path.open(encoding="utf-8") as file, within(MAIN):
        for line in file:
            for row in serializers.deserialize("jsonl", line, ignorenonexistent=True):
                row.save()
                _rejoin(row.object, line)
                rows += 1
    return rows


def _rejoin(row: Any, line: str) -> None:
    """People had one role once, which is now that of a membership."""
    if isinstance(row, User) and (role := json.loads(line)["fields"].get("role")):
        row.join(current_workspace(), role)


@contextmanager
def _swapped(folder: Path) -> Iterator[None]:
    """The arrays of the backup in place of those there; put back when the rows cannot be."""
    undo: list[Callable[[], Any]] = []
    try:
        for name in KEPT:
            there, new, old = storage.data_dir() / name, folder / "arrays" / name, folder / "old"
            if there.exists():
                old.mkdir(exist_ok=True)
                there.rename(old / name)
                undo.append(lambda old=old / name, there=there: old.rename(there))  # type: ignore[misc]
            if new.exists():
                new.rename(there)
                undo.append(lambda there=there: shutil.rmtree(there))  # type: ignore[misc]
        uploads = storage.data_dir() / UPLOADS
        if not uploads.exists():  # what is uploaded next is written there, by whoever serves
            uploads.mkdir(mode=0o700)
            undo.append(uploads.rmdir)
        yield
    except BaseException:
        for step in reversed(undo):
            step()
        raise
