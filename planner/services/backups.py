"""Write one file with every row and every array while the product runs, and restore it.

The file is a tar, packed with zstd. It has ``manifest.json``, ``rows.jsonl`` (see
``row_documents``) and the stores: files and folders of arrays, which rows name in the column
``store``. It can be restored into SQLite and PostgreSQL. Rows are read in one transaction. Arrays
never change once a row names them, so a snapshot of them consists of hard links. Each backup is
restored into a scratch database and compared before it appears. Sessions are not included.
"""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import zstandard
from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model
from django.utils import timezone

from planner.errors import DamagedFile, NotReady, PlannerError
from planner.models import (
    Calibration,
    Counter,
    ProfileVersion,
    Run,
    Session,
    Source,
    Trace,
    Workspace,
)
from planner.models.workspace import MAIN, use_workspace
from planner.services.audit import record, without_triggers
from planner.services.row_documents import (
    LoadedRows,
    RowDigest,
    TableFigures,
    all_rows,
    differences,
    document_of,
    line_of,
    load,
    tables_of_rows,
    tally_of,
)
from planner.services.scratch_database import scratch_database
from planner.storage import row_arrays
from planner.storage.row_arrays import RUNS, TRACES, UPLOADS
from planner.version import VERSION

FORMAT = 2  # format 1 had no figures of tables
MANIFEST, ROWS, ARRAYS = "manifest.json", "rows.jsonl", "arrays"
SNAPSHOT_TRIES = 3  # a store may be removed after its row was read and before its files are linked
BLOCK_BYTES = 2**20
UNREADABLE = (tarfile.TarError, zstandard.ZstdError, EOFError)
# Folders of the data directory.
DATA_FOLDERS = (TRACES, RUNS, UPLOADS, "calibrations", "profiles", "live")
NEVER_EMPTY = (Workspace, Counter)  # an empty installation may have rows of these
MODELS_WITH_ARRAYS: tuple[type[Model], ...] = (Trace, Calibration, ProfileVersion)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The origin, rows and arrays of a backup."""

    format: int
    version: str  # of the program
    migration: str  # the last one applied to the tables
    made_at: str
    rows: int
    stores: list[str]  # folders and files of arrays, relative to the data directory
    tables: dict[str, TableFigures] = field(default_factory=dict)
    workspace: str = ""  # slug of the only workspace in the backup; "": the whole installation


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """Summary of a written backup."""

    path: str
    rows: int
    bytes: int  # of the file
    tables: int  # tables that have rows
    checked_in: str  # database of the test restore: "postgresql" or "sqlite"


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """Summary of a restore."""

    path: str
    rows: int
    bytes: int  # of the file
    left_out: dict[str, int]  # rows of each table or column that this version does not have
    replaced: int  # rows in which characters were replaced


def backup(path: Path) -> BackupSummary:
    """Write a backup to ``path``, which appears only after a test restore succeeded."""
    if path.is_dir():
        raise PlannerError(f"{path} is a folder. Give the path of a file.")
    record("backup.begun", path.name, by=None)  # first, so that the backup holds this record too
    row_arrays.data_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="backup-", dir=row_arrays.data_dir()) as name:
        folder = Path(name)
        manifest = _snapshot_with_retries(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        checked_in = _write(folder, manifest, path)
    tables = len(manifest.tables)
    return BackupSummary(str(path), manifest.rows, path.stat().st_size, tables, checked_in)


def write_workspace(
    slug: str, folder: Path, rows: Iterable[Model], stores: list[str], path: Path
) -> None:
    """Write a backup with the rows and arrays of one workspace, checked like a full backup.

    ``folder`` is an empty folder in the data directory. ``rows`` must include every row that they
    refer to.
    """
    tally = _write_rows(folder, rows)
    for store in stores:
        _link(row_arrays.local_path(store), folder / ARRAYS / store)
    _write(folder, _build_manifest(tally, stores, slug), path)


def restore(
    path: Path, *, replace: bool = False, replace_characters: bool = False
) -> RestoreSummary:
    """Restore a backup into an empty installation, or with ``replace`` over existing content.

    Either everything is restored or nothing. Raises PlannerError with the row that the database
    refuses. With ``replace_characters``, characters that the database cannot store become U+FFFD.
    """
    if not path.is_file():
        raise PlannerError(f"{path}: there is no such file. Check the path.")
    existing = _rows_to_replace()
    if existing and not replace:
        raise NotReady(
            f"This installation already holds {existing}. Restore into an empty one, or give "
            "--replace to replace all of its data."
        )
    row_arrays.data_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="restore-", dir=row_arrays.data_dir()) as name:
        folder = Path(name)
        _unpack(path, folder)
        manifest = _checked_manifest(folder, path)
        if replace and manifest.workspace:
            raise NotReady(
                f"{path} holds the workspace {manifest.workspace} alone. Restore it into an empty "
                "installation, without --replace."
            )
        stores_before = set(named_stores()) if row_arrays.bucket() else set()
        with _swapping_arrays(folder) as swap, transaction.atomic(), without_triggers():
            try:
                loaded = _replace_rows(folder / ROWS, manifest, replace_characters)
            except PlannerError as problem:
                raise PlannerError(f"{path}: {problem} Nothing was changed.") from problem
            record(
                "backup.restored", path.name, by=None, made_at=manifest.made_at, rows=manifest.rows
            )
            swap()  # last: a process that is killed earlier has changed no array
            # Send arrays to the bucket while everything can still be undone, as this can fail.
            row_arrays.send(manifest.stores)
        row_arrays.renew(manifest.stores, stores_before)
    size = path.stat().st_size
    return RestoreSummary(str(path), manifest.rows, size, loaded.left_out, loaded.replaced)


def _replace_rows(rows: Path, manifest: Manifest, replace_characters: bool) -> LoadedRows:
    """Replace all rows of the database by those in a file, within the caller's transaction.

    Raises PlannerError if the database refuses a row, or if rows differ from the ``manifest``.
    """
    Session.objects.all().delete()
    for model in tables_of_rows():
        model._base_manager.all().delete()
    with rows.open("rb") as lines, use_workspace(MAIN):
        loaded = load(lines, using=DEFAULT_DB_ALIAS, replace_characters=replace_characters)
    _compare(manifest, loaded, DEFAULT_DB_ALIAS)
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), tables_of_rows()):
            cursor.execute(statement)
    return loaded


def _rows_to_replace() -> str:
    """Return in words the rows that a restore would replace, such as "3 runs"; "" if none."""
    replaced = (model for model in tables_of_rows() if model not in NEVER_EMPTY)
    counts = ((model._meta.verbose_name_plural, model._base_manager.count()) for model in replaced)
    return ", ".join(f"{count} {name}" for name, count in counts if count)


def _last_migration() -> str:
    applied = MigrationRecorder(connection).applied_migrations()
    return max(name for app, name in applied if app == "planner")


def _snapshot_with_retries(folder: Path) -> Manifest:
    """Write a snapshot into ``folder`` and return its manifest.

    Starts again if arrays are removed meanwhile, at most SNAPSHOT_TRIES times.
    """
    for tries_left in reversed(range(SNAPSHOT_TRIES)):
        is_outermost = not connection.in_atomic_block
        try:
            with transaction.atomic():
                if is_outermost and connection.vendor == "postgresql":
                    # By default each statement sees its own state; all tables need the same.
                    with connection.cursor() as cursor:
                        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                tally = _write_rows(folder, all_rows())
                stores = list(named_stores())
                shutil.rmtree(folder / ARRAYS, ignore_errors=True)
                for store in stores:
                    _link(row_arrays.local_path(store), folder / ARRAYS / store)
                return _build_manifest(tally, sorted(stores))
        except (FileNotFoundError, DamagedFile):  # removed meanwhile, or lost
            if not tries_left:
                raise
    raise AssertionError("every try returns or raises")


def _build_manifest(tally: RowDigest, stores: list[str], workspace: str = "") -> Manifest:
    """Return the manifest of a backup made now; ``workspace`` is a slug, "" for all."""
    return Manifest(
        format=FORMAT,
        version=VERSION,
        migration=_last_migration(),
        made_at=timezone.now().isoformat(),
        rows=tally.rows,
        stores=stores,
        tables=tally.tables(),
        workspace=workspace,
    )


def _write_rows(folder: Path, rows: Iterable[Model]) -> RowDigest:
    """Write the rows to a file in ``folder``; return their counts and digests."""
    tally = RowDigest()
    with (folder / ROWS).open("wb") as out:
        for row in rows:
            document = document_of(row)
            out.write(line_of(document))
            tally.add(document)
    return tally


def named_stores() -> Iterator[str]:
    """Yield the paths of the stored arrays that database rows refer to.

    They are relative to the data directory. Arrays of runs that have not completed are left out: a
    repeated run writes its tables again, and no page shows those of failed runs.
    """
    runs = Run.everywhere.filter(state=Run.State.COMPLETED)
    other_rows = [model._base_manager.all() for model in MODELS_WITH_ARRAYS]
    for rows in (runs, *other_rows):
        yield from rows.exclude(store="").values_list("store", flat=True)
    for source in Source._base_manager.exclude(store=""):
        # A live source that has counted nothing yet may have no folder.
        if source.trace_id is not None or row_arrays.exists(source.store):
            yield source.store
    # Uploads are files, which an ingest run names in its options.
    uploads = set(row_arrays.stores_below(UPLOADS))
    for options in Run.everywhere.filter(kind=Run.Kind.INGEST).values_list("options", flat=True):
        upload = options.get("upload", "")
        if upload in uploads:
            yield upload


def _link(source: Path, target: Path) -> None:
    """Hard-link a file or folder to ``target``; copy it if links are not possible."""
    if source.is_dir():
        target.mkdir(parents=True)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                _link(path, target / path.relative_to(source))
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:  # removed meanwhile: a copy would fail too
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _write(folder: Path, manifest: Manifest, path: Path) -> str:
    """Pack ``folder`` into the file ``path`` and check it by a test restore.

    Returns the database of the test restore: "postgresql" or "sqlite".
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        _pack(folder, manifest, draft)
        try:
            checked_in = _check_restorable(draft, folder, manifest)
        except (PlannerError, *UNREADABLE) as problem:
            raise PlannerError(
                f"{path} was not written, because the backup does not restore. {problem} Run it "
                "again. If it fails again, report this message."
            ) from problem
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return checked_in


def _pack(folder: Path, manifest: Manifest, path: Path) -> None:
    """Write the file: the manifest first, then rows and arrays."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    # Only its owner may read it, because it holds tokens. The mode applies from the creation on, so
    # that nobody can open the file before a chmod.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(descriptor, "wb") as file,
        zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for name in (MANIFEST, ROWS, ARRAYS):
            if (folder / name).exists():
                tar.add(folder / name, arcname=name)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _check_restorable(path: Path, folder: Path, manifest: Manifest) -> str:
    """Restore the file's rows into a scratch database and compare its arrays with ``folder``.

    Returns the kind of that database. Raises PlannerError at the first difference.
    """
    expected = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    with scratch_database(folder) as scratch, _open_tar(path) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                pass  # a folder, or a hard link to a file that was compared
            elif member.name == ROWS:
                with transaction.atomic(using=scratch.alias):
                    loaded = load(content, using=scratch.alias)
                _compare(manifest, loaded, scratch.alias)
            elif not _has_same_content(content, folder / member.name):
                raise PlannerError(f"{member.name} in the backup differs from the original.")
            expected.discard(member.name)
        if expected:
            raise PlannerError(f"{min(expected)} is missing in the backup.")
        return scratch.vendor


def _has_same_content(content: IO[bytes], file: Path) -> bool:
    """Return whether ``content`` has the same bytes as ``file``, read block by block."""
    with file.open("rb") as original:
        while block := original.read(BLOCK_BYTES):
            if content.read(len(block)) != block:
                return False
    return not content.read(1)


def _compare(manifest: Manifest, loaded: LoadedRows, using: str) -> None:
    """Raise PlannerError unless the rows of a restore are complete and stored as they were read.

    ``loaded`` counts the rows read from the file, ``using`` is the database that they were put in.
    """
    if loaded.file_digest.rows != manifest.rows:
        raise PlannerError(
            f"The backup has {loaded.file_digest.rows} rows, its manifest {manifest.rows}."
        )
    faults = differences(manifest.tables, loaded.file_digest.tables()) if manifest.tables else []
    # A row of an older version may read differently once this version has stored it.
    same_version = manifest.migration == _last_migration()
    stored = tally_of(using).tables()
    faults += differences(loaded.stored_digest.tables(), stored, digests=same_version)
    if faults:
        raise PlannerError(faults[0])


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a backup for reading from front to back."""
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as tar,
    ):
        yield tar


def _unpack(path: Path, folder: Path) -> None:
    """Extract a backup into ``folder``; raise PlannerError if it is damaged."""
    try:
        with _open_tar(path) as tar:
            tar.extractall(folder, filter="data")
    except UNREADABLE as error:
        raise PlannerError(
            f"{path} is not a backup, or is damaged ({error}). Nothing was changed."
        ) from None


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a backup without reading the rows and files after it."""
    with suppress(*UNREADABLE, ValueError, TypeError), _open_tar(path) as tar:
        # _pack() writes the manifest first.
        first_member = tar.next()
        content = tar.extractfile(first_member) if first_member is not None else None
        if content is not None:
            return Manifest(**json.load(content))
    raise PlannerError(f"{path} is not a backup of Headroom. Nothing was changed.")


def _checked_manifest(folder: Path, path: Path) -> Manifest:
    """Return the manifest of the backup ``path``, which was extracted into ``folder``.

    Raises PlannerError if a newer version made it or if arrays are missing.
    """
    manifest = read_manifest(path)
    if manifest.format > FORMAT or manifest.migration > _last_migration():
        raise PlannerError(
            f"{path} was made by version {manifest.version}, which is newer than this one. Restore "
            "it with that version."
        )
    missing = [store for store in manifest.stores if not (folder / ARRAYS / store).exists()]
    if missing:
        raise PlannerError(f"{path} is damaged: {missing[0]} is missing. Nothing was changed.")
    return manifest


@contextmanager
def _swapping_arrays(folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that replaces the current arrays by those of the backup.

    If the block fails after the function was called, its changes are undone.
    """

    with ExitStack() as undo:

        def swap() -> None:
            """Move the current arrays aside, and those of the backup to where they were."""
            for name in DATA_FOLDERS:
                current = row_arrays.data_dir() / name
                new = folder / ARRAYS / name
                old = folder / "old"
                if current.exists():
                    old.mkdir(exist_ok=True)
                    current.rename(old / name)
                    undo.callback((old / name).rename, current)
                if new.exists():
                    new.rename(current)
                    undo.callback(shutil.rmtree, current)
            uploads = row_arrays.data_dir() / UPLOADS
            # the next upload needs the folder, in whichever process it arrives
            if not uploads.exists():
                uploads.mkdir(mode=0o700)
                undo.callback(uploads.rmdir)

        yield swap
        undo.pop_all()  # the block succeeded
