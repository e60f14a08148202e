"""The demand of a trace as it came, without a scenario."""

from __future__ import annotations

import numpy as np

from forecasting.demand import INPUT_TOKENS, REQUESTS, DemandSeries, SeriesKey
from planner.errors import NotReady
from planner.ingest.store import bin_requests, read_demand
from planner.studies.traffic.sources import StoredTrace

LABEL_ALL = "all"  # a file that does not say the model, region or tier


def trace_series(trace: StoredTrace, bin_s: float) -> list[DemandSeries]:
    """Requests per bin of every model, region and tier that the trace's file names; input tokens
    where it counts only those."""
    by_request = trace.kind == "requests"
    series = []
    for columns in bin_requests(trace.store, bin_s) if by_request else read_demand(trace.store):
        counted = not np.isnan(columns.requests).all()
        values = columns.requests if counted else columns.input_tokens
        if values is None:
            values = columns.total_tokens
        if values is None:
            raise NotReady(f"Trace {trace.name} has neither requests nor tokens to forecast.")
        # A request trace seldom begins and ends on an edge: its first and last bin are not whole.
        edge = 1 if by_request and len(values) > 2 else 0
        binned = DemandSeries(
            SeriesKey(
                columns.model or ("" if by_request else columns.name) or LABEL_ALL,
                columns.region or LABEL_ALL,
                columns.tier or LABEL_ALL,
            ),
            columns.start_s + edge * columns.bin_s,
            columns.bin_s,
            values[edge : len(values) - edge],
            REQUESTS if counted else INPUT_TOKENS,
        )
        series.append(binned.resample(max(1, round(bin_s / binned.bin_s)) * binned.bin_s))
    return series
