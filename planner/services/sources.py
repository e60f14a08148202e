"""Create, change and remove live sources that the operator allows; publish their series as traces.

Scenarios then name the traces.
"""

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from planner.domain.serialise import moment
from planner.errors import NotReady, SourceError
from planner.inputs.ingest.report import IngestReport
from planner.inputs.live.bucket import BucketPlace
from planner.inputs.live.prometheus.address import allowed_address
from planner.inputs.live.publication import publish
from planner.inputs.live.samples import Samples, no_histograms, samples_of_rows
from planner.inputs.live.series_store import GrowingSeries
from planner.inputs.live.settings import settings_of
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Run, Source, SourceReading, Trace, User
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.messages import send_task
from planner.services.traces import check_unused, fill_row, free_trace_name
from planner.storage import row_arrays
from planner.storage.row_arrays import TRACES

LIVE = "live"
FILE_PREFIX = "live source "  # of the file name of traces that live sources make
# by name: tasks import services, so services must not import tasks
SPEEDS_TASK = "planner.tasks.source_speeds"
BIN_S = 300
MIN_EVERY_S = 10
LENGTH_DAYS = 14  # request lengths are drawn from these last days
# Readings kept of a source, besides those of files, which stay so that no file is read twice.
MAX_READINGS = 200
MAX_BIN_S = 86_400
RESERVED_NAMES = ("new", "preview")  # names that are addresses of pages
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")


@dataclass(frozen=True, slots=True)
class SamplesSummary:
    """What was stored of the samples that a program sent."""

    bins: int
    requests: float
    start: datetime
    end: datetime


def source_create(
    *,
    owner: User | None,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    bin_s: int = BIN_S,
    every_s: int | None = None,
) -> Source:
    """Create a live source, which is due at once; raise SourceError if it is invalid.

    Its series has bins of ``bin_s`` seconds. It is read every ``every_s`` seconds; None: as long as
    a bin, but at least 60 s.
    """
    check_may_plan(owner, refusal="not make sources")
    checked = settings_of(kind, settings)
    check_allowed(kind, checked)
    source = Source(
        owner=owner,
        name=name,
        kind=kind,
        settings=checked.model_dump(exclude_none=True, exclude_defaults=True),
        bin_s=bin_s,
        every_s=max(bin_s, 60) if every_s is None else every_s,
        due_at=None if kind == Source.Kind.SAMPLES else timezone.now(),
    )
    _check_times(source)
    _check_name(source)
    source.full_clean(exclude=["owner"], validate_unique=False, validate_constraints=False)
    try:
        with transaction.atomic():
            source.save()
            # Unique: after the restore of a backup, numbers are used again.
            source.store = f"{LIVE}/{source.pk}-{uuid.uuid4().hex[:8]}"
            source.save(update_fields=["store"])
            row_arrays.keep(source.store)
            record("source.created", source, by=owner, kind=kind)
    except IntegrityError:
        raise SourceError(f"name: a source {name} already exists. Choose another name.") from None
    return source


def source_change(*, source: Source, user: User | None, changes: Mapping[str, Any]) -> Source:
    """Change ``settings``, ``every_s`` or ``paused`` of a source, and return it; its data stays.

    Raises SourceError for other keys: the stored series depends on bin width and kind.
    """
    check_may_plan(user, refusal="not change sources")
    if unknown := set(changes) - {"settings", "every_s", "paused"}:
        raise SourceError(
            f"{min(unknown)}: this cannot be changed. Make another source, or change settings, "
            "every_s or paused."
        )
    with transaction.atomic():
        locked = Source.objects.select_for_update().get(pk=source.pk)
        if "settings" in changes:
            forget_refused_files(locked)
            checked = settings_of(locked.kind, changes["settings"])
            check_allowed(locked.kind, checked)
            locked.settings = checked.model_dump(exclude_none=True, exclude_defaults=True)
        locked.every_s = changes.get("every_s", locked.every_s)
        locked.paused = changes.get("paused", locked.paused)
        _check_times(locked)
        if locked.kind != Source.Kind.SAMPLES:
            locked.due_at = timezone.now()
        locked.save()
        record("source.changed", locked, by=user, changed=sorted(changes))
    return locked


def forget_refused_files(source: Source) -> None:
    """Have the next reading try refused files again, since the cause may not be in the file."""
    marks = source.found.get("files")  # what was read of each file, by name
    if not marks:
        return
    # The last problem of each file, "" if it was read then.
    problems = dict(source.readings.order_by("at", "pk").values_list("file_name", "problem"))
    read_marks = {name: mark for name, mark in marks.items() if not problems.get(name[:255])}
    source.found = {"files": read_marks}
    source.save(update_fields=["found"])


def source_delete(*, source: Source, user: User | None) -> None:
    """Remove a source with all its data; ``user`` None: the command line.

    Raises NotReady if a scenario names it or a run uses it.
    """
    check_may_plan(user, refusal="not remove sources")
    if user is not None:
        check_may_remove(user, source.owner_id, "this source")
    trace = source.trace
    if trace is not None:
        check_unused(trace)
        if trace.runs.filter(state__in=Run.ACTIVE_STATES).exists():
            raise NotReady(f"{source.name} is in a run that is going. Wait for it or cancel it.")
    stores = [source.store, trace.store if trace else ""]
    with transaction.atomic():
        record("source.removed", source, by=user, kind=source.kind)
        source.delete()
        if trace is not None:
            trace.delete()
    for store in stores:
        row_arrays.remove(store)


def samples_store(
    *, source: Source, user: User | None, rows: Sequence[Mapping[str, Any]], now: datetime
) -> SamplesSummary:
    """Store samples that a program sent; they replace earlier samples of the same bins.

    Also queues the comparison of measured with planned speeds. Raises SourceError for an invalid
    row, and NotReady if the source takes no samples or is paused.
    """
    check_may_plan(user, refusal="not send samples")
    if source.kind != Source.Kind.SAMPLES:
        raise NotReady(
            f"Source {source.name} is read by Headroom and takes no samples. Create one of kind "
            "samples."
        )
    if source.paused:
        raise NotReady(f"Source {source.name} is paused. Resume it to send samples.")
    samples = samples_of_rows(rows, source.bin_s, now)
    reading_store(source=source, samples=samples)
    enqueue_speed_check(source)
    assert samples.span is not None  # there is at least one sample
    start_s, end_s = samples.span
    return SamplesSummary(samples.bins.height, samples.requests, moment(start_s), moment(end_s))


def reading_store(
    *, source: Source, samples: Samples, file_name: str = "", sha256: str = ""
) -> None:
    """Add samples to a source's series, record the reading, and publish the source's trace again.

    ``file_name`` and ``sha256`` are those of the file that was read; "" for a reading of metrics.
    """
    with transaction.atomic():  # one reading at a time, on all machines
        Source.objects.select_for_update().filter(pk=source.pk).first()
        with row_arrays.changing(source.store) as folder:
            GrowingSeries(folder, source.bin_s).append(samples)
    now = timezone.now()
    start_s, end_s = samples.span or (None, None)
    SourceReading.objects.create(
        source=source,
        file_name=file_name[:255],
        sha256=sha256,
        start_at=None if start_s is None else moment(start_s),
        end_at=None if end_s is None else moment(end_s),
        bins=samples.bins.height,
        requests=samples.requests,
    )
    # Readings of metrics beyond the newest MAX_READINGS are deleted. Those of files stay.
    metric_readings = source.readings.filter(sha256="")  # the newest first
    newest_to_delete = metric_readings[MAX_READINGS : MAX_READINGS + 1].first()
    if newest_to_delete is not None:
        metric_readings.filter(pk__lte=newest_to_delete.pk).delete()
    Source.objects.filter(pk=source.pk).update(state=Source.State.READ, problem="", read_at=now)
    if samples.span:
        source_publish(source=source)


def enqueue_speed_check(source: Source) -> None:
    """Queue the comparison of the measured replica speeds with active plans, if there are any."""
    if ActivePlan.objects.filter(until=None).exists():
        send_task(SPEEDS_TASK, args=[source.pk], expires=600)


def source_publish(*, source: Source) -> Trace | None:
    """Write a source's series as its trace, and return that; None if it has no request yet.

    The files of the previous version stay for an hour, so that runs that use them can finish.
    """
    samples = _samples_before(source)
    if not samples.bins["requests"].is_not_null().any():
        return None
    with transaction.atomic():
        locked = Source.objects.select_for_update().get(pk=source.pk)
        trace = locked.trace or Trace.objects.create(
            name=locked.name,
            file_name=f"{FILE_PREFIX}{locked.name}",
            sha256=f"live-{locked.pk}",
            bytes=0,
            owner=locked.owner,
        )
        store = f"{TRACES}/{trace.pk}-{timezone.now():%Y%m%d%H%M%S%f}"
        _save_trace(trace, _publish(samples, locked.name, store), store)
        if locked.trace_id is None:
            locked.trace = trace
            locked.save(update_fields=["trace"])
    source.trace = trace
    return trace


def current_trace(source: Source, until: datetime | None = None) -> Trace:
    """Return a source's own trace, which grows, or a fixed one with its data before ``until``.

    A fixed trace is named after the source and the time; equal data gives the same trace. Raises
    NotReady if there is no data before that time.
    """
    if until is None:
        trace = source.trace or source_publish(source=source)
        if trace is None:
            raise NotReady(f"Source {source.name} has read no request yet. Wait until it has.")
        return trace
    samples = _samples_before(source, until.timestamp())
    if not samples.bins["requests"].is_not_null().any():
        raise NotReady(
            f"Source {source.name} has no request before {until:%Y-%m-%d %H:%M} UTC. Choose "
            "a later moment."
        )
    label = f"{source.name}-{until.astimezone(UTC):%Y%m%dt%H%M}z"
    store = f"{TRACES}/live-{source.pk}-{until.timestamp():.0f}-{timezone.now():%H%M%S%f}"
    report = _publish(samples, label, store)
    existing = Trace.objects.filter(sha256=report.sha256).first()
    if existing is not None:
        row_arrays.remove(store)
        return existing
    trace = Trace(
        name=free_trace_name(label),
        file_name=f"{FILE_PREFIX}{source.name}",
        sha256=report.sha256,
        owner=source.owner,
    )
    _save_trace(trace, report, store)
    return trace


def pin_live_sources(document: str, until: datetime | None) -> str:
    """Return a scenario with its live sources replaced by fixed traces of data before ``until``.

    ``until`` None, or a scenario without live sources: it is unchanged.
    """
    if until is None:
        return document
    names = {}
    for index, source in enumerate(text.outline(document)["traffic"]["sources"]):
        live = Source.objects.filter(name=source.get("trace") or "").first()
        if live is not None:
            names[f"traffic.sources[{index}].trace"] = current_trace(live, until).name
    return text.edit(document, names) if names else document


def source_series(source: Source) -> GrowingSeries:
    """Return the series of all data of a source, including gauges and histograms."""
    return GrowingSeries(row_arrays.local_path(source.store), source.bin_s)


def _samples_before(source: Source, until_s: float | None = None) -> Samples:
    """Return a source's bins before ``until_s`` (epoch seconds; None: all), with lengths.

    The histograms of request lengths are of the last LENGTH_DAYS only.
    """
    series = source_series(source)
    bins = series.bins(until_s)
    if bins.is_empty():
        return Samples(source.bin_s, bins, no_histograms())
    since_s = int(str(bins["bin_start"].max())) - LENGTH_DAYS * 86_400
    return Samples(source.bin_s, bins, series.histograms(until_s, since_s))


def _publish(samples: Samples, label: str, store: str) -> IngestReport:
    """Write samples as the data of a trace called ``label`` into the folder ``store``."""
    report = publish(samples, label, row_arrays.folder(store))
    row_arrays.keep(store)
    return report


def _save_trace(trace: Trace, report: IngestReport, store: str) -> None:
    """Fill the row of a trace whose data was published to ``store``, and save it."""
    fill_row(trace, report, store)
    trace.bytes = report.bytes
    trace.save()


def _check_times(source: Source) -> None:
    """Raise SourceError if the bin width or the reading interval is invalid."""
    if not 1 <= source.bin_s <= MAX_BIN_S or MAX_BIN_S % source.bin_s:
        raise SourceError(
            f"bin_s: {source.bin_s} s does not divide a day into equal bins. Give 60, 300, 900 "
            "or 3600."
        )
    if not MIN_EVERY_S <= source.every_s <= MAX_BIN_S:
        raise SourceError(
            f"every_s: {source.every_s} s is outside {MIN_EVERY_S} s to one day. Give one such as "
            f"{max(MIN_EVERY_S, source.bin_s)}."
        )


def _check_name(source: Source) -> None:
    """Raise SourceError if the name is invalid, or a trace has it already."""
    if not NAME.fullmatch(source.name) or source.name in RESERVED_NAMES:
        raise SourceError(
            f"name: {source.name[:80]!r} is not a valid name. Use lower-case letters, digits and "
            "hyphens, such as chat-live."
        )
    if Trace.objects.filter(name=source.name).exists():
        raise SourceError(f"name: a trace has the name {source.name}. Choose another name.")


def check_allowed(kind: str, source_settings: Any) -> None:
    """Raise SourceError if settings name an address or folder that the operator does not allow."""
    if kind == "prometheus":
        allowed_address(source_settings.url, settings.HEADROOM_SOURCES)
    elif kind == "folder":
        allowed_folder(source_settings.path)
    elif kind == "bucket":
        address = BucketPlace(
            source_settings.url, source_settings.bucket, source_settings.prefix
        ).address
        allowed_address(address.url, settings.HEADROOM_SOURCES)


def allowed_folder(path: str) -> Path:
    """Return the resolved folder; raise SourceError if it is outside HEADROOM_SOURCE_FOLDERS."""
    # Resolve links first: a link must not lead out of an allowed folder.
    folder = Path(path).resolve()
    bases = [Path(base).resolve() for base in settings.HEADROOM_SOURCE_FOLDERS]
    is_allowed = any(folder.is_relative_to(base) for base in bases)
    if not Path(path).is_absolute() or not is_allowed:
        listed = ", ".join(map(str, bases)) or "none"
        raise SourceError(
            f"path: {path} is no absolute path in a folder that sources may read ({listed}). An "
            "operator adds it to HEADROOM_SOURCE_FOLDERS."
        )
    return folder


def read_secret(field: str, variable: str) -> str:
    """Return the secret in the environment variable that the setting ``field`` names."""
    value = os.environ.get(variable, "").strip()
    if not (value and value.isprintable() and value.isascii()):
        raise SourceError(
            f"{field}: the environment has nothing usable in {variable}; an operator sets it where "
            "workers and web start."
        )
    return value
