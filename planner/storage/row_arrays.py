"""Store arrays: folders under the data directory with tables as Parquet files.

A store is such a folder, or a single file. Its name is its path below the data directory, such
as ``runs/7``, which a row of the database has in the column ``store``. With HEADROOM_ARRAYS, stores
are in a bucket, and the folders are a cache of it. Code that has written a store calls ``keep``.
Code that reads a store calls ``local_path``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
from django.conf import settings

from planner.errors import DamagedFile, NotFound
from planner.files.damage import ARRAY_ERRORS, TABLE_ERRORS, all_decode, damage_reported
from planner.storage.bucket_settings import ArraysBucket

if TYPE_CHECKING:
    from planner.storage.bucket import BucketStore

# Folders under the data directory; commands that need no more import only this module.
RUNS, TRACES, UPLOADS = "runs", "traces", "uploads"
LOCKS = "locks"
AGAIN = "carry the run out again, or restore a backup"
LOCK_RETRY_S = 0.2  # interval at which a lock is tried again
_TABLE = re.compile(r"[a-z][a-z0-9_]*")
TablesState = tuple[tuple[str, int, int], ...]  # name, time of the last change in ns, bytes


def data_dir() -> Path:
    """Return the data directory."""
    return Path(settings.HEADROOM_DATA_DIR)


def folder(store: str) -> Path:
    """Return the path of a store on this machine; raise NotFound outside the data directory."""
    base = data_dir().resolve()
    path = (base / store).resolve()
    if not path.is_relative_to(base) or path == base:
        raise NotFound(f"{store!r} is not a folder of the data directory.")
    return path


def bucket() -> BucketStore | None:
    """Return the bucket that stores arrays; None if they are stored in the data directory."""
    if settings.HEADROOM_ARRAYS is None:
        return None
    return _bucket_store(
        settings.HEADROOM_ARRAYS,
        data_dir(),
        settings.HEADROOM_SOURCES_CA,
        max_cached_bytes=settings.HEADROOM_CACHE_BYTES,
        unused_s=settings.HEADROOM_MAX_RUN_SECONDS,
    )


@lru_cache(maxsize=4)
def _bucket_store(
    address: ArraysBucket, base: Path, ca_file: str, max_cached_bytes: int | None, unused_s: float
) -> BucketStore:
    """Return the bucket at an address with its local cache, made once per process."""
    from planner.storage.bucket import BucketStore  # imported on use: it takes 31 MB

    return BucketStore(address, base, ca_file, max_cached_bytes, unused_s)


def local_path(store: str) -> Path:
    """Return the path of a store for reading, in the newest version of any machine."""
    path = folder(store)
    if store_bucket := bucket():
        store_bucket.fetch(store)
    return path


def keep(store: str) -> None:
    """Upload a store that was written here, if there is a bucket, for other machines."""
    if store_bucket := bucket():
        store_bucket.keep(store)


def stores_below(name: str) -> list[str]:
    """Return the names of the stores below ``name``, a folder of the data directory."""
    path = folder(name)
    if store_bucket := bucket():
        return store_bucket.stores(name)
    entries = path.iterdir() if path.is_dir() else ()
    return [f"{name}/{entry.name}" for entry in entries]


def bytes_of(stores: Iterable[str]) -> int:
    """Return the total bytes of ``stores``, each counted once; missing ones count as 0."""
    distinct = set(stores)
    if store_bucket := bucket():
        return store_bucket.bytes_of(distinct)
    total = 0
    for path in map(folder, distinct):
        for entry in (path, *path.rglob("*")):  # rglob() of a file yields nothing
            with suppress(OSError):  # removed meanwhile
                if entry.is_file():
                    total += entry.stat().st_size
    return total


def send(stores: Iterable[str]) -> None:
    """Upload the content of stores to the bucket; readers see no change before ``renew``."""
    if store_bucket := bucket():
        for store in stores:
            store_bucket.send(store)


def renew(stores: Collection[str], before: Iterable[str]) -> None:
    """Publish ``stores`` as they are here, and remove those that are only in ``before``."""
    if store_bucket := bucket():
        for store in stores:
            store_bucket.keep(store)
        for store in set(before) - set(stores):
            store_bucket.remove(store)


@contextmanager
def lock_folder(store: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Run the block for a store in only one process of this machine at a time.

    While another process runs it, ``waiting`` is called, which may raise to stop. The lock is
    released when its process ends.
    """
    path = folder(f"{LOCKS}/{store.replace('/', '-')}")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                time.sleep(LOCK_RETRY_S)
                continue
            was_removed = os.fstat(lock.fileno()).st_nlink == 0  # by its last holder
            if was_removed:
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


@contextmanager
def changing(store: str) -> Iterator[Path]:
    """Yield the folder of a store to add files to, and publish it after the block.

    The caller ensures that nobody else changes it, on any machine.
    """
    yield local_path(store)
    keep(store)


def exists(store: str) -> bool:
    """Return whether a store exists; in a bucket, whether all of its content exists."""
    path, store_bucket = folder(store), bucket()
    return path.exists() if store_bucket is None else store_bucket.has_all_objects(store)


def is_readable(store: str) -> bool:
    """Return whether a stored folder exists and each of its tables can be decoded."""
    if not exists(store):
        return False
    if all_decode(local_path(store)):
        return True
    store_bucket = bucket()
    if store_bucket is None:
        return False
    store_bucket.invalidate_copy(store)  # so local_path() fetches it from the bucket again
    return all_decode(local_path(store))


def remove(store: str) -> None:
    """Remove a store, here and in the bucket; "" does nothing."""
    if not store:
        return
    path = folder(store)
    if path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
    if store_bucket := bucket():
        store_bucket.remove(store)


def tables_write(store: str, tables: dict[str, pl.DataFrame]) -> None:
    """Write tables as Parquet files into the folder of a store; ``keep`` publishes them."""
    target = folder(store)
    target.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.write_parquet(target / f"{name}.parquet", compression="zstd")


def arrays_write(store: str, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays that users do not see as the file ``name`` of a store."""
    target = folder(store)
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / f"{name}.npz", **dict(arrays))  # type: ignore[arg-type]


def arrays_read(store: str, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays in the file ``name`` of a store, by their names; {} without the file."""
    path = local_path(store) / f"{name}.npz"
    if not path.exists():
        return {}
    with _report_damage(store, path), np.load(path, allow_pickle=False) as file:
        return dict(file)


def tables_list(store: str) -> list[str]:
    """Return the names of the tables in a store, sorted; [] for ""."""
    if not store:
        return []
    return sorted(path.stem for path in local_path(store).glob("*.parquet"))


def tables_state(store: str) -> TablesState:
    """Return (name, time of change in ns, bytes) of each table in a store, by name; () for "".

    A table has changed if its entry has.
    """
    if not store:
        return ()
    paths = sorted(local_path(store).glob("*.parquet"))
    stats = [(path.name, path.stat()) for path in paths]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def table_path(store: str, name: str) -> Path:
    """Return the file of the table ``name`` in a store; raise NotFound with the existing tables."""
    tables = tables_list(store)
    if _TABLE.fullmatch(name) and name in tables:
        return folder(store) / f"{name}.parquet"
    known = ", ".join(tables) or "none"
    raise NotFound(f"There is no table {name!r} here. Known: {known}.")


def table_read(store: str, name: str, offset: int = 0, limit: int | None = None) -> pl.DataFrame:
    """Return a table in a store: ``limit`` rows (None: all) from row ``offset`` on."""
    path = table_path(store, name)
    with _report_damage(store, path):
        return pl.scan_parquet(path).slice(offset, limit).collect()


def table_rows(store: str, name: str) -> int:
    """Return the number of rows of a table in a store, without reading them."""
    path = table_path(store, name)
    with _report_damage(store, path):
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())


@contextmanager
def _report_damage(store: str, path: Path) -> Iterator[None]:
    """Raise DamagedFile if the block cannot read the file ``path`` of a store."""
    try:
        errors = (*TABLE_ERRORS, *ARRAY_ERRORS)
        with damage_reported(f"The stored table {path.stem!r}", AGAIN, errors):
            yield
    except DamagedFile:
        if store_bucket := bucket():
            store_bucket.invalidate_copy(store)  # the next reader fetches it from the bucket again
        raise
