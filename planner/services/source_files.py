"""Read sources that are a folder or a bucket: each file once, as an upload.

A refused file has the reason in its line of the record, and the other files are read. It is tried
again when it changes, when the settings change, or when a user asks for a reading.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.utils import timezone

from planner.errors import EXPECTED, SourceError
from planner.inputs.ingest import IngestOptions, ingest_file, sha256_file
from planner.inputs.live.bucket import READ_S, Bucket, BucketPlace, Keys, NotCopied
from planner.inputs.live.files import samples_of_file
from planner.inputs.live.settings import BucketSettings, FileSettings, FolderSettings, settings_of
from planner.models import Source, SourceReading
from planner.services.source_allowlist import allowed_folder, check_allowed, read_secret
from planner.services.sources import reading_store, source_series
from planner.storage import row_arrays
from planner.storage.row_arrays import UPLOADS

SETTLED_S = 5.0  # a file changed within this time is left for the next reading
UNFINISHED_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload", ".swp")
MAX_FILES = 1000  # new files per reading
MAX_SHOWN = 1000  # files of a preview
PREVIEW_READ_S = 10.0  # limit of one answer while a user waits for the page

Mark = list[int | str]  # as JSON stores it


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source; a different ``mark`` means that it was written again."""

    name: str
    mark: Mark
    settled: bool = True  # False: it may still be written to


class FolderFiles:
    """The files of a folder on the operator's allow-list."""

    def __init__(self, folder: FolderSettings) -> None:
        self._folder = allowed_folder(folder.path)
        if not self._folder.is_dir():
            raise SourceError(
                f"path: {folder.path} is not a folder of this machine. Create it, or check it."
            )

    def files(self) -> list[SourceFile]:
        """Return regular files by name; links and files marked as unfinished are left out."""
        files = []
        for path in sorted(self._folder.iterdir()):
            if not path.is_file() or path.is_symlink() or _hidden(path.name):
                continue
            state = path.stat()
            settled = time.time() - state.st_mtime >= SETTLED_S
            files.append(SourceFile(path.name, [state.st_size, state.st_mtime_ns], settled))
        return files

    @contextmanager
    def opened(self, name: str, _: Path) -> Iterator[Path]:
        yield self._folder / name


class BucketFiles:
    """Files of a bucket, under their names below the prefix."""

    def __init__(self, bucket: BucketSettings, read_s: float) -> None:
        check_allowed("bucket", bucket)
        keys = Keys()
        if bucket.access_key_env and bucket.secret_key_env:
            session = bucket.session_token_env
            keys = Keys(
                read_secret("access_key_env", bucket.access_key_env),
                read_secret("secret_key_env", bucket.secret_key_env),
                read_secret("session_token_env", session) if session else "",
            )
        self._prefix = f"{bucket.prefix}/" if bucket.prefix else ""
        self._bucket = Bucket(
            BucketPlace(bucket.url, bucket.bucket, bucket.prefix),
            signing_region=bucket.signing_region, keys=keys,
            ca_file=settings.HEADROOM_SOURCES_CA, read_s=read_s,
        )  # fmt: skip

    def files(self) -> list[SourceFile]:
        """Return the objects of the bucket except folders; an object is always complete."""
        return [
            SourceFile(stored.key.removeprefix(self._prefix), [stored.bytes, stored.etag])
            for stored in self._bucket.objects()
            if stored.key.isprintable()  # no database can store other names
            and not stored.key.endswith("/")
            and not _hidden(PurePosixPath(stored.key).name)
        ]

    @contextmanager
    def opened(self, name: str, store: Path) -> Iterator[Path]:
        """Yield the path of a local copy of an object, which is deleted afterwards."""
        copy = store.with_name(f"{store.name}-copy")  # a name from outside must not become a path
        try:
            self._bucket.copy(self._prefix + name, copy, settings.HEADROOM_MAX_UPLOAD_BYTES)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def preview_files(source_settings: FolderSettings | BucketSettings) -> tuple[str, ...]:
    """Return the file names for a preview; raise SourceError if they cannot be listed."""
    files = _location(source_settings, PREVIEW_READ_S).files()
    return tuple(file.name for file in files[:MAX_SHOWN])


def _location(
    source_settings: FolderSettings | BucketSettings, read_s: float = READ_S
) -> FolderFiles | BucketFiles:
    if isinstance(source_settings, BucketSettings):
        return BucketFiles(source_settings, read_s)
    return FolderFiles(source_settings)


def read_new_files(source: Source) -> None:
    """Read the files of a source that are new or have changed; each version is read once.

    Progress is stored after each file. Raises SourceError with the refused files and reasons.
    """
    source_settings = settings_of(source.kind, source.settings)
    location = _location(source_settings)
    marks: dict[str, Mark] = dict(source.found.get("files", {}))
    refused: dict[str, str] = {}  # reason by file
    new = (file for file in location.files() if file.settled and marks.get(file.name) != file.mark)
    for file in islice(new, MAX_FILES):
        work_folder = row_arrays.folder(f"{UPLOADS}/reading-{source.pk}-{os.getpid()}")
        try:
            with location.opened(file.name, work_folder) as path:
                problem = _read_file(source, source_settings, file.name, path, work_folder)
                refused |= {file.name: problem} if problem else {}
        except NotCopied as error:  # tried again at the next reading, recorded once
            refused[file.name] = str(error)
            _record_refusal(source, file.name, error)
            continue
        marks[file.name] = file.mark
        source.found = {"files": marks}
        Source.objects.filter(pk=source.pk).update(found=source.found, read_until=timezone.now())
    if refused:
        names = ", ".join([*refused][:5])
        reasons = " ".join([*refused.values()][:5])
        raise SourceError(f"Refused: {names}{' and others' * (len(refused) > 5)}. {reasons}")


def _read_file(
    source: Source, source_settings: FileSettings, name: str, path: Path, work_folder: Path
) -> str:
    """Read one file into the source's series; return why it is refused, or "".

    Files with equal bytes are read once, unless they were refused. The reason is also stored.
    ``work_folder`` is a work folder, which is deleted at the end.
    """
    sha256 = sha256_file(path)
    if source.readings.filter(sha256=sha256, problem="").exists():
        return ""
    options = IngestOptions(
        name=name, format=source_settings.format, mapping=source_settings.mapping,
        model=source_settings.model, region=source_settings.region, tier=source_settings.tier,
        timezone=source_settings.timezone,
    )  # fmt: skip
    try:
        report = ingest_file(path, work_folder, options)
        samples = samples_of_file(
            work_folder, report, source.bin_s, source_series(source).origins()
        )
        reading_store(source=source, samples=samples, file_name=name, sha256=sha256)
    except EXPECTED as problem:
        _record_refusal(source, name, problem)
        return str(problem)
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    return ""


def _record_refusal(source: Source, name: str, problem: Exception) -> None:
    """Store why a file is refused, once for each reason."""
    reading = {"source": source, "file_name": name[:255], "problem": str(problem)}
    if not SourceReading.objects.filter(**reading).exists():
        SourceReading.objects.create(**reading)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith(UNFINISHED_SUFFIXES)
