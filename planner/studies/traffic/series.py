"""The demand of a trace as it came, without a scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forecasting.demand import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    REQUESTS,
    TOTAL_TOKENS,
    DemandSeries,
    SeriesKey,
)
from planner.errors import NotReady
from planner.ingest.store import DemandColumns, bin_requests, read_demand
from planner.studies.traffic.sources import StoredTrace
from simulation.arrays import FloatArray

LABEL_ALL = "all"  # a file that does not say the model, region or tier
WANTED = (REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS)  # what capacity is needed for


def trace_series(trace: StoredTrace, bin_s: float) -> list[DemandSeries]:
    """Requests, input and output tokens per bin of every model, region and tier that the trace's
    file names, requests of all first; of a file that counts tokens together those, and what a file
    does not count is left out."""
    by_request = trace.kind == "requests"
    stored = bin_requests(trace.store, bin_s) if by_request else read_demand(trace.store)
    series = []
    for unit in WANTED:
        for columns in stored:
            counted = _amounts(columns, unit)
            if counted is None:
                continue
            measure, values = counted
            # A request trace seldom begins and ends on an edge: both end bins are not whole.
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
                measure,
            )
            series.append(binned.resample(max(1, round(bin_s / binned.bin_s)) * binned.bin_s))
    if not series:
        raise NotReady(f"Trace {trace.name} has neither requests nor tokens to forecast.")
    return series


def _amounts(columns: DemandColumns, unit: str) -> tuple[str, FloatArray] | None:
    """What the file counts of ``unit`` and under which name; None where nothing."""
    values = getattr(columns, unit)
    if values is not None and not np.isnan(values).all():
        return unit, values
    first = INPUT_TOKENS if columns.input_tokens is None else OUTPUT_TOKENS
    if unit == first and columns.total_tokens is not None:
        return TOTAL_TOKENS, columns.total_tokens  # once, in place of what is not told apart
    return None


def uncounted(series: Sequence[DemandSeries]) -> tuple[str, ...]:
    """In a sentence what the file does not count, and is not forecast."""
    keys = dict.fromkeys(demand.key for demand in series)
    notes = []
    for unit in WANTED:
        lacking = len(keys) - len({demand.key for demand in series if demand.unit == unit})
        if lacking:
            of = "" if lacking == len(keys) else f" of {lacking} of {len(keys)} series"
            notes.append(f"{unit.replace('_', ' ')}{of}")
    return (f"Not counted by the file, so not forecast: {'; '.join(notes)}.",) if notes else ()
