"""Read sources that are a folder or a bucket: each file once, as an upload.

A refused file has the reason in its line of the record, and the other files are read.
"""

from __future__ import annotations

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
from planner.inputs.ingest import (
    IngestOptions,
    ingest_file,
    sha256_file,
)
from planner.inputs.ingest.bucket import (
    READ_S,
    Bucket,
    Keys,
    NotCopied,
)
from planner.inputs.ingest.live.files import samples_of_file
from planner.inputs.ingest.live.settings import (
    BucketSettings,
    FolderSettings,
    settings_of,
)
from planner.models import Source, SourceReading
from planner.services.source_allowlist import (
    allowed_folder,
    check_reach,
    secret,
)
from planner.services.sources import series, source_take
from planner.services.traces import UPLOADS
from planner.storage import row_arrays

SETTLED_S = 5.0  # a file changed within this time is left for the next reading
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp")
MOST_FILES = 1000  # new files per reading
MOST_SHOWN = 1000  # files of a preview
LOOK_S = 10.0  # limit of one answer while a user waits for the page

PlaceSettings = FolderSettings | BucketSettings
Mark = list[int | str]  # as JSON stores it


@dataclass(frozen=True, slots=True)
class Dropped:
    """One file; another ``mark`` means that it was written again."""

    name: str
    mark: Mark
    settled: bool = True  # False: it may still be written to


class Folder:
    """Files of a folder that the operator allows."""

    def __init__(self, folder: FolderSettings) -> None:
        self._folder = allowed_folder(folder.path)
        if not self._folder.is_dir():
            raise SourceError(f"path: {folder.path} is no folder here; make it, or check the path.")

    def files(self) -> list[Dropped]:
        """Return plain files by name, without links and files that are marked as unfinished."""
        files = []
        for path in sorted(self._folder.iterdir()):
            if not path.is_file() or path.is_symlink() or _hidden(path.name):
                continue
            state = path.stat()
            settled = time.time() - state.st_mtime >= SETTLED_S
            files.append(Dropped(path.name, [state.st_size, state.st_mtime_ns], settled))
        return files

    @contextmanager
    def opened(self, name: str, _: Path) -> Iterator[Path]:
        yield self._folder / name


class Objects:
    """Files of a bucket, under their names below the prefix."""

    def __init__(self, place: BucketSettings, read_s: float = READ_S) -> None:
        check_reach("bucket", place)
        keys = Keys()
        if place.access_key_env and place.secret_key_env:
            session = place.session_token_env
            keys = Keys(
                secret("access_key_env", place.access_key_env),
                secret("secret_key_env", place.secret_key_env),
                secret("session_token_env", session) if session else "",
            )
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._bucket = Bucket(
            place.url, place.bucket, place.prefix, signing_region=place.signing_region, keys=keys,
            ca_file=settings.HEADROOM_SOURCES_CA, read_s=read_s,
        )  # fmt: skip

    def files(self) -> list[Dropped]:
        """Return the objects of the bucket, without folders; an object is never partial."""
        return [
            Dropped(stored.key.removeprefix(self._prefix), [stored.bytes, stored.etag])
            for stored in self._bucket.objects()
            if stored.key.isprintable()  # no database can store other names
            and not stored.key.endswith("/")
            and not _hidden(PurePosixPath(stored.key).name)
        ]

    @contextmanager
    def opened(self, name: str, store: Path) -> Iterator[Path]:
        copy = store.with_name(f"{store.name}-copy")  # a name from outside must not become a path
        try:
            self._bucket.copy(self._prefix + name, copy, settings.HEADROOM_MAX_UPLOAD_BYTES)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def files_there(kind: str, place_settings: PlaceSettings) -> tuple[str, ...]:
    """Return the names that a preview shows; raise SourceError if they cannot be read."""
    place = (
        Objects(place_settings, LOOK_S)
        if isinstance(place_settings, BucketSettings)
        else Folder(place_settings)
    )
    return tuple(dropped.name for dropped in place.files()[:MOST_SHOWN])


def read_folder(source: Source) -> None:
    """Read the new files of a folder."""
    folder: FolderSettings = settings_of(source.kind, source.settings)
    _read(source, folder, Folder(folder))


def read_bucket(source: Source) -> None:
    """Read the new files of a bucket."""
    bucket: BucketSettings = settings_of(source.kind, source.settings)
    _read(source, bucket, Objects(bucket))


def _read(source: Source, place_settings: PlaceSettings, place: Folder | Objects) -> None:
    """Read every new file once."""
    marks: dict[str, Mark] = dict(source.found.get("files", {}))
    refused = []
    new = (
        dropped
        for dropped in place.files()
        if dropped.settled and marks.get(dropped.name) != dropped.mark
    )
    for dropped in islice(new, MOST_FILES):
        store = row_arrays.folder(f"{UPLOADS}/reading-{source.pk}-{os.getpid()}")
        try:
            with place.opened(dropped.name, store) as path:
                if not _read_one(source, place_settings, dropped.name, path, store):
                    refused.append(dropped.name)
        except NotCopied as problem:  # tried again at the next reading, recorded once
            refused.append(dropped.name)
            reading = {"source": source, "file_name": dropped.name[:255], "problem": str(problem)}
            if not SourceReading.objects.filter(**reading).exists():
                SourceReading.objects.create(**reading)
            continue
        marks[dropped.name] = dropped.mark
        source.found = {"files": marks}
        Source.objects.filter(pk=source.pk).update(found=source.found, read_until=timezone.now())
    if refused:
        raise SourceError(
            f"Refused: {', '.join(refused[:5])}{' and others' * (len(refused) > 5)}; the record of "
            "the source says why of each."
        )


def _read_one(
    source: Source, place_settings: PlaceSettings, name: str, path: Path, store: Path
) -> bool:
    """Read one file, and return False if it is refused, with the reason in its line of the record.

    The same bytes count once.
    """
    sha256 = sha256_file(path)
    if source.readings.filter(sha256=sha256).exists():
        return True
    options = IngestOptions(
        name=name, format=place_settings.format, mapping=place_settings.mapping,
        model=place_settings.model, region=place_settings.region, tier=place_settings.tier,
    )  # fmt: skip
    try:
        report = ingest_file(path, store, options)
        samples = samples_of_file(store, report, source.bin_s, series(source).told())
        source_take(source=source, samples=samples, file_name=name, sha256=sha256)
    except EXPECTED as problem:
        SourceReading.objects.create(
            source=source, file_name=name[:255], sha256=sha256, problem=str(problem)
        )
        return False
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return True


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith(UNFINISHED)
