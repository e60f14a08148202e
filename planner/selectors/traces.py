"""Traces."""

from __future__ import annotations

from django.db.models import QuerySet

from planner import storage
from planner.errors import NotReady
from planner.ingest import DemandColumns, bin_requests, read_demand
from planner.models import Trace
from planner.selectors.lookup import row_named


def traces_list() -> QuerySet[Trace]:
    return Trace.objects.select_related("owner")


def trace_get(name: str) -> Trace:
    """By name or id."""
    return row_named(Trace.objects.all(), "trace", name)


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
    folder = storage.folder(trace.store)
    if trace.kind == Trace.Kind.DEMAND:
        return read_demand(folder)
    return bin_requests(folder, bin_s)
