"""Read a file into a stored trace, or show its first rows: the entry point of the package."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from planner.errors import Ambiguous, Choice, IngestError
from planner.files.atomic_write import replace_folder
from planner.inputs.ingest.arrivals import read_arrivals
from planner.inputs.ingest.checks import RefusedRowCounts
from planner.inputs.ingest.columns import Resolver, counts_per_bin
from planner.inputs.ingest.consistency import Question
from planner.inputs.ingest.demand import read_demand_file
from planner.inputs.ingest.file_content import Content, Reading
from planner.inputs.ingest.formats import choose_format
from planner.inputs.ingest.names import SYNONYMS, compact_name
from planner.inputs.ingest.options import DEMAND_FIELDS, LABELS, REQUEST_FIELDS, IngestOptions
from planner.inputs.ingest.report import Figures, IngestReport, moment_text, sampling_error
from planner.inputs.ingest.requests import read_request_file
from planner.inputs.ingest.source import Source
from planner.inputs.ingest.store import META, write_report
from planner.inputs.ingest.tables import (
    Table,
    open_table,
    opened_table,
    python_safe,
    refusals_of_libraries,
)

# By kind of file. A reader checks the rows, counts the refused ones and writes the others into the
# folder. It raises IngestError if no row is accepted, or at the first refused row of a strict
# reading.
READERS: Mapping[str, Callable[[Reading], Content]] = {
    "requests": read_request_file,
    "arrivals": read_arrivals,
    "demand": read_demand_file,
}


def ingest_file(
    path: Path | str,
    store_dir: Path | str,
    options: IngestOptions | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> IngestReport:
    """Read a request or demand file into ``store_dir`` and return a report.

    ``progress`` receives the share of the file that has been read (0 to 1) and may raise to cancel.
    ``store_dir`` is replaced as a whole: it appears complete, or stays as it was.

    Raises IngestError if the file cannot be read or no row is acceptable. The message names the
    file, the line and the remedy.
    """
    options = options or IngestOptions()
    began = time.perf_counter()
    source = Source(path, options)
    store = Path(store_dir)
    if store.exists() and any(store.iterdir()) and not (store / META).is_file():
        raise IngestError(f"The folder {store.name} for the trace holds other files. Use another.")
    with replace_folder(store) as work:
        try:
            with refusals_of_libraries(source.name):
                report = _read(source, work, options, progress or (lambda _share: None))
        except Question as question:  # the file can be read in several ways: show what each gives
            raise _with_figures(question, path, options) from None
        report = replace(report, seconds=time.perf_counter() - began)
        write_report(work, report)
    return report


def _with_figures(question: Question, path: Path | str, options: IngestOptions) -> IngestError:
    """Return an error to raise: the question, with the figures that each choice gives.

    The file is read once per choice. Choices that fail are omitted. If all fail, the error is that
    of the last.
    """
    choices, refusal = [], IngestError(question.words)
    for choice in question.choices:
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = ingest_file(path, Path(folder) / "store", with_choice(options, choice))
                figures = _figures(report)
            except Ambiguous:
                figures = "a further question follows"
            except IngestError as problem:
                refusal = IngestError(f"{question.words} {problem}")
                continue
            choices.append(choice._replace(figures=figures))
    return Ambiguous(question.words, choices) if choices else refusal


def with_choice(options: IngestOptions, choice: Choice) -> IngestOptions:
    """Return the options changed by the user's answer to a question.

    A choice of the option "map" adds one field=column to the mapping.
    """
    changes: dict[str, Any] = {choice.option: choice.value}
    if choice.option == "map":
        field, _, column = choice.value.partition("=")
        changes = {"mapping": {**options.mapping, field: column}}
    return replace(options, **changes)


def _figures(report: IngestReport) -> str:
    """Return the amount, rate, tokens and times of a file: "900 requests, 0.5 per second, ..."."""
    amount, unit = report.requests or 0, "requests"
    if not amount and report.total_tokens:
        amount, unit = report.total_tokens, "tokens"
    bins = sum(series.bins for series in report.series)
    gaps = sum(series.gaps for series in report.series)
    known_share = 1 - gaps / bins if bins else 1.0
    rate = amount / max(known_share * (report.end_s - report.start_s), 1e-9)
    tokens = f", {report.input_tokens:,.0f} input tokens" if report.input_tokens else ""
    return f"{amount:,.0f} {unit}, {rate:,.3g} per second{tokens}, {report.start} to {report.end}"


def _read(
    source: Source, work: Path, options: IngestOptions, progress: Callable[[float], None]
) -> IngestReport:
    """Read the file into the folder ``work`` and return its report, without its duration.

    ``progress`` receives the share that has been read.
    """
    scratch = work / "scratch"
    table = open_table(source, options, scratch)
    format = choose_format(table.probe, options)
    tally = RefusedRowCounts(source.name, table.unit, strict=options.strict)
    if table.probe.is_empty():
        raise _no_rows(table, source.name, tally)
    reading = Reading(
        source.name, table, format, options, tally, work, lambda: progress(table.fraction)
    )
    ignored = ", ".join(f"{name[:40]} ({type[:40]})" for name, type in table.left_out.items())
    ignored_notes = []
    if ignored:
        ignored_notes.append(f"Ignored columns (no number, text or time): {ignored[:400]}.")
    try:
        content = READERS[format.kind](reading)
    except Question:  # is answered by the caller
        raise
    except IngestError as problem:
        # Ignored columns may be the cause of the error, so the message lists them.
        problem.args = (" ".join((str(problem), *ignored_notes)),)
        raise
    shutil.rmtree(scratch, ignore_errors=True)
    notes = (*content.notes, *_unused_labels(table, options), *ignored_notes)
    return replace(_report(content, reading, source.bytes), notes=notes)


def _report(content: Content, reading: Reading, size: int) -> IngestReport:
    """Return the report on a file of ``size`` bytes with this content."""
    kind, tally = content.time_format.kind, reading.tally
    names = [field.name for field in fields(Figures)]
    figures: dict[str, Any] = {name: getattr(content, name) for name in names}
    figures |= {f"{label}s": content.names[label].seen for label in LABELS}
    return IngestReport(
        trace=reading.name,
        format=reading.format.name,
        rejected=tally.total,
        reject_reasons=dict(sorted(tally.reasons.items(), key=lambda item: (-item[1], item[0]))),
        reject_samples=tally.samples,
        clock=kind,
        start=moment_text(content.start_ns, kind),
        end=moment_text(content.end_ns, kind),
        provenance=f"measured, read from {reading.name}",
        sha256=reading.table.digest(),
        bytes=size,
        seconds=0.0,
        left_out=dict(sorted(tally.left_out.items())),
        checks=reading.findings,
        assumptions=tuple(_assumptions(content, reading, tally)),
        **figures,
    )


def _assumptions(content: Content, reading: Reading, tally: RefusedRowCounts) -> Iterator[str]:
    """Yield a sentence for each assumption that was made while reading."""
    if content.time_format.note:
        yield content.time_format.note
    for reason, rows in sorted(tally.left_out.items()):
        yield f"Rows left out: {rows:,}, {reason}. where=all keeps every row."
    yield from filter(None, reading.findings.values())
    if content.cancelled:
        yield f"{content.cancelled:,} cancelled requests count with their prompts."
    if content.unanswered:
        unanswered = f"{content.unanswered:,} requests have no answer"
        yield f"{unanswered}, like embeddings: their prompts count."
    one_in = content.sample
    if one_in > 1 and content.requests:
        error = sampling_error(content.requests, one_in)
        yield (
            f"The file holds one in {one_in:g} requests, so demand is {one_in:g} times its rows. "
            f"Sampling leaves ±{error:.1%} of the total (95%)."
        )


def _no_rows(table: Table, name: str, tally: RefusedRowCounts) -> IngestError:
    """Return the error for a file whose first rows do not fit its columns.

    The rest of the table is read first. If all of its rows are refused, raise IngestError with the
    reasons instead.
    """
    rows = sum(tally.count_rows(batch) for batch in table.batches(table.columns[:1]))
    tally.raise_if_strict()
    tally.require_some(rows)
    return IngestError(
        f"{name}: its first rows have more or fewer fields than columns. Check its delimiter "
        "and its quotes."
    )


def _unused_labels(table: Table, options: IngestOptions) -> list[str]:
    """Return a sentence for each label column that the caller's fixed label replaces."""
    notes = []
    for label in LABELS:
        constant = options.constant(label)
        for column in table.columns:
            if constant is not None and compact_name(column) in SYNONYMS[label]:
                notes.append(f"Column {column} is not used: every row is labelled {constant}.")
    return notes


PREVIEW_ROWS = 6
SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows of a file as text, and the likely meaning of its columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    field_of_column: Mapping[str, str]  # such as input_tokens, for well-known names of columns


def preview(path: Path | str, name: str) -> Preview:
    """Return the preview of a file of any known format; raise IngestError if it is no table."""
    with opened_table(path, IngestOptions(name=name)) as table:
        first_rows = python_safe(table.probe.head(PREVIEW_ROWS)).iter_rows()
        texts = [
            tuple("" if cell is None else str(cell)[:SHOWN] for cell in row) for row in first_rows
        ]
    resolver = Resolver(table.columns)
    field_of_column: dict[str, str] = {}
    for field in DEMAND_FIELDS if counts_per_bin(table.columns) else REQUEST_FIELDS:
        if column := resolver.column(field):
            field_of_column.setdefault(column, field)
    return Preview(table.columns, tuple(texts), field_of_column)
