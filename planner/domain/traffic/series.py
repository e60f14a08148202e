"""Read the demand series of a trace without a scenario."""

import math
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
from planner.domain.traffic.sources import StoredTrace
from planner.errors import NotReady
from planner.inputs.ingest.store import DemandColumns, bin_requests, read_whole_demand
from simulation.arrays import FloatArray

LABEL_ALL = "all"  # label of a series if the file does not state its model, region or tier
MIN_IDLE_S = (
    86_400.0  # shortest time without demand at the end that is reported; nights are shorter
)
PLANNED_UNITS = (REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS)  # units that need capacity


def trace_series(trace: StoredTrace, bin_s: float) -> list[DemandSeries]:
    """Return the demand of a stored trace as series per model, region and tier, without a scenario.

    A series counts requests, input tokens or output tokens per bin. All series of requests come
    first. If the file counts total tokens instead of input or output tokens, these are used. Units
    that the file does not count are omitted. Raise NotReady if no series is left.
    """
    by_request = trace.kind == "requests"
    stored = bin_requests(trace.store, bin_s) if by_request else read_whole_demand(trace.store)[0]
    series = []
    for unit in PLANNED_UNITS:
        for columns in stored:
            counted = _amounts(columns, unit)
            if counted is None:
                continue
            measure, values = counted
            # A request trace rarely begins and ends on a bin edge, so drop the two partial bins.
            edge = 1 if by_request and len(values) > 2 else 0
            binned = DemandSeries(
                key=_key_of(columns, by_request),
                start_s=columns.start_s + edge * columns.bin_s,
                bin_s=columns.bin_s,
                values=values[edge : len(values) - edge],
                unit=measure,
                level_error=_level_error(columns, trace.sample),
            )
            binned = binned.resample(max(1, round(bin_s / binned.bin_s)) * binned.bin_s)
            series.append(binned.since_launch(binned.end_s))
    if not series:
        raise NotReady(f"Trace {trace.name} has neither requests nor tokens to forecast.")
    return series


def _key_of(columns: DemandColumns, by_request: bool) -> SeriesKey:
    """Return the labels of a series; the name of one in a demand file may replace its model."""
    name = "" if by_request else columns.name
    model = columns.model or name or LABEL_ALL
    return SeriesKey(model, columns.region or LABEL_ALL, columns.tier or LABEL_ALL)


def _level_error(columns: DemandColumns, one_in: float) -> float:
    """Return the relative standard error of a series' total if the file is a sample, else 0.

    The file holds one in ``one_in`` requests.
    """
    total = float(np.nansum(columns.requests))
    return math.sqrt((one_in - 1.0) / total) if total and one_in > 1 else 0.0


def _amounts(columns: DemandColumns, unit: str) -> tuple[str, FloatArray] | None:
    """Return (unit, values per bin) of the file's column for ``unit``; None without such a column.

    If input tokens are not counted, total tokens take their place. Otherwise they take that of
    output tokens. The unit is then TOTAL_TOKENS.
    """
    values = getattr(columns, unit)
    if values is not None and not np.isnan(values).all():
        return unit, values
    replaced = INPUT_TOKENS if columns.input_tokens is None else OUTPUT_TOKENS
    if unit == replaced and columns.total_tokens is not None:
        return TOTAL_TOKENS, columns.total_tokens
    return None


def idle_sentences(series: Sequence[DemandSeries]) -> tuple[str, ...]:
    """Return a sentence for each key whose demand stops at least MIN_IDLE_S before the end."""
    sentences = {}
    for demand in series:
        used_bins = np.flatnonzero(np.nan_to_num(demand.values))
        if not used_bins.size:
            continue
        idle_s = (demand.bins - 1 - used_bins[-1]) * demand.bin_s
        if idle_s >= MIN_IDLE_S:
            sentences[demand.key] = (
                f"{demand.key}: no demand in the last {idle_s / 3600:,.0f} h, which counts as "
                "zero. If its records end there, read them as a trace of their own."
            )
    return tuple(sentences.values())


def uncounted_units_sentence(series: Sequence[DemandSeries]) -> tuple[str, ...]:
    """Return one sentence on the units that the file does not count; () if it counts all."""
    keys = dict.fromkeys(demand.key for demand in series)
    notes = []
    for unit in PLANNED_UNITS:
        missing = len(keys) - len({demand.key for demand in series if demand.unit == unit})
        if missing:
            which = "" if missing == len(keys) else f" of {missing} of {len(keys)} series"
            notes.append(f"{unit.replace('_', ' ')}{which}")
    return (f"Not counted by the file, so not forecast: {'; '.join(notes)}.",) if notes else ()
