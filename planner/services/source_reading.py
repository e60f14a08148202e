"""Read live sources that are due, each by one worker at a time, and record the result."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
from celery import current_app
from django.conf import settings
from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone

from planner.domain.serialise import moment
from planner.errors import EXPECTED, NotReady
from planner.inputs.live.prometheus.address import allowed_address
from planner.inputs.live.prometheus.client import TIMEOUT_S, Access, Prometheus
from planner.inputs.live.prometheus.queries import MetricQuery, queries
from planner.inputs.live.prometheus.span_reader import Span, find, read_span
from planner.inputs.live.samples import AMOUNTS
from planner.inputs.live.settings import PrometheusSettings, settings_of
from planner.models import Source, SourceReading, User
from planner.models.notification import Event
from planner.models.workspace import within
from planner.services.access import check_may_plan
from planner.services.notifications import notify
from planner.services.source_allowlist import check_allowed, read_secret
from planner.services.source_files import preview_files, read_new_files
from planner.services.sources import (
    forget_refused_files,
    reading_store,
    speeds_judge_enqueue,
)

logger = logging.getLogger(__name__)

# by name: tasks import services, so services must not import tasks
READ_TASK = "planner.tasks.source_read"
STALE_AFTER_S = 1800.0  # a worker that takes longer is taken for dead
PREVIEW_S = 3600
PREVIEW_TIMEOUT_S = 10.0  # limit of one query while a user waits for the page


@dataclass(frozen=True, slots=True)
class PreviewSeries:
    """The traffic of one model, region and tier during the preview's time."""

    model: str
    region: str
    tier: str
    requests: float | None
    input_tokens: float | None
    output_tokens: float | None
    bins: int
    gaps: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a source would read, shown before it is stored.

    A Prometheus source has its queries, and their results for the last hour. A folder or bucket has
    its files.
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
        current_app.send_task(READ_TASK, args=[pk], expires=60)
    return len(due)


def source_request_reading(*, source: Source, user: User | None) -> Source:
    """Queue a reading of a source soon, even if not due; ``user`` None: the command line."""
    check_may_plan(user, "not have sources read")
    _check_readable(source)
    forget_refused_files(source)
    Source.objects.filter(pk=source.pk).update(due_at=timezone.now())
    current_app.send_task(READ_TASK, args=[source.pk], expires=60)
    source.refresh_from_db()
    return source


def source_read(
    *, source_id: int, raise_errors: bool = False, only_due: bool = True
) -> Source | None:
    """Claim a source and read it; return None if another worker does or it is not due.

    A problem is stored with the source as a sentence. With ``raise_errors`` it is also raised.
    Without ``only_due``, a source is read even if it is not due.
    """
    now = timezone.now()
    claimable = _due_sources(now) if only_due else _unclaimed(now)
    if not claimable.filter(pk=source_id).update(reading_since=now):
        return None
    source = Source.everywhere.select_related("workspace").get(pk=source_id)
    with within(source.workspace):
        try:
            if not only_due:  # a user asks
                forget_refused_files(source)
            READERS[source.kind](source)
            Source.objects.filter(pk=source_id).update(
                state=Source.State.READ, problem="", read_at=timezone.now()
            )
            speeds_judge_enqueue(source)
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
    """Return a preview of a source's files or metrics; raise SourceError if it cannot be read."""
    check_may_plan(user, "not make sources")
    source_settings = settings_of(kind, fields)
    check_allowed(kind, source_settings)
    if kind in (Source.Kind.FOLDER, Source.Kind.BUCKET):
        return Preview(files=preview_files(source_settings))
    if kind != Source.Kind.PROMETHEUS:
        return Preview()
    bin_s = 300
    end = int(time.time()) // bin_s * bin_s
    span = Span(end - PREVIEW_S, bin_s, PREVIEW_S // bin_s)
    client = _client(source_settings, PREVIEW_TIMEOUT_S)
    engines = find(client, source_settings, span.start_s, time.time())
    samples = read_span(client, source_settings, engines, span)
    groups = samples.bins.group_by("model", "region", "tier", maintain_order=True)
    sums = groups.agg(
        *(_sum(field).alias(field) for field in AMOUNTS),
        bins=pl.col("requests").fill_nan(None).count(),
    ).with_columns(gaps=span.bins - pl.col("bins").cast(pl.Int64))
    # Others are series of the power meter, or of gauges alone.
    traffic = sums.filter(pl.any_horizontal(pl.col(AMOUNTS).is_not_null()))
    columns = ("model", "region", "tier", *AMOUNTS, "bins", "gaps")
    return Preview(
        queries=queries(source_settings, engines, bin_s),
        series=tuple(PreviewSeries(*row) for row in traffic.select(columns).rows()),
        begins=moment(span.start_s),
        ends=moment(span.end_s),
    )


def _sum(field: str) -> pl.Expr:
    """Return the sum of the known values of a column; null if none is known."""
    known = pl.col(field).fill_nan(None)
    return pl.when(known.count() > 0).then(known.sum())


def _read_prometheus(source: Source) -> None:
    """Read a Prometheus up to the last complete bin.

    The reading begins before the end of the last one, to include late data.
    """
    reading: PrometheusSettings = settings_of(source.kind, source.settings)
    now, bin_s = time.time(), source.bin_s
    end = int(now - reading.delay_s) // bin_s * bin_s
    since = (
        source.read_until.timestamp() - reading.late_s
        if source.read_until
        else now - 86_400 * reading.days
    )
    start = int(since) // bin_s * bin_s
    if end <= start:
        return
    span = Span(start, bin_s, (end - start) // bin_s)
    client = _client(reading)
    engines = find(client, reading, start, now)
    findings = {
        "engines": [engine.title for engine in engines.engines],
        "queries": [[query.words, query.query] for query in queries(reading, engines, bin_s)],
    }
    for part in span.spans():
        reading_store(source=source, samples=read_span(client, reading, engines, part))
        Source.objects.filter(pk=source.pk).update(read_until=moment(part.end_s), found=findings)


def _check_readable(source: Source) -> None:
    """Raise NotReady for a paused source, or one to which samples are sent."""
    if source.kind == Source.Kind.SAMPLES:
        raise NotReady(
            f"Source {source.name} is sent samples, there is nothing to read; POST them to "
            f"/api/v1/sources/{source.name}/samples/."
        )
    if source.paused:
        raise NotReady(f"Source {source.name} is paused. Resume it to read it.")


READERS: dict[str, Callable[[Source], None]] = {
    Source.Kind.PROMETHEUS: _read_prometheus,
    Source.Kind.FOLDER: read_new_files,
    Source.Kind.BUCKET: read_new_files,
    Source.Kind.SAMPLES: _check_readable,  # raises
}


def _client(reading: PrometheusSettings, timeout_s: float = TIMEOUT_S) -> Prometheus:
    address = allowed_address(reading.url, settings.HEADROOM_SOURCES)
    return Prometheus(address, _access(reading), timeout_s=timeout_s)


def _access(reading: PrometheusSettings) -> Access:
    """Return the secrets in the environment variables that the settings name."""
    ca_file = settings.HEADROOM_SOURCES_CA
    if reading.token_env:
        return Access.bearer(read_secret("token_env", reading.token_env), ca_file)
    if reading.user_env and reading.password_env:
        user = read_secret("user_env", reading.user_env)
        return Access.basic(user, read_secret("password_env", reading.password_env), ca_file)
    return Access("", ca_file)


def _store_problem(source: Source, problem: str) -> None:
    """Store a problem with the source; notify only if it differs from the last one."""
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


def _unclaimed(now: datetime) -> QuerySet[Source]:
    """Return the active sources that no worker reads now."""
    stale_before = now - timedelta(seconds=STALE_AFTER_S)
    return Source.everywhere.filter(
        Q(reading_since=None) | Q(reading_since__lt=stale_before), paused=False
    ).exclude(kind=Source.Kind.SAMPLES)


def _due_sources(now: datetime) -> QuerySet[Source]:
    return _unclaimed(now).filter(due_at__lte=now)
