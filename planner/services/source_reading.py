"""Read live sources that are due, each by one worker at a time, and record the result.

A source is a Prometheus server, a folder of this machine or a bucket. Each reading adds to the
source's series: its traffic in time bins.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from django.conf import settings
from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from planner.domain.serialise import moment
from planner.errors import EXPECTED, NotReady, SourceError
from planner.inputs.ingest import IngestOptions, ingest_file, sha256_file
from planner.inputs.live.bucket import READ_S, Bucket, BucketPlace, CopyFailed, Keys
from planner.inputs.live.files import samples_of_file
from planner.inputs.live.prometheus.address import allowed_address
from planner.inputs.live.prometheus.client import TIMEOUT_S, Access, Prometheus
from planner.inputs.live.prometheus.queries import MetricQuery, queries
from planner.inputs.live.prometheus.span_reader import Span, find, read_span
from planner.inputs.live.samples import AMOUNTS
from planner.inputs.live.settings import (
    BucketSettings,
    FileSettings,
    FolderSettings,
    PrometheusSettings,
    settings_of,
)
from planner.models import Source, SourceReading, User
from planner.models.notification import Event
from planner.models.workspace import use_workspace
from planner.services.access import check_may_plan
from planner.services.messages import send_task
from planner.services.notifications import notify
from planner.services.sources import (
    allowed_folder,
    check_allowed,
    enqueue_speed_check,
    forget_refused_files,
    read_secret,
    reading_store,
    source_series,
)
from planner.storage import row_arrays
from planner.storage.row_arrays import UPLOADS

logger = logging.getLogger(__name__)

# by name: tasks import services, so services must not import tasks
READ_TASK = "planner.tasks.source_read"
STALE_AFTER_S = 1800.0  # a worker that takes longer is taken for dead
PREVIEW_S = 3600  # a preview of metrics shows so much time
PREVIEW_BIN_S = 300
PREVIEW_TIMEOUT_S = 10.0  # limit of one answer while a user waits for the page
SETTLED_S = 5.0  # a file changed within this time is left for the next reading
UNFINISHED_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload", ".swp")
MAX_FILES = 1000  # new files per reading
MAX_SHOWN = 1000  # files of a preview
MAX_NAMED = 5  # refused files that a message names
Mark = list[int | str]  # what tells versions of a file apart: bytes and time, or bytes and ETag


@dataclass(frozen=True, slots=True)
class PreviewSeries:
    """The traffic of one model, region and tier during the preview's time."""

    model: str
    region: str
    tier: str
    requests: float | None
    input_tokens: float | None
    output_tokens: float | None
    bins: int  # time bins with data
    gaps: int  # time bins without data


@dataclass(frozen=True, slots=True)
class Preview:
    """What a source would read, shown before the source is created.

    For Prometheus: the queries, and their results from ``begins`` to ``ends``. For a folder or
    bucket: the names of its files.
    """

    queries: tuple[MetricQuery, ...] = ()
    files: tuple[str, ...] = ()
    series: tuple[PreviewSeries, ...] = ()
    begins: datetime | None = None
    ends: datetime | None = None


def sources_enqueue() -> int:
    """Queue a reading of every source that is due; return how many."""
    due = list(_due_sources(timezone.now()).values_list("pk", flat=True))
    for pk in due:
        send_task(READ_TASK, args=[pk], expires=60)
    return len(due)


def source_request_reading(*, source: Source, user: User | None) -> Source:
    """Queue a reading of a source now, and return the source; ``user`` None: the command line.

    Raises NotReady if it is paused or is not read.
    """
    check_may_plan(user, refusal="not have sources read")
    _check_readable(source)
    forget_refused_files(source)
    Source.objects.filter(pk=source.pk).update(due_at=timezone.now())
    send_task(READ_TASK, args=[source.pk], expires=60)
    source.refresh_from_db()
    return source


def source_read(
    *, source_id: int, raise_errors: bool = False, only_due: bool = True
) -> Source | None:
    """Read a source and return it; None if another worker reads it, or if it is not due.

    Without ``only_due`` it is read even if it is not due. A problem is stored with the source as a
    sentence; with ``raise_errors`` it is also raised.
    """
    now = timezone.now()
    claimable = _due_sources(now) if only_due else _sources_without_reader(now)
    if not claimable.filter(pk=source_id).update(reading_since=now):
        return None
    source = Source.everywhere.select_related("workspace").get(pk=source_id)
    with use_workspace(source.workspace):
        try:
            if not only_due:  # a user asks
                forget_refused_files(source)
            READERS[source.kind](source)
            Source.objects.filter(pk=source_id).update(
                state=Source.State.READ, problem="", read_at=timezone.now()
            )
            enqueue_speed_check(source)
        except EXPECTED as problem:
            _store_problem(source, str(problem))
            if raise_errors:
                raise
        except Exception:  # a bug in one source must not stop the reading of others
            logger.exception("source %s could not be read", source.name)
            _store_problem(source, "A bug stopped the reading. Details are in the log.")
            if raise_errors:
                raise
        finally:
            Source.objects.filter(pk=source_id).update(
                reading_since=None, due_at=timezone.now() + timedelta(seconds=source.every_s)
            )
        return Source.objects.get(pk=source_id)


def source_preview(*, user: User | None, kind: str, fields: Mapping[str, Any]) -> Preview:
    """Return what a source of ``kind`` with the settings ``fields`` would read.

    The preview is empty for a source to which samples are sent. Raises SourceError if the source
    cannot be read.
    """
    check_may_plan(user, refusal="not make sources")
    source_settings = settings_of(kind, fields)
    check_allowed(kind, source_settings)
    if kind in (Source.Kind.FOLDER, Source.Kind.BUCKET):
        files = _location(source_settings, PREVIEW_TIMEOUT_S).files()
        return Preview(files=tuple(file.name for file in files[:MAX_SHOWN]))
    if kind == Source.Kind.PROMETHEUS:
        return _prometheus_preview(source_settings)
    return Preview()


def _prometheus_preview(source_settings: PrometheusSettings) -> Preview:
    """Return what the last PREVIEW_S seconds of a Prometheus server hold.

    For each series (model, region, tier) with traffic: the sums of AMOUNTS, the bins with data, and
    the gaps, bins without.
    """
    end_s = int(time.time()) // PREVIEW_BIN_S * PREVIEW_BIN_S
    span = Span(end_s - PREVIEW_S, PREVIEW_BIN_S, PREVIEW_S // PREVIEW_BIN_S)
    client = _client(source_settings, PREVIEW_TIMEOUT_S)
    engines = find(client, source_settings, span.start_s, time.time())
    samples = read_span(client, source_settings, engines, span)
    groups = samples.bins.group_by("model", "region", "tier", maintain_order=True)
    amounts = [_sum(field).alias(field) for field in AMOUNTS]
    sums = groups.agg(*amounts, bins=pl.col("requests").fill_nan(None).count())
    sums = sums.with_columns(gaps=span.bins - pl.col("bins").cast(pl.Int64))
    # Leave out series without traffic: those of power meters, or of gauges alone.
    traffic = sums.filter(pl.any_horizontal(pl.col(AMOUNTS).is_not_null()))
    columns = ("model", "region", "tier", *AMOUNTS, "bins", "gaps")
    return Preview(
        queries=queries(source_settings, engines, PREVIEW_BIN_S),
        series=tuple(PreviewSeries(*row) for row in traffic.select(columns).rows()),
        begins=moment(span.start_s),
        ends=moment(span.end_s),
    )


def _sum(field: str) -> pl.Expr:
    """Return the sum of the known values of a column; null if none is known."""
    known = pl.col(field).fill_nan(None)
    return pl.when(known.count() > 0).then(known.sum())


def _read_prometheus(source: Source) -> None:
    """Read a Prometheus server up to the last complete bin.

    The first reading goes back ``days`` days. Later ones begin ``late_s`` seconds before the end of
    the last one, since data may come late.
    """
    reading: PrometheusSettings = settings_of(source.kind, source.settings)
    now_s, bin_s = time.time(), source.bin_s
    end_s = int(now_s - reading.delay_s) // bin_s * bin_s
    since_s = now_s - 86_400 * reading.days
    if source.read_until:
        since_s = source.read_until.timestamp() - reading.late_s
    start_s = int(since_s) // bin_s * bin_s
    if end_s <= start_s:
        return
    span = Span(start_s, bin_s, (end_s - start_s) // bin_s)
    client = _client(reading, TIMEOUT_S)
    engines = find(client, reading, start_s, now_s)
    findings = {
        "engines": [engine.title for engine in engines.engines],
        "queries": [[query.words, query.query] for query in queries(reading, engines, bin_s)],
    }
    for short_span in span.spans():
        samples = read_span(client, reading, engines, short_span)
        reading_store(source=source, samples=samples)
        Source.objects.filter(pk=source.pk).update(
            read_until=moment(short_span.end_s), found=findings
        )


def _check_readable(source: Source) -> None:
    """Raise NotReady for a paused source, or one to which samples are sent."""
    if source.kind == Source.Kind.SAMPLES:
        raise NotReady(
            f"Source {source.name} is sent samples, there is nothing to read; POST them to "
            f"/api/v1/sources/{source.name}/samples/."
        )
    if source.paused:
        raise NotReady(f"Source {source.name} is paused. Resume it to read it.")


def _client(reading: PrometheusSettings, timeout_s: float) -> Prometheus:
    """Return a client with the credentials in the variables that the settings name."""
    address = allowed_address(reading.url, settings.HEADROOM_SOURCES)
    ca_file = settings.HEADROOM_SOURCES_CA
    access = Access("", ca_file)
    if reading.token_env:
        access = Access.bearer(read_secret("token_env", reading.token_env), ca_file)
    elif reading.user_env and reading.password_env:
        user = read_secret("user_env", reading.user_env)
        access = Access.basic(user, read_secret("password_env", reading.password_env), ca_file)
    return Prometheus(address, access, timeout_s=timeout_s)


def _store_problem(source: Source, problem: str) -> None:
    """Store the problem of a reading; notify people if the reading before had another or none."""
    last = source.readings.first()
    if last is None or last.problem != problem:
        SourceReading.objects.create(source=source, problem=problem)
        notify(
            source.workspace,
            Event.SOURCE,
            f"Live source {source.name}: {problem}",
            reverse("web:source", args=[source.name]),
        )
    Source.objects.filter(pk=source.pk).update(state=Source.State.PROBLEM, problem=problem)


def _sources_without_reader(now: datetime) -> QuerySet[Source]:
    """Return the active sources that no worker reads now."""
    stale_before = now - timedelta(seconds=STALE_AFTER_S)
    return Source.everywhere.filter(
        Q(reading_since=None) | Q(reading_since__lt=stale_before), paused=False
    ).exclude(kind=Source.Kind.SAMPLES)


def _due_sources(now: datetime) -> QuerySet[Source]:
    """Return the active sources whose time to be read has come, and that no worker reads now."""
    return _sources_without_reader(now).filter(due_at__lte=now)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a folder or bucket."""

    name: str
    mark: Mark  # another one means that the file was written again
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
            if not path.is_file() or path.is_symlink() or _is_skipped(path.name):
                continue
            status = path.stat()
            settled = time.time() - status.st_mtime >= SETTLED_S
            files.append(SourceFile(path.name, [status.st_size, status.st_mtime_ns], settled))
        return files

    @contextmanager
    def local_copy(self, name: str, _: Path) -> Iterator[Path]:
        """Yield the path of a file."""
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
            and not _is_skipped(PurePosixPath(stored.key).name)
        ]

    @contextmanager
    def local_copy(self, name: str, work_folder: Path) -> Iterator[Path]:
        """Yield the path of a copy of an object beside ``work_folder``, deleted afterwards."""
        # A name from outside must not become a path.
        copy = work_folder.with_name(f"{work_folder.name}-copy")
        try:
            self._bucket.copy(self._prefix + name, copy, settings.HEADROOM_MAX_UPLOAD_BYTES)
            yield copy
        finally:
            copy.unlink(missing_ok=True)


def _location(
    source_settings: FolderSettings | BucketSettings, read_s: float = READ_S
) -> FolderFiles | BucketFiles:
    """Return the folder or bucket of a source; one request to a bucket takes ``read_s`` at most."""
    if isinstance(source_settings, BucketSettings):
        return BucketFiles(source_settings, read_s)
    return FolderFiles(source_settings)


def read_new_files(source: Source) -> None:
    """Read the files of a folder or bucket that are new or were written again.

    Which files were read is stored after each file. Raises SourceError with the refused files and
    the reasons.
    """
    source_settings = settings_of(source.kind, source.settings)
    location = _location(source_settings)
    marks: dict[str, Mark] = dict(source.found.get("files", {}))
    refused: dict[str, str] = {}  # reason by file
    settled_files = [file for file in location.files() if file.settled]
    new_files = [file for file in settled_files if marks.get(file.name) != file.mark]
    for file in new_files[:MAX_FILES]:
        work_folder = row_arrays.folder(f"{UPLOADS}/reading-{source.pk}-{os.getpid()}")
        try:
            with location.local_copy(file.name, work_folder) as path:
                problem = _read_file(source, source_settings, file.name, path, work_folder)
        except CopyFailed as error:  # tried again at the next reading, recorded once
            refused[file.name] = str(error)
            _record_refusal(source, file.name, error)
            continue
        if problem:
            refused[file.name] = problem
        marks[file.name] = file.mark
        source.found = {"files": marks}
        Source.objects.filter(pk=source.pk).update(found=source.found, read_until=timezone.now())
    if refused:
        names = ", ".join(list(refused)[:MAX_NAMED])
        reasons = " ".join(list(refused.values())[:MAX_NAMED])
        others = " and others" if len(refused) > MAX_NAMED else ""
        raise SourceError(f"Refused: {names}{others}. {reasons}")


def _read_file(
    source: Source, source_settings: FileSettings, name: str, path: Path, work_folder: Path
) -> str:
    """Read the file at ``path`` into the source's series; return why it is refused, or "".

    The reason is also stored. A file with the same bytes as one that was read is skipped. ``name``
    is the name of the file there. ``work_folder`` is for temporary data and deleted at the end.
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
    """Store why the file ``name`` is refused, unless that is stored already."""
    reading = {"source": source, "file_name": name[:255], "problem": str(problem)}
    if not SourceReading.objects.filter(**reading).exists():
        SourceReading.objects.create(**reading)


def _is_skipped(name: str) -> bool:
    """Return whether the name is that of a hidden or unfinished file."""
    return name.startswith(".") or name.endswith(UNFINISHED_SUFFIXES)


READERS: dict[str, Callable[[Source], None]] = {
    Source.Kind.PROMETHEUS: _read_prometheus,
    Source.Kind.FOLDER: read_new_files,
    Source.Kind.BUCKET: read_new_files,
    Source.Kind.SAMPLES: _check_readable,  # raises
}
