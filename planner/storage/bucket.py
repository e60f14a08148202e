"""Store arrays in an S3-compatible bucket, of which local folders are a cache.

A store is a folder, or one file, below the data directory, such as ``runs/7``. Under its name, the
bucket has its content in objects named by their SHA-256, and ``manifest.json``, which lists the
files that they form. The manifest is written after all objects, so a store is complete or not
there. While a store is written again, readers see the old one. Content is compared with its digest
when it is read.

``arrays/STORE.json`` in the data directory is the stamp of a local copy: the manifest that its
files last matched. It is modified when the copy is used.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from planner.errors import BucketUnreachable, DamagedFile, SourceError
from planner.files.atomic_write import is_draft, replace_file
from planner.inputs.live.bucket import Bucket, BucketPlace, Keys
from planner.storage.bucket_settings import ArraysBucket

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STAMPS = "arrays"  # folder of the stamps, in the data directory
PART_BYTES = 64 << 20  # a larger file has several objects
ATTEMPTS = 5  # per request, over about 20 s: a restart of the server does not end a long run
LOCKS = 64  # lock files that all stores share
TRIES = 3  # a store may be written again while it is read


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store, as a manifest lists it."""

    path: str  # relative to the store; "" if the store is one file
    bytes: int
    parts: tuple[str, ...]  # digests of its parts, which are the names of their objects


class BucketStore:
    """A bucket with stores, and a local cache of them.

    ``store`` is the name of a store: its path below the data directory. Methods raise
    BucketUnreachable if the bucket does not answer, and DamagedFile if content is missing in it.
    """

    def __init__(
        self,
        settings: ArraysBucket,
        base: Path,
        ca_file: str = "",
        max_cached_bytes: int | None = None,  # limit of local copies; None: no limit
        unused_s: float = 0.0,  # a copy may be deleted if it was not used for so long
    ) -> None:
        self._base, self._prefix, self.name = base, settings.prefix, settings.name
        self._max_cached_bytes, self._unused_s = max_cached_bytes, unused_s
        with self._source_errors_as_unreached():
            self._bucket = Bucket(
                BucketPlace(settings.url, settings.bucket, settings.prefix),
                signing_region=settings.region,
                keys=Keys(settings.access, settings.secret, settings.session), ca_file=ca_file,
                attempts=ATTEMPTS, writes=True,
            )  # fmt: skip

    def keep(self, store: str) -> None:
        """Upload the local files of a store to the bucket, so that it equals them.

        Files are stored in parts, with the digest of the content as key. Parts that the bucket has
        are not sent, and those that no file needs any more are deleted at the end.
        """
        with self._lock(store), self._source_errors_as_unreached():
            old_digests = _object_names(self._read_manifest(store)) or set()
            stored_keys = {key for key, _ in self.objects(store)}
            files = []
            for path in self._local_files(store):
                files.append(self._upload_parts(store, path, stored_keys))
            document = {"format": 1, "files": [asdict(file) for file in files]}
            manifest = json.dumps(document).encode()
            self._bucket.put(self._key(store, MANIFEST), manifest)
            self._write_stamp(store, manifest)
            new_digests = {part for file in files for part in file.parts}
            for digest in old_digests - new_digests:
                self._bucket.delete(self._key(store, digest))
        self.make_room(but=store)

    def send(self, store: str) -> None:
        """Upload the content of a store but not its manifest, so that readers see no change yet.

        Content that the bucket has is uploaded again, since it may have been damaged.
        """
        with self._source_errors_as_unreached():
            for path in self._local_files(store):
                self._upload_parts(store, path, stored_keys=set())

    def fetch(self, store: str) -> None:
        """Download what differs, so that the local files of a store equal the bucket's.

        The stamp is a copy of the manifest of the local files, and its time that of their last use.
        """
        with self._source_errors_as_unreached():
            manifest = self._read_manifest(store)
        stamp = self._stamp_path(store)
        with suppress(FileNotFoundError):  # no copy, or another process has just deleted it
            if manifest == stamp.read_bytes() and (self._base / store).exists():
                os.utime(stamp)  # it is used now
                return
        with self._lock(store), self._source_errors_as_unreached():
            for tries_left in reversed(range(TRIES)):  # another machine may change it meanwhile
                manifest = self._read_manifest(store)
                if manifest is None:
                    raise self._damage_error(store, "is not there")
                try:
                    self._download_parts(store, _files_of(manifest))
                except DamagedFile:
                    was_changed = manifest != self._read_manifest(store)
                    if not tries_left or not was_changed:
                        raise
                else:
                    self._write_stamp(store, manifest)
                    break
        self.make_room(but=store)

    def make_room(self, but: str = "") -> int:
        """Delete the least recently used local copies until the cache is within its limit.

        Returns the number of deleted copies. Those used in the last ``unused_s`` seconds stay,
        since a run may still read them. ``but`` names a copy that stays too.
        """
        if self._max_cached_bytes is None:
            return 0
        copies = []  # (epoch s of the last use, bytes, stamp)
        for stamp in (self._base / STAMPS).rglob("*.json"):
            with suppress(FileNotFoundError, DamagedFile):
                size = sum(file.bytes for file in _files_of(stamp.read_bytes()))
                copies.append((stamp.stat().st_mtime, size, stamp))
        cached_bytes = sum(size for _, size, _ in copies)
        unused_since_s = time.time() - self._unused_s
        deleted = 0
        for used_s, size, stamp in sorted(copies):
            if cached_bytes <= self._max_cached_bytes or used_s > unused_since_s:
                break
            store = stamp.relative_to(self._base / STAMPS).with_suffix("").as_posix()
            if store != but and self._delete_copy(store, stamp, unused_since_s):
                cached_bytes -= size
                deleted += 1
        return deleted

    def _delete_copy(self, store: str, stamp: Path, unused_since_s: float) -> bool:
        """Delete the local copy of a store; return False if it was used after ``unused_since_s``.

        That is in epoch seconds. The file ``stamp`` changes with every use.
        """
        with self._lock(store):
            if not stamp.exists() or stamp.stat().st_mtime > unused_since_s:
                return False
            stamp.unlink()
            copy = self._base / store
            if copy.is_dir():
                shutil.rmtree(copy, ignore_errors=True)
            else:
                copy.unlink(missing_ok=True)
        logger.info("%s is no longer cached here", store)
        return True

    def remove(self, store: str) -> None:
        """Remove a store from the bucket.

        Objects that cannot be deleted now are deleted later by the cleanup, since no row names
        them.
        """
        self.invalidate_copy(store)
        try:
            with self._source_errors_as_unreached():
                self._bucket.delete(self._key(store, MANIFEST))
                for name, _ in self.objects(store):
                    self._bucket.delete(self._key(store, name))
        except BucketUnreachable as problem:
            logger.warning("%s is not removed from the bucket yet: %s", store, problem)

    def invalidate_copy(self, store: str) -> None:
        """Have the next ``fetch`` compare the local files of a store with the bucket."""
        self._stamp_path(store).unlink(missing_ok=True)

    def has_all_objects(self, store: str) -> bool:
        """Return whether the bucket has every object that the store's manifest names."""
        with self._source_errors_as_unreached():
            named = _object_names(self._read_manifest(store))
            stored = {name for name, _ in self.objects(store)}
        return named is not None and named <= stored

    def stores(self, folder: str) -> list[str]:
        """Return the names of the stores below ``folder``, even of incomplete ones."""
        with self._source_errors_as_unreached():
            return [f"{folder}/{name}" for name in self._bucket.folders(f"{folder}/")]

    def objects(self, store: str) -> list[tuple[str, float]]:
        """Return the name and the time of the last change (epoch s) of each object of a store."""
        prefix = self._key(store, "")  # what keys have before an object's name
        with self._source_errors_as_unreached():
            stored = self._bucket.objects(f"{store}/")
        return [(entry.key.removeprefix(prefix), entry.written_s) for entry in stored]

    def bytes_of(self, stores: Collection[str]) -> int:
        """Return the total bytes of the stores' objects; one request per parent folder."""
        folders = {store.partition("/")[0] for store in stores}
        total = 0
        with self._source_errors_as_unreached():
            for folder in folders:
                for entry in self._bucket.all_objects(f"{folder}/"):
                    path = entry.key.removeprefix(self._key("", ""))
                    store, _, _ = path.rpartition("/")
                    if store in stores:
                        total += entry.bytes
        return total

    def _read_manifest(self, store: str) -> bytes | None:
        """Return the manifest of a store; None if it has none."""
        return self._bucket.get(self._key(store, MANIFEST))

    def _key(self, store: str, name: str) -> str:
        """Return the key of a store's object called ``name``."""
        folders = [part for part in (self._prefix, store) if part]
        return "/".join([*folders, name])

    def _local_files(self, store: str) -> list[Path]:
        """Return the local files of a store, sorted, without temporary ones."""
        root = self._base / store
        if root.is_file():
            return [root]
        return sorted(
            path for path in root.rglob("*") if path.is_file() and not is_draft(path.name)
        )

    def _upload_parts(self, store: str, path: Path, stored_keys: set[str]) -> StoredFile:
        """Upload the parts of a local file that are not in ``stored_keys``, and add them to it.

        Returns the file for the manifest.
        """
        digests: list[str] = []
        size = 0
        with path.open("rb") as file:
            for part in _parts_of(file):
                digest = hashlib.sha256(part).hexdigest()
                if digest not in stored_keys:
                    self._bucket.put(self._key(store, digest), part)
                    stored_keys.add(digest)
                digests.append(digest)
                size += len(part)
        root = self._base / store
        name = "" if path == root else path.relative_to(root).as_posix()
        return StoredFile(name, size, tuple(digests))

    def _download_parts(self, store: str, files: list[StoredFile]) -> None:
        """Download those of ``files`` that differ locally, and delete local files that it lacks."""
        root = (self._base / store).resolve()
        paths = set()
        for file in files:
            path = (root / file.path).resolve() if file.path else root
            if not path.is_relative_to(root):
                raise self._damage_error(store, f"names {file.path!r}, which is elsewhere")
            paths.add(path)
            if _digests(path) != file.parts:
                self._download_file(store, file, path)
        if not root.is_file():
            root.mkdir(parents=True, exist_ok=True)
            for path in self._local_files(store):
                if path.resolve() not in paths:  # a file of an earlier version
                    path.unlink(missing_ok=True)

    def _download_file(self, store: str, file: StoredFile, path: Path) -> None:
        """Download a file; raise DamagedFile if a part is missing or its digest differs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as draft, draft.open("wb") as out:
            for digest in file.parts:
                part = self._bucket.get(self._key(store, digest))
                if part is None:
                    raise self._damage_error(store, f"lacks {file.path or 'its file'}")
                if hashlib.sha256(part).hexdigest() != digest:
                    name = file.path or "file"
                    raise self._damage_error(store, f"has another {name} than was stored")
                out.write(part)

    def _damage_error(self, store: str, how: str) -> DamagedFile:
        """Log and return the error for a store that is damaged; ``how`` continues its name."""
        logger.error("%s in %s %s", store, self.name, how)
        return DamagedFile(f"{store} in the bucket {how}. Run it again, or restore a backup.")

    def _stamp_path(self, store: str) -> Path:
        """Return the file of a store's stamp."""
        return self._base / STAMPS / f"{store}.json"

    def _write_stamp(self, store: str, manifest: bytes) -> None:
        """Record that the local files of a store match ``manifest``."""
        path = self._stamp_path(store)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as draft:
            draft.write_bytes(manifest)

    @contextmanager
    def _lock(self, store: str) -> Iterator[None]:
        """Lock a store within the block against other processes of this machine."""
        folder = self._base / STAMPS
        folder.mkdir(parents=True, exist_ok=True)
        number = zlib.crc32(store.encode()) % LOCKS  # stores share lock files
        with (folder / f"lock-{number}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _source_errors_as_unreached(self) -> Iterator[None]:
        """Turn each SourceError of the bucket into BucketUnreachable."""
        try:
            yield
        except SourceError as problem:
            raise BucketUnreachable(
                f"Traces and results are in {self.name}, which cannot be used now: {problem}"
            ) from None


def _files_of(manifest: bytes) -> list[StoredFile]:
    """Return the files in a manifest; raise DamagedFile if it cannot be read."""
    try:
        listed = json.loads(manifest)["files"]
        return [
            StoredFile(entry["path"], entry["bytes"], tuple(entry["parts"])) for entry in listed
        ]
    except (ValueError, KeyError, TypeError):
        raise DamagedFile(
            "The manifest in the bucket is damaged. Run it again, or restore a backup."
        ) from None


def _object_names(manifest: bytes | None) -> set[str] | None:
    """Return the names of the objects in a manifest; None if it is None or damaged."""
    if manifest is None:
        return None
    try:
        return {digest for file in _files_of(manifest) for digest in file.parts}
    except DamagedFile:
        return None


def _parts_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file in parts of PART_BYTES; an empty file has one empty part."""
    yield file.read(PART_BYTES)
    while part := file.read(PART_BYTES):
        yield part


def _digests(path: Path) -> tuple[str, ...]:
    """Return the digests of the parts of a local file; () if there is no such file."""
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        return tuple(hashlib.sha256(part).hexdigest() for part in _parts_of(file))
