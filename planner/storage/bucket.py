"""Store arrays in a bucket of an S3-compatible store; local folders are a cache of it.

A store is a folder, or one file, below the data directory. Below its name the bucket has its
content in objects named by their SHA-256, and ``manifest.json``, which lists the files that they
form. The manifest is written after all objects. A store therefore exists as a whole or not at all.
While a store is written again, readers see the old one. Content is compared with its digest when
it is read.

``arrays/STORE.json`` in the data directory is the manifest that the local files last matched.
"""

from __future__ import annotations

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

from planner.errors import Damaged, SourceError, Unreached
from planner.files.atomic_write import is_draft, whole_file
from planner.inputs.live.bucket import Bucket, Keys
from planner.storage.bucket_settings import ArraysBucket

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
STAMPS = "arrays"  # folder of the local manifests, in the data directory
PART = 64 << 20  # bytes per object; a larger file has several objects
ATTEMPTS = 5  # per request, over about 20 s, so that a restart of the store does not end a long run
LOCKS = 64
TRIES = 3  # a store may be written again while it is read


@dataclass(frozen=True, slots=True)
class File:
    """A file of a store.

    ``path`` is below the store, "" if the store is one file. ``parts`` are the digests of its
    objects.
    """

    path: str
    bytes: int
    parts: tuple[str, ...]


class BucketStore:
    """A cache of a bucket.

    Its methods raise Unreached if the bucket does not answer, and Damaged if it lacks content.
    """

    def __init__(
        self,
        settings: ArraysBucket,
        base: Path,
        ca_file: str = "",
        most_bytes: int | None = None,  # limit of local copies; None: no limit
        unused_s: float = 0.0,  # age since the last use from which a copy may be dropped
    ) -> None:
        self._base, self._prefix, self.name = base, settings.prefix, settings.name
        self._most_bytes, self._unused_s = most_bytes, unused_s
        with self._refusals_told():
            self._bucket = Bucket(
                settings.url, settings.bucket, settings.prefix, signing_region=settings.region,
                keys=Keys(settings.access, settings.secret, settings.session), ca_file=ca_file,
                attempts=ATTEMPTS, writes=True,
            )  # fmt: skip

    def keep(self, relative: str) -> None:
        """Send the local store to the bucket, without content that the bucket already has."""
        with self._locked(relative), self._refusals_told():
            before = _parts(self._read(relative)) or set()
            there = {key for key, _ in self.objects(relative)}
            files = [self._send_parts(relative, path, there) for path in self._files(relative)]
            text = json.dumps({"format": 1, "files": [asdict(file) for file in files]}).encode()
            self._bucket.put(self._key(relative, MANIFEST), text)
            self._stamp(relative, text)
            for part in before - {part for file in files for part in file.parts}:
                self._bucket.delete(self._key(relative, part))
        self.make_room(but=relative)

    def send(self, relative: str) -> None:
        """Send all objects without the manifest, so that readers see no change before ``keep``.

        Objects that exist are sent again, since they may have been changed.
        """
        with self._refusals_told():
            for path in self._files(relative):
                self._send_parts(relative, path, set())

    def fetch(self, relative: str) -> None:
        """Make the local files equal to the store in the bucket."""
        with self._refusals_told():
            text = self._read(relative)
        here = (self._base / relative).exists()
        if text and text == self._has_stamp(relative) and here and self._used(relative):
            return
        self._bring_anew(relative)
        self.make_room(but=relative)

    def _bring_anew(self, relative: str) -> None:
        with self._locked(relative), self._refusals_told():
            for left in reversed(range(TRIES)):
                text = self._read(relative)
                if text is None:
                    raise self._damage_error(relative, "is not there")
                try:
                    self._fetch_parts(relative, _files_of(text))
                except Damaged:
                    if not left or text == self._read(relative):
                        raise
                else:
                    self._stamp(relative, text)
                    return

    def make_room(self, but: str = "") -> int:
        """Drop the least recently used local copies until the cache is within its limit.

        Returns how many. Copies used within ``unused_s``, the time that a run may take, stay, since
        a run may still read them.
        """
        if self._most_bytes is None:
            return 0
        stamps = []
        for path in (self._base / STAMPS).rglob("*.json"):
            with suppress(FileNotFoundError, Damaged):
                size = sum(file.bytes for file in _files_of(path.read_bytes()))
                stamps.append((path.stat().st_mtime, size, path))
        held = sum(size for _, size, _ in stamps)
        before, dropped = time.time() - self._unused_s, 0
        for used, size, path in sorted(stamps):
            relative = path.relative_to(self._base / STAMPS).with_suffix("").as_posix()
            if held <= self._most_bytes or used > before:
                break
            if relative != but and self._drop(relative, path, before):
                held, dropped = held - size, dropped + 1
        return dropped

    def _drop(self, relative: str, stamp: Path, before: float) -> bool:
        with self._locked(relative):
            if not stamp.exists() or stamp.stat().st_mtime > before:  # used meanwhile
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
        """Remove a store.

        What cannot be removed now is removed by the sweep later, since no row names it.
        """
        self.forget(relative)
        try:
            with self._refusals_told():
                self._bucket.delete(self._key(relative, MANIFEST))
                for name, _ in self.objects(relative):
                    self._bucket.delete(self._key(relative, name))
        except Unreached as problem:
            logger.warning("%s is not removed from the bucket yet: %s", relative, problem)

    def forget(self, relative: str) -> None:
        """Have the local files compared with the bucket's at the next reading."""
        self._stamp_path(relative).unlink(missing_ok=True)

    def holds(self, relative: str) -> bool:
        """Return whether the bucket has every object that the manifest names."""
        with self._refusals_told():
            text = self._read(relative)
            there = {key for key, _ in self.objects(relative)}
        named = _parts(text)
        return named is not None and named <= there

    def stores(self, folder: str) -> list[str]:
        """Return the stores that have objects below ``folder``, complete or not."""
        with self._refusals_told():
            return [f"{folder}/{name}" for name in self._bucket.folders(f"{folder}/")]

    def objects(self, relative: str) -> list[tuple[str, float]]:
        """Return name and time of writing (s since the epoch) of each object of a store."""
        prefix = self._key(relative, "")
        with self._refusals_told():
            stored = self._bucket.objects(f"{relative}/")
        return [(entry.key.removeprefix(prefix), entry.written_s) for entry in stored]

    def bytes_of(self, stores: Collection[str]) -> int:
        """Return the bytes of the stores' objects, with one request for each parent folder."""
        with self._refusals_told():
            return sum(
                entry.bytes
                for name in {store.partition("/")[0] for store in stores}
                for entry in self._bucket.listed(f"{name}/")
                if entry.key.removeprefix(self._key("", "")).rpartition("/")[0] in stores
            )

    def _read(self, relative: str) -> bytes | None:
        return self._bucket.get(self._key(relative, MANIFEST))

    def _key(self, relative: str, name: str) -> str:
        return "/".join((*filter(None, (self._prefix, relative)), name))

    def _files(self, relative: str) -> list[Path]:
        path = self._base / relative
        if path.is_file():
            return [path]
        files = (entry for entry in path.rglob("*") if entry.is_file() and not is_draft(entry.name))
        return sorted(files)

    def _send_parts(self, relative: str, path: Path, there: set[str]) -> File:
        root = self._base / relative
        parts: list[str] = []
        size = 0
        with path.open("rb") as file:
            while (part := file.read(PART)) or not parts:
                size += len(part)
                parts.append(hashlib.sha256(part).hexdigest())
                if parts[-1] not in there:
                    self._bucket.put(self._key(relative, parts[-1]), part)
                    there.add(parts[-1])
        return File("" if path == root else path.relative_to(root).as_posix(), size, tuple(parts))

    def _fetch_parts(self, relative: str, files: list[File]) -> None:
        root = (self._base / relative).resolve()
        paths = set()
        for file in files:
            path = (root / file.path).resolve() if file.path else root
            if not path.is_relative_to(root):
                raise self._damage_error(relative, f"names {file.path!r}, which lies elsewhere")
            paths.add(path)
            if _digests(path) != file.parts:
                self._copy(relative, file, path)
        if not root.is_file():
            root.mkdir(parents=True, exist_ok=True)
            for path in self._files(relative):  # remove files of an earlier version
                if path.resolve() not in paths:
                    path.unlink(missing_ok=True)

    def _copy(self, relative: str, file: File, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft, draft.open("wb") as out:
            for part in file.parts:
                content = self._bucket.get(self._key(relative, part))
                if content is None:
                    raise self._damage_error(relative, f"lacks {file.path or 'its file'}")
                if hashlib.sha256(content).hexdigest() != part:
                    raise self._damage_error(
                        relative, f"has another {file.path or 'file'} than was stored"
                    )
                out.write(content)

    def _damage_error(self, relative: str, how: str) -> Damaged:
        logger.error("%s in %s %s", relative, self.name, how)
        return Damaged(f"{relative} in the bucket {how}. Run it again, or restore a backup.")

    def _stamp_path(self, relative: str) -> Path:
        return self._base / STAMPS / f"{relative}.json"

    def _used(self, relative: str) -> bool:
        """Mark the local copy as used now, and return whether it still exists."""
        try:
            os.utime(self._stamp_path(relative))
        except FileNotFoundError:  # dropped by another process
            return False
        return True

    def _has_stamp(self, relative: str) -> bytes | None:
        try:
            return self._stamp_path(relative).read_bytes()
        except FileNotFoundError:
            return None

    def _stamp(self, relative: str, text: bytes) -> None:
        path = self._stamp_path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft:
            draft.write_bytes(text)

    @contextmanager
    def _locked(self, relative: str) -> Iterator[None]:
        """Lock a store, so that one process of this machine at a time fetches or sends it."""
        folder = self._base / STAMPS
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"lock-{zlib.crc32(relative.encode()) % LOCKS}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _refusals_told(self) -> Iterator[None]:
        try:
            yield
        except SourceError as problem:
            raise Unreached(
                f"Traces and results lie in {self.name}, which cannot be used now: {problem}"
            ) from None


def _files_of(manifest: bytes | None) -> list[File]:
    if manifest is None:
        return []
    try:
        listed = json.loads(manifest)["files"]
        return [File(entry["path"], entry["bytes"], tuple(entry["parts"])) for entry in listed]
    except (ValueError, KeyError, TypeError):
        raise Damaged(
            "The manifest in the bucket is damaged. Run it again, or restore a backup."
        ) from None


def _parts(manifest: bytes | None) -> set[str] | None:
    """Return the objects that a manifest names; None if it is missing or damaged."""
    try:
        files = _files_of(manifest)
    except Damaged:
        return None
    return None if manifest is None else {part for file in files for part in file.parts}


def _digests(path: Path) -> tuple[str, ...]:
    """Return the digests of a file's parts as in a manifest; empty if the file does not exist."""
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        parts = iter(lambda: file.read(PART), b"")
        return tuple(hashlib.sha256(part).hexdigest() for part in parts) or (
            hashlib.sha256(b"").hexdigest(),
        )
