"""Choose the time window of a trace that a draft plans, or the horizon after the trace.

Days and weeks differ, so each window has a comparison with the others. Horizons of days and weeks
are simulated, those of months and more are an outlook.
"""

from dataclasses import dataclass

from forecasting.demand import REQUESTS, DemandSeries
from planner.domain.trace_statistics.cache import stored_total
from planner.domain.traffic.window_rank import (
    WEEK_S,
    TimeSpan,
    busiest,
    span_words,
    time_spans,
    window_rank,
)
from planner.models import Trace
from planner.storage import row_arrays

DAY_S = 86_400
BUSIEST_DAY, LAST_DAY, BUSIEST_WEEK = "busiest-day", "last-day", "busiest-week"
LABELS = {BUSIEST_DAY: "Busiest day", LAST_DAY: "Last day", BUSIEST_WEEK: "Busiest week"}
# A fleet that serves the busiest day serves the others; one for a quiet day does not.
DEFAULT_WINDOW = BUSIEST_DAY
HISTORY_SHARE = 0.5  # the part of a trace that is kept as history for forecasts, up to a week
MIN_DAYS = 3  # shorter traces have too few days to compare
QUIET_RATIO = 1.5  # a window is quiet if another one has this many times its requests


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """A time window of a trace that a draft may plan."""

    key: str
    label: str
    start_s: float  # epoch seconds, or from the start of a trace on a relative clock
    duration_s: float
    requests: float
    span: str  # its dates in words
    sentence: str  # its rank in demand among all windows of the same length
    quiet: bool  # another window as long has at least QUIET_RATIO times the requests


def window_choices(trace: Trace) -> tuple[WindowChoice, ...]:
    """Return the windows of ``trace`` that a draft offers, the default one first.

    The result is empty if the trace has too few days to choose from.
    """
    demand = _total_demand(trace)
    if demand is None:
        return ()
    trace_s = demand.end_s - demand.start_s
    if trace_s < MIN_DAYS * DAY_S:
        return ()
    clock = trace.report.get("clock", "utc")
    earliest_s = demand.start_s + min(WEEK_S, HISTORY_SHARE * trace_s)
    days = [day for day in time_spans(demand, DAY_S) if day.start_s >= earliest_s]
    offered: dict[str, TimeSpan | None] = {
        BUSIEST_DAY: busiest(demand, DAY_S, not_before_s=earliest_s),
        LAST_DAY: days[-1] if days else None,
        BUSIEST_WEEK: busiest(demand, WEEK_S, not_before_s=earliest_s),
    }
    if offered[LAST_DAY] == offered[BUSIEST_DAY]:
        offered[LAST_DAY] = None
    return tuple(
        _choice(key, span, demand, clock) for key, span in offered.items() if span is not None
    )


def _choice(key: str, span: TimeSpan, demand: DemandSeries, clock: str) -> WindowChoice:
    """Return the choice ``key`` for the time window ``span``, with its rank in demand."""
    rank = window_rank(demand, span.start_s, span.end_s, clock)
    # A busier window has no history before it, so this is the busiest one that can be used.
    is_busiest_usable = key != LAST_DAY and (rank.busiest_ratio or 1.0) > 1.0
    return WindowChoice(
        key=key,
        label=f"{LABELS[key]} that can be tried" if is_busiest_usable else LABELS[key],
        start_s=span.start_s,
        duration_s=span.end_s - span.start_s,
        requests=span.amount,
        span=span_words(span.start_s, span.end_s, clock),
        sentence=rank.sentence,
        quiet=(rank.busiest_ratio or 1.0) >= QUIET_RATIO,
    )


def _total_demand(trace: Trace) -> DemandSeries | None:
    """Return the total demand that was stored when the trace was read.

    None if it is not counted in requests, if the trace is too short to compare days, or if its bin
    width does not divide a day.
    """
    if trace.kind == Trace.Kind.REQUESTS and trace.length_s < MIN_DAYS * DAY_S:
        return None
    total = stored_total(row_arrays.local_path(trace.store))
    return None if total.unit != REQUESTS or DAY_S % total.bin_s else total


@dataclass(frozen=True, slots=True)
class HorizonChoice:
    """A horizon after the end of a trace that a draft may plan."""

    key: str
    label: str
    words: str  # what the plan then has
    replayed_s: int  # length of the time window that a comparison simulates
    outlook: str = ""  # kind of outlook over the months; "": the comparison has the whole horizon
    months: int = 0


HORIZONS: dict[str, HorizonChoice] = {
    choice.key: choice
    for choice in (
        HorizonChoice("day", "A day", "replicas, simulated", DAY_S),
        HorizonChoice("week", "A week", "hour by hour, simulated", 7 * DAY_S),
        HorizonChoice("month", "A month", "cost, from a representative week", DAY_S, "month", 1),
        HorizonChoice("quarter", "A quarter", "cost by month", DAY_S, "quarter", 3),
        HorizonChoice("year", "A year", "cost by month, and commitments", DAY_S, "year", 12),
    )
}
