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

from planner.errors import BucketUnreachable, DamagedFile, SourceError
from planner.files.atomic_write import is_draft, replace_file
from planner.inputs.live.bucket import Bucket, BucketPlace, Keys
from planner.storage.bucket_settings import ArraysBucket

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STAMPS = "arrays"  # folder of the stamps, in the data directory
PART_BYTES = 64 << 20  # a larger file has several objects
ATTEMPTS = 5  # per request, over about 20 s: a restart of the server does not end a long run
NO_CONTENT = hashlib.sha256(b"").hexdigest()
LOCKS = 64  # lock files that all stores share
TRIES = 3  # a store may be written again while it is read


@dataclass(frozen=True, slots=True)
class File:
    """One file of a store, as a manifest lists it."""

    path: str  # relative to the store; "" if the store is one file
    bytes: int
    parts: tuple[str, ...]  # digests of its parts, which are the names of their objects


class BucketStore:
    """A bucket with stores, and a local cache of them.

    ``relative`` is the name of a store: its path below the data directory. Methods raise
    BucketUnreachable if the bucket does not answer, and DamagedFile if content is missing in it.
    """

    def __init__(
        self,
        settings: ArraysBucket,
        base: Path,
        ca_file: str = "",
        most_bytes: int | None = None,  # limit of local copies; None: no limit
        unused_s: float = 0.0,  # a copy may be deleted if it was not used for so long
    ) -> None:
        self._base, self._prefix, self.name = base, settings.prefix, settings.name
        self._most_bytes, self._unused_s = most_bytes, unused_s
        with self._source_errors_as_unreached():
            self._bucket = Bucket(
                BucketPlace(settings.url, settings.bucket, settings.prefix),
                signing_region=settings.region,
                keys=Keys(settings.access, settings.secret, settings.session), ca_file=ca_file,
                attempts=ATTEMPTS, writes=True,
            )  # fmt: skip

    def keep(self, relative: str) -> None:
        """Upload the local files of a store to the bucket, so that it equals them.

        Content that the bucket has already is not sent.
        """
        with self._lock(relative), self._source_errors_as_unreached():
            before = _parts(self._read(relative)) or set()
            stored_keys = {key for key, _ in self.objects(relative)}
            files = [
                self._upload_parts(relative, path, stored_keys) for path in self._files(relative)
            ]
            text = json.dumps({"format": 1, "files": [asdict(file) for file in files]}).encode()
            self._bucket.put(self._key(relative, MANIFEST), text)
            self._stamp(relative, text)
            for part in before - {part for file in files for part in file.parts}:
                self._bucket.delete(self._key(relative, part))
        self.make_room(but=relative)

    def send(self, relative: str) -> None:
        """Upload the content of a store but not its manifest, so that readers see no change yet.

        Content that the bucket has is uploaded again, since it may have been damaged.
        """
        with self._source_errors_as_unreached():
            for path in self._files(relative):
                self._upload_parts(relative, path, set())

    def fetch(self, relative: str) -> None:
        """Download what differs, so that the local files of a store equal the bucket's."""
        with self._source_errors_as_unreached():
            text = self._read(relative)
        is_local = (self._base / relative).exists()
        if text and text == self._read_stamp(relative) and is_local and self._mark_used(relative):
            return
        self._download_store(relative)
        self.make_room(but=relative)

    def _download_store(self, relative: str) -> None:
        """Download a store; repeat if another machine changes it meanwhile."""
        with self._lock(relative), self._source_errors_as_unreached():
            for tries_left in reversed(range(TRIES)):
                text = self._read(relative)
                if text is None:
                    raise self._damage_error(relative, "is not there")
                try:
                    self._download_parts(relative, _files_of(text))
                except DamagedFile:
                    if not tries_left or text == self._read(relative):
                        raise
                else:
                    self._stamp(relative, text)
                    return

    def make_room(self, but: str = "") -> int:
        """Delete the least recently used local copies until the cache is within its limit.

        Returns the number of deleted copies. Those used in the last ``unused_s`` seconds stay,
        since a run may still read them. ``but`` names a copy that stays too.
        """
        if self._most_bytes is None:
            return 0
        stamps = []
        for path in (self._base / STAMPS).rglob("*.json"):
            with suppress(FileNotFoundError, DamagedFile):
                size = sum(file.bytes for file in _files_of(path.read_bytes()))
                stamps.append((path.stat().st_mtime, size, path))
        cached_bytes = sum(size for _, size, _ in stamps)
        unused_since_s, deleted = time.time() - self._unused_s, 0
        for used_s, size, path in sorted(stamps):
            relative = path.relative_to(self._base / STAMPS).with_suffix("").as_posix()
            if cached_bytes <= self._most_bytes or used_s > unused_since_s:
                break
            if relative != but and self._delete_copy(relative, path, unused_since_s):
                cached_bytes -= size
                deleted += 1
        return deleted

    def _delete_copy(self, relative: str, stamp: Path, unused_since_s: float) -> bool:
        """Delete the local copy of a store; return False if it was used after ``unused_since_s``.

        That is in epoch seconds. The file ``stamp`` changes with every use.
        """
        with self._lock(relative):
            if not stamp.exists() or stamp.stat().st_mtime > unused_since_s:
                return False
            stamp.unlink()
            copy = self._base / relative
            if copy.is_dir():
                shutil.rmtree(copy, ignore_errors=True)
            else:
                copy.unlink(missing_ok=True)
        logger.info("%s is no longer cached here", relative)
        return True

    def remove(self, relative: str) -> None:
        """Remove a store from the bucket.

        Objects that cannot be deleted now are deleted later by the cleanup, since no row names
        them.
        """
        self.forget(relative)
        try:
            with self._source_errors_as_unreached():
                self._bucket.delete(self._key(relative, MANIFEST))
                for name, _ in self.objects(relative):
                    self._bucket.delete(self._key(relative, name))
        except BucketUnreachable as problem:
            logger.warning("%s is not removed from the bucket yet: %s", relative, problem)

    def forget(self, relative: str) -> None:
        """Have the next ``fetch`` compare the local files of a store with the bucket."""
        self._stamp_path(relative).unlink(missing_ok=True)

    def holds(self, relative: str) -> bool:
        """Return whether the bucket has every object that the store's manifest names."""
        with self._source_errors_as_unreached():
            text = self._read(relative)
            stored_keys = {key for key, _ in self.objects(relative)}
        named = _parts(text)
        return named is not None and named <= stored_keys

    def stores(self, folder: str) -> list[str]:
        """Return the names of the stores below ``folder``, even of incomplete ones."""
        with self._source_errors_as_unreached():
            return [f"{folder}/{name}" for name in self._bucket.folders(f"{folder}/")]

    def objects(self, relative: str) -> list[tuple[str, float]]:
        """Return the name and the time of the last change (epoch s) of each object of a store."""
        prefix = self._key(relative, "")
        with self._source_errors_as_unreached():
            stored = self._bucket.objects(f"{relative}/")
        return [(entry.key.removeprefix(prefix), entry.written_s) for entry in stored]

    def bytes_of(self, stores: Collection[str]) -> int:
        """Return the total bytes of the stores' objects; one request per parent folder."""
        folders = {store.partition("/")[0] for store in stores}
        total = 0
        with self._source_errors_as_unreached():
            for folder in folders:
                for entry in self._bucket.all_objects(f"{folder}/"):
                    store, _, _ = entry.key.removeprefix(self._key("", "")).rpartition("/")
                    if store in stores:
                        total += entry.bytes
        return total

    def _read(self, relative: str) -> bytes | None:
        """Return the manifest of a store; None if it has none."""
        return self._bucket.get(self._key(relative, MANIFEST))

    def _key(self, relative: str, name: str) -> str:
        """Return the key of a store's object called ``name``."""
        return "/".join((*filter(None, (self._prefix, relative)), name))

    def _files(self, relative: str) -> list[Path]:
        """Return the local files of a store, sorted, without temporary ones."""
        path = self._base / relative
        if path.is_file():
            return [path]
        files = (entry for entry in path.rglob("*") if entry.is_file() and not is_draft(entry.name))
        return sorted(files)

    def _upload_parts(self, relative: str, path: Path, stored_keys: set[str]) -> File:
        """Upload the parts of a local file that are not in ``stored_keys``, and add them to it.

        Returns the file for the manifest.
        """
        root = self._base / relative
        digests: list[str] = []
        size = 0
        with path.open("rb") as file:
            while (part := file.read(PART_BYTES)) or not digests:  # an empty file has one part
                size += len(part)
                digest = hashlib.sha256(part).hexdigest()
                digests.append(digest)
                if digest not in stored_keys:
                    self._bucket.put(self._key(relative, digest), part)
                    stored_keys.add(digest)
        return File("" if path == root else path.relative_to(root).as_posix(), size, tuple(digests))

    def _download_parts(self, relative: str, files: list[File]) -> None:
        """Download those of ``files`` that differ locally, and delete local files that it lacks."""
        root = (self._base / relative).resolve()
        paths = set()
        for file in files:
            path = (root / file.path).resolve() if file.path else root
            if not path.is_relative_to(root):
                raise self._damage_error(relative, f"names {file.path!r}, which is elsewhere")
            paths.add(path)
            if _digests(path) != file.parts:
                self._download_file(relative, file, path)
        if not root.is_file():
            root.mkdir(parents=True, exist_ok=True)
            for path in self._files(relative):  # remove files of an earlier version
                if path.resolve() not in paths:
                    path.unlink(missing_ok=True)

    def _download_file(self, relative: str, file: File, path: Path) -> None:
        """Download a file; raise DamagedFile if a part is missing or its digest differs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as draft, draft.open("wb") as out:
            for digest in file.parts:
                content = self._bucket.get(self._key(relative, digest))
                if content is None:
                    raise self._damage_error(relative, f"lacks {file.path or 'its file'}")
                if hashlib.sha256(content).hexdigest() != digest:
                    raise self._damage_error(
                        relative, f"has another {file.path or 'file'} than was stored"
                    )
                out.write(content)

    def _damage_error(self, relative: str, how: str) -> DamagedFile:
        """Log and return the error for a store that is damaged; ``how`` continues its name."""
        logger.error("%s in %s %s", relative, self.name, how)
        return DamagedFile(f"{relative} in the bucket {how}. Run it again, or restore a backup.")

    def _stamp_path(self, relative: str) -> Path:
        return self._base / STAMPS / f"{relative}.json"

    def _mark_used(self, relative: str) -> bool:
        """Mark the local copy as used now, and return whether it still exists."""
        try:
            os.utime(self._stamp_path(relative))
        except FileNotFoundError:  # dropped by another process
            return False
        return True

    def _read_stamp(self, relative: str) -> bytes | None:
        """Return the manifest that the local files of a store last matched; None if none did."""
        try:
            return self._stamp_path(relative).read_bytes()
        except FileNotFoundError:
            return None

    def _stamp(self, relative: str, text: bytes) -> None:
        """Record that the local files of a store match the manifest ``text``."""
        path = self._stamp_path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as draft:
            draft.write_bytes(text)

    @contextmanager
    def _lock(self, relative: str) -> Iterator[None]:
        """Lock a store within the block against other processes of this machine."""
        folder = self._base / STAMPS
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"lock-{zlib.crc32(relative.encode()) % LOCKS}").open("w") as lock:
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


def _files_of(manifest: bytes | None) -> list[File]:
    """Return the files in a manifest; [] for None. Raise DamagedFile if it cannot be read."""
    if manifest is None:
        return []
    try:
        listed = json.loads(manifest)["files"]
        return [File(entry["path"], entry["bytes"], tuple(entry["parts"])) for entry in listed]
    except (ValueError, KeyError, TypeError):
        raise DamagedFile(
            "The manifest in the bucket is damaged. Run it again, or restore a backup."
        ) from None


def _parts(manifest: bytes | None) -> set[str] | None:
    """Return the names of the objects in a manifest; None if it is None or damaged."""
    try:
        files = _files_of(manifest)
    except DamagedFile:
        return None
    return None if manifest is None else {part for file in files for part in file.parts}


def _digests(path: Path) -> tuple[str, ...]:
    """Return the digests of the parts of a local file; () if there is no such file."""
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        parts = list(iter(lambda: hashlib.sha256(file.read(PART_BYTES)).hexdigest(), NO_CONTENT))
    return tuple(parts) or (NO_CONTENT,)
