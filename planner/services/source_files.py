"""Sources that files are dropped into: a folder, or a bucket. Each file is read once, as uploads
are; one that is refused says why in its line of the record, and the others are read."""

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

from planner import storage
from planner.errors import EXPECTED, SourceError
from planner.ingest import IngestOptions, ingest_file, sha256_file
from planner.ingest.bucket import READ_S, Bucket, Keys, NotCopied
from planner.ingest.live.files import samples_of_file
from planner.ingest.live.settings import BucketSettings, FolderSettings, settings_of
from planner.models import Source, SourceReading
from planner.services.reach import allowed_folder, check_reach, secret
from planner.services.sources import series, source_take
from planner.services.traces import UPLOADS

SETTLED_S = 5.0  # a file still written to is left for the next reading
UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp")
MOST_FILES = 1000  # new ones, read at a time
MOST_SHOWN = 1000  # of a preview
LOOK_S = 10.0  # for an answer while somebody waits for the page

PlaceSettings = FolderSettings | BucketSettings
Mark = list[int | str]  # as JSON keeps it


@dataclass(frozen=True, slots=True)
class Dropped:
    """One file; with another ``mark`` it has been written anew."""

    name: str
    mark: Mark
    settled: bool = True  # else it may still be written to


class Folder:
    def __init__(self, folder: FolderSettings) -> None:
        self._folder = allowed_folder(folder.path)
        if not self._folder.is_dir():
            raise SourceError(f"path: {folder.path} is no folder here; make it, or check the path.")

    def files(self) -> list[Dropped]:
        """Plain files by name; links are left out, and what says that it is not whole yet."""
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
    """A bucket's, under the names that they have below the prefix."""

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
        """Objects are there whole or not at all; those that stand for folders have no content."""
        return [
            Dropped(stored.key.removeprefix(self._prefix), [stored.bytes, stored.etag])
            for stored in self._bucket.objects()
            if stored.key.isprintable()  # else no database can keep its name
            and not stored.key.endswith("/")
            and not _hidden(PurePosixPath(stored.key).name)
        ]

    @contextmanager
    def opened(self, name: str, store: Path) -> Iterator[Path]:
        copy = store.with_name(f"{store.name}-copy")  # no name from outside becomes a path
        try:
            self._bucket.copy(self._prefix + name, copy, settings.HEADROOM_MAX_UPLOAD_BYTES)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def files_there(kind: str, place_settings: PlaceSettings) -> tuple[str, ...]:
    """What a look shows; raises SourceError where it cannot be read."""
    place = (
        Objects(place_settings, LOOK_S)
        if isinstance(place_settings, BucketSettings)
        else Folder(place_settings)
    )
    return tuple(dropped.name for dropped in place.files()[:MOST_SHOWN])


def read_folder(source: Source) -> None:
    folder: FolderSettings = settings_of(source.kind, source.settings)
    _read(source, folder, Folder(folder))


def read_bucket(source: Source) -> None:
    bucket: BucketSettings = settings_of(source.kind, source.settings)
    _read(source, bucket, Objects(bucket))


def _read(source: Source, place_settings: PlaceSettings, place: Folder | Objects) -> None:
    """Every file that is new, each once."""
    marks: dict[str, Mark] = dict(source.found.get("files", {}))
    refused = []
    new = (
        dropped
        for dropped in place.files()
        if dropped.settled and marks.get(dropped.name) != dropped.mark
    )
    for dropped in islice(new, MOST_FILES):
        store = storage.folder(f"{UPLOADS}/reading-{source.pk}-{os.getpid()}")
        try:
            with place.opened(dropped.name, store) as path:
                if not _read_one(source, place_settings, dropped.name, path, store):
                    refused.append(dropped.name)
        except NotCopied as problem:  # tried again at the next time, told once
            refused.append(dropped.name)
            reading = {"source": source, "what": dropped.name[:255], "problem": str(problem)}
            if not SourceReading.objects.filter(**reading).exists():
                SourceReading.objects.create(**reading)
            continue
        marks[dropped.name] = dropped.mark
        source.found = {"files": marks}
        Source.objects.filter(pk=source.pk).update(found=source.found, read_to=timezone.now())
    if refused:
        raise SourceError(
            f"Refused: {', '.join(refused[:5])}{' and others' * (len(refused) > 5)}; the record of "
            "the source says why of each."
        )


def _read_one(
    source: Source, place_settings: PlaceSettings, name: str, path: Path, store: Path
) -> bool:
    """False where it is refused, which its line of the record says; the same bytes count once."""
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
        source_take(source=source, samples=samples, what=name, sha256=sha256)
    except EXPECTED as problem:
        SourceReading.objects.create(
            source=source, what=name[:255], sha256=sha256, problem=str(problem)
        )
        return False
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return True


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith(UNFINISHED)
