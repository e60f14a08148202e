"""Read traces and live sources."""

from dataclasses import dataclass
from datetime import datetime

import polars as pl
from django.db.models import QuerySet

from planner.domain.serialise import from_json
from planner.domain.trace_statistics.cache import stored_character, stored_rates, stored_total
from planner.domain.trace_statistics.figures import Character
from planner.domain.traffic.window import UTC_CLOCK
from planner.domain.traffic.window_rank import WindowRank, window_rank
from planner.errors import NotReady
from planner.inputs.ingest import DemandColumns, bin_requests, read_demand
from planner.inputs.live.samples import Samples
from planner.inputs.live.series_store import GrowingSeries
from planner.models import Source, Trace
from planner.selectors.lookup import row_by_name
from planner.storage import row_arrays


def traces_list() -> QuerySet[Trace]:
    """Return all traces with their owners."""
    return Trace.objects.select_related("owner")


def trace_get(name: str) -> Trace:
    """Return a trace by name or id; raise NotFound that lists the usable traces."""
    return row_by_name(
        Trace.objects.all(), "trace", name, offered=Trace.objects.filter(state=Trace.State.READY)
    )


def ready_trace(name: str) -> Trace:
    """Return a trace whose file was read; raise NotReady otherwise."""
    trace = trace_get(name)
    if trace.state == Trace.State.REFUSED:
        raise NotReady(f"Trace {trace.name} was refused: {trace.problem}")
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is still being read. Wait until its ingest is done.")
    return trace


def trace_demand(trace: Trace, bin_s: float) -> list[DemandColumns]:
    """Return the demand of a trace by model, region and tier.

    Requests are counted in bins of ``bin_s`` seconds. A demand file keeps its own bins.
    """
    folder = row_arrays.local_path(trace.store)
    if trace.kind == Trace.Kind.DEMAND:
        return read_demand(folder)
    return bin_requests(folder, bin_s)


def trace_character(trace: Trace) -> Character:
    """Return the stored statistics of a trace."""
    stored = stored_character(row_arrays.local_path(trace.store))
    return from_json(Character, stored | {"trace": trace.name})


def trace_rates(trace: Trace, by: str) -> pl.DataFrame:
    """Return the demand of a trace over time, for a chart, by the largest values of one column.

    ``by`` is "all", "model", "region", "tier" or "series". The table is empty if the trace does not
    have that column.
    """
    return stored_rates(row_arrays.local_path(trace.store), by)


def trace_window(trace: Trace, start: datetime, end: datetime) -> WindowRank:
    """Return the rank of ``[start, end)`` by demand among all windows of equal length.

    Raises NotReady if it is not a window of the trace, or if the trace has no dates.
    """
    if end <= start:
        raise NotReady(
            f"The window ends {end:%Y-%m-%d %H:%M}, before it begins. Choose a later end."
        )
    if trace.report["clock"] != UTC_CLOCK:
        raise NotReady(
            f"Trace {trace.name} has no calendar times, only seconds from its start. Rank its days "
            "in the list of days instead."
        )
    # The stored totals per bin suffice, so that millions of requests are not read.
    return window_rank(
        stored_total(row_arrays.local_path(trace.store)), start.timestamp(), end.timestamp()
    )


@dataclass(frozen=True, slots=True)
class Gaps:
    """The number of bins of a source's series, and of bins without a request count."""

    bins: int
    missing: int
    last: datetime | None  # end of the last bin that is known


def sources_list() -> QuerySet[Source]:
    """Return all sources of live traffic, each with its owner and trace."""
    return Source.objects.select_related("owner", "trace")


def source_get(name: str) -> Source:
    """Return a source by name or id; raise NotFound with the known names."""
    return row_by_name(sources_list(), "source", name)


def source_series(
    source: Source, start: datetime | None = None, end: datetime | None = None
) -> Samples:
    """Return the samples of a live source in ``[start, end)``; None: no limit.

    They have a row per model, region, tier and bin.
    """
    series = GrowingSeries(row_arrays.local_path(source.store), source.bin_s)
    return series.read(
        until_s=end.timestamp() if end else None, since_s=start.timestamp() if start else None
    )


def source_gaps(source: Source) -> Gaps:
    """Return the gaps in the trace of a live source, as of its last reading."""
    report = source.trace.report if source.trace is not None else {}
    series = report.get("series", [])
    known_until = source.trace.end_at if source.trace is not None else None
    return Gaps(sum(row["bins"] for row in series), sum(row["gaps"] for row in series), known_until)
