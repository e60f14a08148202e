"""From a file to a stored trace: the one entry point for uploads, the API and the command line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC as UTC_ZONE
from datetime import datetime
from pathlib import Path
from typing import Any

from planner.errors import IngestError
from planner.ingest.checks import Tally
from planner.ingest.columns import (
    DemandLayout,
    RequestLayout,
    choose_format,
    demand_layout,
    layout_columns,
    request_layout,
)
from planner.ingest.demand import DemandFound, read_demand_file
from planner.ingest.grid import Grid
from planner.ingest.names import SYNONYMS, compact
from planner.ingest.options import LABELS, IngestOptions
from planner.ingest.report import UTC, IngestReport, SeriesReport, whole
from planner.ingest.requests import RequestsFound, read_request_file
from planner.ingest.source import Source
from planner.ingest.store import META, REQUESTS, write_demand, write_report
from planner.ingest.tables import Table, open_table


def ingest_file(
    path: Path | str,
    store_dir: Path | str,
    options: IngestOptions | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> IngestReport:
    """Read a request or demand file into ``store_dir`` and report what was found.

    ``progress`` is told the share of the file that has been read (0 to 1) and may raise to cancel.
    ``store_dir`` appears whole or not at all; a trace stored there before is replaced.

    Raises IngestError, one sentence that names the file, the line and the remedy, for a file that
    cannot be read or none of whose rows is acceptable.
    """
    options = options or IngestOptions()
    began = time.perf_counter()
    source = Source(path, options)
    store = Path(store_dir)
    if store.exists() and any(store.iterdir()) and not (store / META).is_file():
        raise IngestError(f"The folder {store.name} for the trace holds other files; use another.")
    work = store.with_name(f"{store.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        report = _read(source, work, options, progress or _ignore, began)
        write_report(work, report)
        shutil.rmtree(store, ignore_errors=True)
        work.rename(store)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return report


def _ignore(fraction: float) -> None:
    """Progress that nobody asked for."""


def _read(
    source: Source,
    work: Path,
    options: IngestOptions,
    progress: Callable[[float], None],
    began: float,
) -> IngestReport:
    scratch = work / "scratch"
    table = open_table(source, options, scratch)
    format_ = choose_format(table.columns, options, jsonl=table.kind == "jsonl")
    tally = Tally(source.name, table.unit, strict=options.strict)
    if table.probe.is_empty():
        raise _no_rows(table, source.name, tally)

    def on_batch() -> None:
        progress(table.fraction)

    layout: DemandLayout | RequestLayout
    if format_ == "demand":
        layout = demand_layout(table.columns, options, source.name)
        found_demand = read_demand_file(table, layout, options, source.name, tally, on_batch)
        write_demand(work, found_demand.grids)
        found = _demand_values(found_demand)
    else:
        layout = request_layout(table.columns, options, source.name, format_)
        folder = work / REQUESTS
        folder.mkdir()
        found_requests = read_request_file(
            table, layout, options, source.name, tally, folder, on_batch
        )
        found = _request_values(found_requests)
    shutil.rmtree(scratch, ignore_errors=True)
    notes = (*found.pop("notes"), *_unused_labels(table, options))
    return IngestReport(
        trace=source.name,
        format=format_,
        rejected=tally.total,
        reject_reasons=dict(sorted(tally.reasons.items(), key=lambda item: (-item[1], item[0]))),
        reject_samples=tally.samples,
        columns=layout_columns(layout),
        notes=notes,
        provenance=f"measured, read from {source.name}",
        sha256=table.digest(),
        bytes=source.bytes,
        seconds=time.perf_counter() - began,
        **found,
    )


def _no_rows(table: Table, name: str, tally: Tally) -> IngestError:
    """Why a file without a usable row among its first ones is refused."""
    rows = 0
    for batch in table.batches(table.columns[:1]):
        rows += batch.lines.size + sum(fault.lines.size for fault in batch.faults)
        for fault in batch.faults:
            tally.add(fault)
        tally.close_batch()
    tally.require_some(rows)
    return IngestError(
        f"{name}: none of its first rows has as many fields as it has columns; check its delimiter "
        "and its quotes."
    )


def _request_values(found: RequestsFound) -> dict[str, Any]:
    kind = found.clock.kind
    return {
        "kind": "requests",
        "rows": found.rows,
        "requests": found.accepted,
        "clock": kind,
        "start_ns": found.start_ns,
        "end_ns": found.end_ns,
        "start": moment(found.start_ns, kind),
        "end": moment(found.end_ns, kind),
        "input_tokens": found.input_tokens,
        "output_tokens": found.output_tokens,
        "series": (),
        "bin_s": None,
        "notes": found.notes,
        **{f"{label}s": found.names[label].seen for label in LABELS},
    }


def _demand_values(found: DemandFound) -> dict[str, Any]:
    kind = found.clock.kind
    start_ns = min(grid.start_ns for grid in found.grids)
    end_ns = max(grid.end_ns for grid in found.grids)
    return {
        "kind": "demand",
        "rows": found.rows,
        "requests": _sum(found.grids, "requests"),
        "clock": kind,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "start": moment(start_ns, kind),
        "end": moment(end_ns, kind),
        "input_tokens": _sum(found.grids, "input_tokens"),
        "output_tokens": _sum(found.grids, "output_tokens"),
        "series": tuple(_series(grid, kind) for grid in found.grids),
        "bin_s": whole(found.bin_ns / 1e9),
        "notes": found.notes,
        **{f"{label}s": found.names[label].seen for label in LABELS},
    }


def _series(grid: Grid, kind: str) -> SeriesReport:
    return SeriesReport(
        name=str(grid.identity["name"]),
        bins=grid.bins,
        requests=_sum((grid,), "requests"),
        gaps=grid.gaps,
        bin_s=whole(grid.bin_ns / 1e9),
        start=moment(grid.start_ns, kind),
        end=moment(grid.end_ns, kind),
        input_tokens=_sum((grid,), "input_tokens"),
        output_tokens=_sum((grid,), "output_tokens"),
        **{label: grid.identity[label] for label in LABELS},
    )


def _sum(grids: tuple[Grid, ...], field: str) -> float | None:
    known = [total for grid in grids if (total := grid.total(field)) is not None]
    return whole(sum(known)) if known else None


def moment(ns: int, kind: str) -> str:
    """``2023-11-16T18:15:46Z`` (whole seconds, rounded down), or ``+3600s`` from the origin."""
    if kind == UTC:
        when = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC_ZONE)
        return when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"+{ns / 1e9:.3f}".rstrip("0").rstrip(".") + "s"


def _unused_labels(table: Table, options: IngestOptions) -> tuple[str, ...]:
    """Label columns set aside because the caller fixed the label."""
    return tuple(
        f"Column {column} is not used: every row is labelled {options.constant(label)}."
        for label in LABELS
        if options.constant(label) is not None
        for column in table.columns
        if compact(column) in SYNONYMS[label]
    )
