"""Restrict traffic to the data known at a moment (``traffic.until``).

Later data is ignored. Data that a source had not delivered by then is a gap.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import DAY_S, UTC_CLOCK, words_of
from planner.errors import ScenarioError
from planner.inputs.ingest.grid import AMOUNTS
from planner.inputs.ingest.store import DemandColumns
from simulation.trace import Trace

MAX_LAG_S = DAY_S  # largest lag of a source: with more, a forecast has too little data (assumed)
MAX_MISSING_SHARE = 0.05  # largest share of a bin that can be missing without making it a gap


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSource:
    """A request log. Its file covers the time from ``start_s`` to ``end_s``, in epoch seconds."""

    trace: Trace
    start_s: float
    end_s: float
    sampling: float = 0.0  # variance over mean of the number of requests in a sample; 0: no sample


def requests_before(source: MeasuredSource, until_s: float | None) -> MeasuredSource:
    """Return the requests that arrived before ``until_s``, or all requests if that is None."""
    if until_s is None or until_s > source.end_s:
        return source
    _check_begun(until_s, source.start_s)
    is_known = source.trace.arrival_s + source.trace.start_s < until_s
    return replace(source, trace=source.trace.rows(is_known), end_s=until_s)


def bins_before(series: DemandColumns, until_s: float | None) -> DemandColumns:
    """Return the bins that end by ``until_s``, or all bins if that is None."""
    if until_s is None:
        return series
    _check_begun(until_s, series.start_s)
    bins = int((until_s - series.start_s) / series.bin_s + 1e-9)
    amounts = {name: getattr(series, name) for name in AMOUNTS}
    known = {name: values[:bins] for name, values in amounts.items() if values is not None}
    return replace(series, **known)


def _check_begun(until_s: float, start_s: float) -> None:
    """Raise ScenarioError if ``until_s`` is not after ``start_s``, the start of the traffic."""
    if until_s <= start_s:
        raise ScenarioError(
            f"traffic.until: {words_of(until_s, UTC_CLOCK)} is before the traffic begins "
            f"({words_of(start_s, UTC_CLOCK)}). Choose a later moment."
        )


def check_data_age(until_s: float, end_s: float) -> None:
    """Raise ScenarioError if the data ends at ``end_s``, over ``MAX_LAG_S`` before ``until_s``."""
    if until_s > end_s + MAX_LAG_S:
        raise ScenarioError(
            f"traffic.until: the traffic ends {words_of(end_s, UTC_CLOCK)}, "
            f"{(until_s - end_s) / DAY_S:,.1f} days before {words_of(until_s, UTC_CLOCK)}, "
            "so a forecast has no newer data. Update the traffic, "
            "or choose an earlier moment."
        )


def mask_unobserved(demand: Demand, start_s: float, end_s: float) -> Demand:
    """Return demand with gaps (NaN) in all bins outside ``[start_s, end_s)``, the time of a trace.

    A bin counts as inside if at most the share ``MAX_MISSING_SHARE`` of it is outside.
    """
    first = np.ceil((start_s - demand.start_s) / demand.bin_s - MAX_MISSING_SHARE)
    last = np.floor((end_s - demand.start_s) / demand.bin_s + MAX_MISSING_SHARE)
    bins = np.arange(demand.bins)
    known = (bins >= first) & (bins < last)
    if known.all():
        return demand
    masked: dict[str, Any] = {
        name: np.where(known, getattr(demand, name), np.nan)
        for name in ("requests", "input_tokens", "output_tokens")
    }
    return replace(demand, **masked)


def cutoff_note(until_s: float, end_s: float, bin_s: float) -> str:
    """Return the note on how ``traffic.until`` (``until_s``) limits the data of a result.

    The data known by then ends at ``end_s``. A gap shorter than a bin (``bin_s``) is not mentioned.
    """
    words = f"Traffic counts as it was known at {words_of(until_s, UTC_CLOCK)} (traffic.until)."
    if end_s < until_s - bin_s:
        words += f" The {(until_s - end_s) / 3600:,.1f} h before that were not yet known: a gap."
    return words
