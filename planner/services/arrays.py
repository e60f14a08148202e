"""Copy stored arrays into the bucket, and remove files that no row names.

A store is a folder or file of arrays in the data directory or the bucket. A row of the database
names it in the column ``store``.
"""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.db.models import Model

from planner.errors import NotReady
from planner.files.atomic_write import final_name
from planner.models import Run, Source, Trace
from planner.services.backups import DATA_FOLDERS, MODELS_WITH_ARRAYS, named_stores
from planner.services.traces import store_of
from planner.storage import row_arrays
from planner.storage.row_arrays import RUNS, TRACES, UPLOADS

logger = logging.getLogger(__name__)
MIN_AGE_S = 3600.0  # after this time its writer is done, or dead


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """What a copy of this machine's stores to the bucket did; each store is a folder or file."""

    bucket: str
    present: int  # number of stores that the bucket already had
    copied: int  # number of stores copied from this machine
    lost: tuple[str, ...]  # stores that rows name and that are in neither place


def arrays_copy_to_bucket() -> BucketCopy:
    """Copy to the bucket every folder or file of arrays that a row names and the bucket lacks."""
    bucket = row_arrays.bucket()
    if bucket is None:
        raise NotReady(
            "Arrays are kept in the data folder. Name a bucket in HEADROOM_ARRAYS to keep them "
            "there (docs/operations.md)."
        )
    present, copied, lost = 0, 0, []
    for store in sorted(named_stores()):
        if bucket.has_all_objects(store):
            present += 1
        elif row_arrays.folder(store).exists():
            bucket.keep(store)
            copied += 1
        else:
            lost.append(store)
    return BucketCopy(bucket.name, present, copied, tuple(lost))


def orphans_sweep(*, min_age_s: float = MIN_AGE_S) -> int:
    """Remove uploads, traces, tables and unfinished messages that belong to no row.

    Returns the number removed. Files written within the last ``min_age_s`` seconds stay.
    """
    written_before_s = time.time() - min_age_s
    # List files first and rows after: a file that gets its row in between stays.
    paths = _paths_to_check(row_arrays.data_dir())
    old_paths = [path for path in paths if _last_written(path) < written_before_s]
    # Active ingest runs will create these folders, so their temporary folders stay.
    ingests = Run.everywhere.filter(
        kind=Run.Kind.INGEST, state__in=Run.ACTIVE_STATES, trace__isnull=False
    )
    traces = ingests.values_list("trace_id", "trace__sha256")
    active_stores = {store_of(number, sha256) for number, sha256 in traces}
    named = _named_paths()
    removed = 0
    for path in old_paths:
        # The name that a temporary folder gets when it is complete.
        final_path = _relative(path.with_name(final_name(path.name)))
        if _relative(path) in named or final_path in active_stores:
            continue
        logger.info("%s has no owner and is removed", path.name)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed += 1
    return removed + _sweep_bucket(written_before_s)


def _sweep_bucket(written_before_s: float) -> int:
    """Remove arrays in the bucket that no row names; return the number of folders and files.

    Those written since ``written_before_s`` (epoch seconds) stay.
    """
    bucket, removed = row_arrays.bucket(), 0
    if bucket is None:
        return 0
    # List files first and rows after: a file that gets its row in between stays.
    stores = [store for name in DATA_FOLDERS for store in bucket.stores(name)]
    named = _named_paths()
    for store in stores:
        if store in named:
            continue
        written_s = [object_written_s for _, object_written_s in bucket.objects(store)]
        if written_s and max(written_s) < written_before_s:
            logger.info("%s has no owner and is removed", store)
            bucket.remove(store)
            removed += 1
    return removed


def _paths_to_check(base: Path) -> Iterator[Path]:
    """Yield every file and folder in the data directory ``base`` that some row should name."""
    for name in (UPLOADS, TRACES, RUNS):
        folder = base / name
        if folder.is_dir():
            yield from folder.iterdir()
    # A killed process leaves the draft of a message, which no worker reads.
    yield from (base / "queue").glob("*/*.part")


def _relative(path: Path) -> str:
    """Return a path relative to the data directory, as rows name it."""
    return str(path.relative_to(row_arrays.data_dir()))


def _last_written(path: Path) -> float:
    """Return when a file, or anything in a folder, was last modified, in epoch seconds."""
    modified_s = [0.0]  # for a file that is removed meanwhile
    with suppress(FileNotFoundError):
        modified_s.append(path.stat().st_mtime)
        if path.is_dir():
            modified_s += [inner.stat().st_mtime for inner in path.rglob("*")]
    return max(modified_s)


def _named_paths() -> set[str]:
    """Return the paths that rows name, relative to the data directory."""
    names: set[str] = set()
    models: tuple[type[Model], ...] = (*MODELS_WITH_ARRAYS, Source, Run)
    for model in models:
        names.update(model._base_manager.values_list("store", flat=True))
    ingests = Run.everywhere.filter(kind=Run.Kind.INGEST)
    # A refused trace can be ingested again from its upload.
    waiting = ingests.filter(state__in=Run.ACTIVE_STATES) | ingests.filter(
        trace__state=Trace.State.REFUSED
    )
    names.update(options.get("upload", "") for options in waiting.values_list("options", flat=True))
    return names
