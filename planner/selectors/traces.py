"""Traces."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
from django.db.models import QuerySet

from forecasting.demand import DemandSeries
from planner import storage
from planner.errors import NotReady
from planner.ingest import DemandColumns, bin_requests, read_demand
from planner.models import Trace
from planner.selectors.lookup import row_named
from planner.studies.character.kept import character_kept, rates_kept, total_kept
from planner.studies.traffic.ranking import WindowRank, window_rank
from planner.studies.traffic.window import UTC_CLOCK


def traces_list() -> QuerySet[Trace]:
    return Trace.objects.select_related("owner")


def trace_get(name: str) -> Trace:
    """By name or id; an error lists those that can be used."""
    return row_named(
        Trace.objects.all(), "trace", name, offered=Trace.objects.filter(state=Trace.State.READY)
    )


def trace_ready(name: str) -> Trace:
    """A trace whose columns can be read."""
    trace = trace_get(name)
    if trace.state == Trace.State.REFUSED:
        raise NotReady(f"Trace {trace.name} was refused: {trace.problem}")
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is still being read; wait until its ingest is done.")
    return trace


def trace_demand(trace: Trace, bin_s: float) -> list[DemandColumns]:
    """Demand per model, region and tier: requests counted in bins of ``bin_s``, a demand file in
    its own bins."""
    folder = storage.held(trace.store)
    if trace.kind == Trace.Kind.DEMAND:
        return read_demand(folder)
    return bin_requests(folder, bin_s)


def trace_character(trace: Trace) -> dict[str, Any]:
    """What a trace is like: planner.studies.character.values.Character as plain data, with the
    trace under its own name."""
    return character_kept(storage.held(trace.store)) | {"trace": trace.name}


def trace_rates(trace: Trace, by: str) -> pl.DataFrame:
    """Amounts over time of the largest labels of one kind ("all", "model", "region", "tier",
    "series"), in as many stretches as a chart shows; empty where there are no such labels."""
    return rates_kept(storage.held(trace.store), by)


def trace_window(trace: Trace, start: datetime, end: datetime) -> WindowRank:
    """How ``[start, end)`` ranks among all windows of the trace that are as long; raises NotReady
    where it is no window."""
    if end <= start:
        raise NotReady(
            f"The window ends {end:%Y-%m-%d %H:%M}, before it begins; choose a later end."
        )
    if trace.report["clock"] != UTC_CLOCK:
        raise NotReady(
            f"Trace {trace.name} has no calendar times, only seconds from its start; its days are "
            "in the list of days."
        )
    return window_rank(trace_total(trace), start.timestamp(), end.timestamp())


def trace_total(trace: Trace) -> DemandSeries:
    """What came in all per bin, kept beside the trace: for ranks of windows
    (planner.studies.traffic.ranking) without reading ten million requests."""
    return total_kept(storage.held(trace.store))
