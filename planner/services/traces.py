"""Upload, read and remove traces."""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.utils.text import slugify

from planner.domain.trace_statistics.cache import write_character
from planner.domain.trace_statistics.context_limits import repeated_blocks, requests_beyond_context
from planner.errors import BucketUnreachable, Choice, IngestError, NotReady, PlannerError
from planner.files.atomic_write import write_upload
from planner.inputs.catalogue.hardware import known_model, shape
from planner.inputs.ingest import (
    IngestOptions,
    IngestReport,
    Preview,
    ingest_file,
    is_complete,
    preview,
    sha256_file,
)
from planner.inputs.ingest.reader import with_choice
from planner.inputs.ingest.source import base_name, check_regular
from planner.inputs.scenario.document import outline
from planner.models import Run, Source, Trace, User
from planner.selectors.scenarios import scenarios_with
from planner.services import quota, runs
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.storage import row_arrays
from planner.storage.row_arrays import TRACES, UPLOADS

# Options that came after the first release. Only chosen ones are part of a trace's identity.
ADDED_OPTIONS = ("amounts", "timezone", "dates", "where", "sample")
CHECKED_MODELS = 200  # models of a trace that are looked up in the catalogue
SLUG = re.compile(r"[-a-zA-Z0-9_]{1,120}")
NAME_TRIES = 20  # another upload may take the free name first


def trace_upload(
    *,
    owner: User,
    chunks: Iterable[bytes],
    file_name: str,
    options: IngestOptions,
    idempotency_key: str = "",
) -> tuple[Trace, Run | None, bool]:
    """Store an uploaded file and create the run that reads it.

    Returns the trace, the run, and whether the trace is new. If the same bytes were read before
    with the same options, they are not read again. The run is then the one of ``idempotency_key``
    or an active one, else None. Raises IngestError for a file that is too large, and NoRoom for one
    that does not fit.
    """
    check_may_plan(owner, refusal="not upload")
    usages = quota.disk_usages(owner)  # before the upload, which is limited by them
    upload = f"{UPLOADS}/{uuid.uuid4().hex}"
    upload_path = row_arrays.folder(upload)
    upload_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_size = partial(_check_upload_size, file_name, usages)
        sha256, size = write_upload(upload_path, chunks, check_size)
        row_arrays.keep(upload)
        with transaction.atomic():  # both the trace and the run that reads it, or neither
            trace, is_new = _register_trace(
                owner=owner, file_name=file_name, sha256=sha256, size=size, options=options
            )
            request = _ingest_request(owner, trace, options, idempotency_key)
            active = trace.runs.filter(kind=Run.Kind.INGEST, state__in=Run.ACTIVE_STATES).first()
            run = runs.earlier_run(Run(**request)) or active
            # A known trace without a run is read now if its earlier run ended before it was read.
            must_read = is_new or (run is None and _must_read(trace))
            if must_read:
                uploads_remove(trace)
                run = _create_ingest_run(request, upload)
    except BaseException:
        row_arrays.remove(upload)
        raise
    if not must_read:
        row_arrays.remove(upload)
    return trace, run, is_new


def _check_upload_size(file_name: str, usages: list[quota.DiskUsage], size: int) -> None:
    """Raise IngestError if a file of ``size`` bytes is too large, or NoRoom if it does not fit."""
    if size > settings.HEADROOM_MAX_UPLOAD_BYTES:
        limit_gb = settings.HEADROOM_MAX_UPLOAD_BYTES / 1e9
        raise IngestError(
            f"{file_name} is larger than the {limit_gb:g} GB that may be uploaded. Compress it, "
            "split it, or upload counts per bin."
        )
    quota.check_fits(usages, file_name, size)


def trace_preview(trace: Trace) -> Preview | None:
    """Return the first rows of a refused file; None if it is not stored, or no table."""
    upload = _stored_upload(trace) if trace.state == Trace.State.REFUSED else None
    if upload is None:
        return None
    try:
        first_rows = preview(row_arrays.local_path(upload), trace.file_name)
    except PlannerError:
        return None
    return first_rows if first_rows.rows else None


def _ingest_request(
    owner: User, trace: Trace, options: IngestOptions, idempotency_key: str
) -> dict[str, Any]:
    """Return the arguments of ``run_create`` for a run that reads a file, without its upload."""
    return {
        "owner": owner,
        "kind": Run.Kind.INGEST,
        "trace": trace,
        "options": {"reading": asdict(options)},
        "idempotency_key": idempotency_key,
    }


def _create_ingest_run(request: dict[str, Any], upload: str) -> Run:
    """Create the run of an ``_ingest_request`` that reads the file ``upload``."""
    return runs.run_create(**request | {"options": request["options"] | {"upload": upload}})


def trace_choice(trace: Trace, index: int) -> IngestOptions:
    """Return the options for one of the ways in which a refused file can be read.

    ``index`` is that of the choice in the trace's report. Raises NotReady if there is no such
    choice.
    """
    choices = trace.report.get("choices", ())
    if not 0 <= index < len(choices):
        raise NotReady(f"Trace {trace.name} has no such reading to choose. Load its page again.")
    return with_choice(IngestOptions(**trace.options), Choice(**choices[index]))


def trace_reread(
    *, trace: Trace, owner: User, options: IngestOptions, idempotency_key: str = ""
) -> Run:
    """Queue a run that reads the stored file of a refused trace with other options; return it.

    Raises NotReady if the trace was not refused, its file is gone, or it was read so before.
    """
    check_may_plan(owner, refusal="not upload")
    request = _ingest_request(owner, trace, options, idempotency_key)
    if earlier := runs.earlier_run(Run(**request)):
        return earlier
    upload = _stored_upload(trace)
    if trace.state != Trace.State.REFUSED:
        raise NotReady(
            f"Trace {trace.name} was not refused. Upload its file again to read it again."
        )
    if upload is None:
        raise NotReady(f"The file of trace {trace.name} was removed. Upload it again.")
    sha256 = _content_hash(sha256_file(row_arrays.local_path(upload)), options)
    with transaction.atomic():
        locked = Trace.objects.select_for_update().get(pk=trace.pk)
        existing = Trace.objects.filter(sha256=sha256).exclude(state=Trace.State.REFUSED).first()
        if existing is not None:
            raise NotReady(
                f"This file was already imported with the same options, as {existing.name}."
            )
        locked.sha256, locked.options = sha256, asdict(options)
        locked.state, locked.problem = Trace.State.UPLOADED, ""
        locked.save()
        return _create_ingest_run(request, upload)


def _stored_upload(trace: Trace) -> str | None:
    """Return the uploaded file of a refused trace; None if it is gone."""
    uploads = trace.runs.filter(kind=Run.Kind.INGEST).values_list("options__upload", flat=True)
    for upload in uploads:
        if upload and row_arrays.exists(upload):
            return str(upload)
    return None


def _content_hash(sha256: str, options: IngestOptions) -> str:
    """Return the hash that identifies a trace: of its file and of the reading options.

    ``sha256`` is that of the file, and is returned unchanged for default options.
    """
    if replace(options, name="") == IngestOptions():
        return sha256
    defaults = asdict(IngestOptions())
    reading = asdict(options)
    del reading["name"]
    # Options that were added later must not change the hashes of traces stored before.
    for name in ADDED_OPTIONS:
        if reading[name] == defaults[name]:
            del reading[name]
    return hashlib.sha256((sha256 + json.dumps(reading, sort_keys=True)).encode()).hexdigest()


def trace_run(
    *,
    trace: Trace,
    owner: User,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
) -> Run:
    """Start a forecast of a trace, the only kind of run that needs no scenario."""
    check_may_plan(owner)
    return runs.run_create(
        owner=owner,
        kind=Run.Kind.FORECAST,
        trace=trace,
        options=options,
        idempotency_key=idempotency_key,
    )


def trace_ingest_path(
    *,
    path: Path,
    options: IngestOptions,
    owner: User | None = None,
    name: str = "",
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Read a file on this machine into a trace, and return the trace; for the command line.

    A file that was read before with the same options is not read again. ``name`` is the name of the
    trace; "": derived from the file's. Raises IngestError if another trace has the name, or if the
    same file is stored under another name.
    """
    if not path.exists():
        raise IngestError(f"{path}: there is no such file. Check the path.")
    size = check_regular(path)
    quota.check_fits(quota.disk_usages(owner), path.name, size)
    trace, new = _register_trace(
        owner=owner,
        file_name=path.name,
        sha256=sha256_file(path),
        size=size,
        options=options,
        name=name,
    )
    if name and trace.name != name:
        raise IngestError(f"name: this file is stored as {trace.name}. Use that name.")
    if not _must_read(trace):
        return trace
    try:
        trace_read(trace=trace, path=path, progress=progress)
    except BaseException:  # an interrupted command leaves no row either
        if new:
            Trace.objects.filter(pk=trace.pk, runs=None).exclude(state=Trace.State.READY).delete()
        raise
    return trace


def trace_ingest_upload(*, run: Run, progress: Callable[[float, str], None]) -> dict[str, Any]:
    """Read the upload of an ingest run, and return the report; remove the file afterwards.

    A refused file stays, if it is a table or can be read in several ways, for a user to choose. So
    does the file of a run that will be executed again.
    """
    trace = run.trace
    if trace is None:
        raise NotReady("The trace of this run has been removed. Upload the file again.")
    upload = run.options["upload"]
    path = row_arrays.local_path(upload)
    try:
        trace_read(trace=trace, path=path, progress=lambda done: progress(done, "Reading the file"))
    except (BucketUnreachable, DatabaseError):  # the file is not at fault and is read again
        raise
    except PlannerError as problem:
        choices = [choice._asdict() for choice in getattr(problem, "choices", ())]
        question = getattr(problem, "question", "")
        report = {"question": question, "choices": choices} if choices else {}
        unread = Trace.objects.filter(pk=trace.pk).exclude(state=Trace.State.READY)
        unread.update(state=Trace.State.REFUSED, problem=str(problem), report=report)
        trace.refresh_from_db()
        can_be_read = choices or trace_preview(trace) is not None  # with other options
        if not can_be_read:
            row_arrays.remove(upload)
        raise
    except Exception:  # cancelled, or a bug
        # A worker that lost the run leaves the file to its successor.
        own_row = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING, attempts=run.attempts)
        if own_row.exists():
            row_arrays.remove(upload)
        raise
    row_arrays.remove(upload)
    trace.refresh_from_db()
    return dict(trace.report)


def trace_read(
    *, trace: Trace, path: Path, progress: Callable[[float], None] | None = None
) -> IngestReport:
    """Read ``path`` into the trace's columns, fill the trace's row, and return the report.

    If several processes get the same bytes at the same time, one reads them. The others wait, and
    return its report.
    """
    report_progress = progress or (lambda fraction: None)
    with row_arrays.lock_folder(store_of(trace.pk, trace.sha256), lambda: report_progress(0.0)):
        _check_exists(trace)
        trace.refresh_from_db()
        if not _must_read(trace):  # another process has read it
            return IngestReport.from_dict(trace.report)
        store = store_of(trace.pk, trace.sha256)
        row_arrays.remove(store)
        options = IngestOptions(**trace.options)
        if not options.name:  # the name of an upload has no ending that shows its format
            options = replace(options, name=trace.file_name)
        report = ingest_file(path, row_arrays.folder(store), options, progress=report_progress)
        write_character(row_arrays.folder(store))
        row_arrays.keep(store)
        fill_row(trace, report, store)
        trace.report |= _model_figures(report, row_arrays.folder(store))
        _check_exists(trace)  # save() would create a removed row again; the sweep clears its folder
        trace.save()
        record("trace.read", trace, by=trace.owner, sha256=trace.sha256, rows=report.rows)
        return report


def _must_read(trace: Trace) -> bool:
    """Return whether the trace must be read from its file: it is new, missing or damaged."""
    if trace.state != Trace.State.READY or not trace.store:
        return True
    return not (row_arrays.is_readable(trace.store) and is_complete(row_arrays.folder(trace.store)))


def store_of(number: int, sha256: str) -> str:
    """Return the folder for the data of trace ``number``; ``sha256`` identifies its content."""
    return f"{TRACES}/{number}-{sha256[:12]}"


def _check_exists(trace: Trace) -> None:
    """Raise NotReady if the trace has been removed."""
    if not Trace.objects.filter(pk=trace.pk).exists():
        raise NotReady(f"Trace {trace.name} was removed while it was read. Send its file again.")


def fill_row(trace: Trace, report: IngestReport, store: str) -> None:
    """Fill the columns of a trace whose data was read into ``store``, without saving the row."""
    trace.state, trace.problem = Trace.State.READY, ""
    trace.kind, trace.format = report.kind, report.format
    trace.requests, trace.rejected = round(report.requests or 0), report.rejected
    has_dates = report.clock == "utc"  # otherwise times count from the start of the trace
    trace.start_at = datetime.fromisoformat(report.start) if has_dates else None
    trace.end_at = datetime.fromisoformat(report.end) if has_dates else None
    trace.report, trace.store = report.as_dict(), store


def _register_trace(
    *,
    owner: User | None,
    file_name: str,
    sha256: str,
    size: int,
    options: IngestOptions,
    name: str = "",
) -> tuple[Trace, bool]:
    """Return the trace of a file read with ``options``, and whether it was created now.

    ``sha256`` and ``size`` are those of the file. ``name`` "": derived from ``file_name``.
    """
    document = asdict(options)
    sha256 = _content_hash(sha256, options)
    same_content = Trace.objects.filter(sha256=sha256).exclude(state=Trace.State.REFUSED)
    if trace := same_content.first():
        return trace, False
    if name and not SLUG.fullmatch(name):
        raise IngestError(f"name: {name[:60]!r} is not a valid name. Use letters, digits, - and _.")
    stem = slugify(base_name(file_name.replace("/", "")).replace(".", "-"))[:100] or "trace"
    for _ in range(NAME_TRIES):
        if name and Trace.objects.filter(name=name).exists():
            raise IngestError(f"name: another trace is called {name}. Choose another name.")
        trace = Trace(
            name=name or free_trace_name(stem),
            file_name=file_name[:255],
            sha256=sha256,
            bytes=size,
            options=document,
            owner=owner,
        )
        # The database checks uniqueness: another process may save the same at this moment.
        trace.full_clean(exclude=["owner"], validate_unique=False, validate_constraints=False)
        try:
            with transaction.atomic():
                trace.save()
        except IntegrityError:
            if first := same_content.first():
                return first, False
        else:
            return trace, True
    raise NotReady(f"{file_name} could not be named: too many uploads at once. Try again.")


def _model_figures(report: IngestReport, store: Path) -> dict[str, Any]:
    """Return figures for a trace's report, by name.

    They are requests beyond the context of their model, labels of unknown models, and the share of
    prompt blocks that repeat earlier ones. ``store`` is the folder of the trace.
    """
    contexts: dict[str, tuple[str, int]] = {}  # (model, most tokens of a request) by label
    unknown = []
    for label in report.models[:CHECKED_MODELS]:
        # known_model() is fast: it looks for no similar names, as an error message does.
        canonical = known_model(label)
        if canonical is None:
            unknown.append(label)
        else:
            contexts[label] = canonical, shape(canonical).max_context
    has_requests = report.kind == "requests"
    beyond = requests_beyond_context(store, contexts) if contexts and has_requests else ()
    return {
        "beyond_context": [asdict(model_excess) for model_excess in beyond],
        "unknown_models": unknown,
        "repeated_blocks": repeated_blocks(store) if has_requests else 0.0,
    }


def free_trace_name(base: str) -> str:
    """Return a name that no trace has: ``base``, with a number if it is taken."""
    names = set(Trace.objects.filter(name__startswith=base).values_list("name", flat=True))
    name, number = base, 2
    while name in names:
        name = f"{base}-{number}"
        number += 1
    return name


def trace_delete(*, trace: Trace, user: User) -> None:
    """Remove a trace, as its owner or an admin; raise NotReady if something needs it."""
    check_may_remove(user, trace.owner_id, "this trace", "uploaded")
    trace_remove(trace=trace, by=user)


def trace_remove(*, trace: Trace, by: User | None, rule: str = "") -> None:
    """Remove a trace and its arrays; raise NotReady if something needs it.

    The caller checks the user's rights. ``by`` None: the command line, or the ``rule``.
    """
    check_not_needed(trace)
    store = trace.store
    uploads_remove(trace)
    record("trace.removed", trace, by=by, rule=rule)
    trace.delete()
    row_arrays.remove(store)


def check_not_needed(trace: Trace) -> None:
    """Raise NotReady if a live source, a scenario or an active run needs the trace."""
    if live := Source.objects.filter(trace=trace).first():
        raise NotReady(f"Trace {trace.name} is of the live source {live.name}. Remove that first.")
    if trace.runs.filter(kind=Run.Kind.INGEST, state__in=Run.ACTIVE_STATES).exists():
        raise NotReady(f"Trace {trace.name} is still being read. Cancel its run first.")
    active_runs = Run.objects.filter(state__in=Run.ACTIVE_STATES)
    documents = active_runs.exclude(document="").values_list("document", flat=True)
    is_named = any(trace.name in _trace_names(outline(document)) for document in documents)
    if is_named or active_runs.filter(trace=trace).exists():
        raise NotReady(f"Trace {trace.name} is in a run that is going. Wait for it or cancel it.")
    check_unused(trace)


def check_unused(trace: Trace) -> None:
    """Raise NotReady if a scenario names the trace."""
    scenarios = scenarios_with(lambda document: trace.name in _trace_names(document))
    if scenarios:
        raise NotReady(
            f"Trace {trace.name} is used by scenario {', '.join(scenarios)}. "
            "Change or remove that first."
        )


def _trace_names(document: Mapping[str, Any]) -> set[str | None]:
    """Return the names of the stored traces in a scenario."""
    return {source.get("trace") for source in document["traffic"]["sources"]}


def uploads_remove(trace: Trace) -> None:
    """Remove the uploads of a trace that its runs have left, such as cancelled ones."""
    for run in trace.runs.filter(kind=Run.Kind.INGEST):
        row_arrays.remove(run.options["upload"])
