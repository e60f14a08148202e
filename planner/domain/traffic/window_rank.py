"""Rank a window among all windows of the same length in a trace.

A plan for the quietest day would be too small for the others, so results state the rank.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from forecasting.demand import DemandSeries, SeriesKey
from forecasting.outages import without_outages
from planner.domain.traffic.window import DAY_S, UTC_CLOCK
from simulation.arrays import FloatArray, IntArray

WEEK_S = 7 * DAY_S
MIN_OBSERVED_SHARE = 0.8  # smallest share of observed bins of a compared time span
MAX_SHARE_OUTSIDE = (
    0.05  # largest share of a span outside the trace: a day from 00:10 on counts as a day
)
MIN_SHOWN_SHARE = 0.005  # smaller shares would be shown as 0%
ROUNDING = 1e-9  # relative tolerance: sums in another order differ by rounding
ALL = SeriesKey("all", "all", "all")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time ``[start_s, end_s)`` of a trace, with its demand (``amount``).

    Gaps are filled with the mean rate of the other bins.
    """

    start_s: float  # epoch seconds
    end_s: float
    amount: float  # in the unit of the demand series


@dataclass(frozen=True, slots=True)
class WindowRank:
    """The rank of a window by requests, among all time spans of its length, itself included."""

    start_s: float
    end_s: float
    amount: float | None  # requests in the window; None if too few bins were observed
    rank: int | None  # 1 is the busiest; None if it cannot be ranked
    of: int  # number of time spans compared
    busiest_ratio: float | None  # amount of the busiest time span over that of the window
    busiest: TimeSpan | None
    sentence: str


def time_spans(demand: DemandSeries, duration_s: float, phase_s: float = 0.0) -> list[TimeSpan]:
    """Return every time span of ``duration_s`` with enough observed bins, with its demand.

    Spans begin at ``phase_s`` (epoch s) plus a multiple of a day, or of the duration if that is
    shorter. Outages count as gaps.
    """
    begins_s = _begins_s(demand, duration_s, phase_s)
    if not begins_s.size or duration_s < demand.bin_s:
        return []
    values = without_outages(demand).values
    bins = max(1, round(duration_s / demand.bin_s))
    first_bin = np.round((begins_s - demand.start_s) / demand.bin_s).astype(np.int64)
    # Observed bins in each span, and their demand.
    count = _sums_of_windows(~np.isnan(values), first_bin, bins)
    amount = _sums_of_windows(np.nan_to_num(values), first_bin, bins)
    spans = []
    for begin_s, observed, total in zip(begins_s.tolist(), count, amount, strict=True):
        if observed > 0 and observed >= MIN_OBSERVED_SHARE * bins:
            scaled = total * (bins / observed)  # a gap counts as the mean of the others
            spans.append(TimeSpan(begin_s, begin_s + duration_s, float(scaled)))
    return spans


def _begins_s(demand: DemandSeries, duration_s: float, phase_s: float) -> FloatArray:
    """Return the begins of the spans of ``time_spans`` that may lie in ``demand``, in epoch s."""
    step_s, slack_s = min(DAY_S, duration_s), MAX_SHARE_OUTSIDE * duration_s
    first = np.ceil((demand.start_s - slack_s - phase_s) / step_s)
    last = np.floor((demand.end_s + slack_s - duration_s - phase_s) / step_s)
    return np.asarray(phase_s + step_s * np.arange(first, last + 1), np.float64)


def busiest(
    demand: DemandSeries, duration_s: float = DAY_S, *, not_before_s: float = -np.inf
) -> TimeSpan | None:
    """Return the time span of ``duration_s`` with the most demand; by default, the busiest day.

    Spans begin at midnight UTC, or a multiple of a day from the start of a trace without dates.
    Spans that begin before ``not_before_s`` (epoch s) are skipped, so that a plan has history.
    Return None if no span has enough observed bins.
    """
    allowed = (span for span in time_spans(demand, duration_s) if span.start_s >= not_before_s)
    return max(allowed, key=lambda span: span.amount, default=None)


def window_rank(
    demand: DemandSeries, start_s: float, end_s: float, clock: str = UTC_CLOCK
) -> WindowRank:
    """Return the rank of ``[start_s, end_s)`` among all time spans of that length in ``demand``.

    Spans of a day or more begin at the time of day of ``start_s``. Shorter ones follow each other
    without a gap, and the window is one of them. A window without enough observed bins has no rank.
    """
    compared = time_spans(demand, end_s - start_s, phase_s=start_s)
    top = max(compared, key=lambda span: span.amount, default=None)
    unranked = WindowRank(start_s, end_s, None, None, len(compared), None, top, sentence="")
    words = span_words(start_s, end_s, clock)
    if top is not None and not top.amount:
        sentence = f"{words} has no demand, and neither has the rest of the trace."
        return replace(unranked, sentence=sentence)
    equal_spans = [span for span in compared if abs(span.start_s - start_s) < 1e-6]
    if top is None or not equal_spans:
        sentence = f"{words} is not wholly within the trace or has too many gaps to rank."
        return replace(unranked, sentence=sentence)
    window = equal_spans[0]
    rank = 1 + sum(span.amount > window.amount * (1 + ROUNDING) for span in compared)
    return replace(
        unranked,
        amount=window.amount,
        rank=rank,
        busiest_ratio=top.amount / window.amount if window.amount > 0 else None,
        sentence=_sentence(words, rank, window, top, compared, clock),
    )


def _sentence(
    window_words: str, rank: int, window: TimeSpan, top: TimeSpan, compared: list[TimeSpan],
    clock: str,
) -> str:  # fmt: skip
    """Return the rank of ``window`` among ``compared`` spans as a sentence.

    It names the busiest span, ``top``. ``window_words`` describes the window.
    """
    kind = kind_of(window.end_s - window.start_s, window.start_s)
    if len(compared) == 1:
        return f"{window_words} is the only {kind} of the trace, so it cannot be ranked."
    if top.amount <= min(span.amount for span in compared) * (1 + ROUNDING):
        return f"{window_words} is as busy as every other {kind} of the trace."
    all_spans = f"{len(compared):,} {kind}s"
    if rank == 1:
        return f"{window_words} is the busiest of {all_spans}."
    rank_words = "quietest" if rank == len(compared) else f"{ordinal(rank)} busiest"
    if not window.amount:
        volume = "the only volume"
    elif top.amount >= 2 * window.amount:
        volume = f"{top.amount / window.amount:.2g} times the volume"
    else:
        more = top.amount / window.amount - 1
        volume = f"{more:.0%} more" if more >= MIN_SHOWN_SHARE else "about the same volume"
    busiest_words = span_words(top.start_s, top.end_s, clock)
    return (
        f"{window_words} is the {rank_words} of {all_spans}. The busiest is {busiest_words}, "
        f"with {volume}."
    )


def kind_of(duration_s: float, start_s: float) -> str:
    """Return the kind of a time span: "day" (from midnight), "week", "6-hour window"."""
    from_midnight = abs(start_s / DAY_S - round(start_s / DAY_S)) < 1e-9
    if from_midnight and duration_s == DAY_S:
        return "day"
    days, hours = duration_s / DAY_S, duration_s / 3600
    if duration_s == WEEK_S:
        return "week"
    if duration_s > DAY_S and days == round(days):
        return f"{days:.0f}-day window"
    return f"{hours:.3g}-hour window" if hours >= 1 else f"{duration_s / 60:.3g}-minute window"


def span_words(start_s: float, end_s: float, clock: str) -> str:
    """Return "7 Mar 2025", "7 Mar 2025 to 13 Mar 2025" or "7 Mar 2025, 08:00 to 10:00".

    On a relative clock, the day of the trace replaces the date.
    """
    by_day = start_s % DAY_S == 0 and end_s % DAY_S == 0
    if by_day and end_s - start_s == DAY_S:
        return day_words(start_s, clock)
    if by_day:
        return f"{day_words(start_s, clock)} to {day_words(end_s - DAY_S, clock)}"
    begins, ends = moment_words(start_s, clock), moment_words(end_s, clock)
    if day_words(start_s, clock) == day_words(end_s, clock):
        ends = ends.rpartition(", ")[2]
    return f"{begins} to {ends}"


def day_words(epoch_s: float, clock: str) -> str:
    """Return a date such as "7 Mar 2025"; on a relative clock, the day of the trace: "Day 3"."""
    if clock != UTC_CLOCK:
        return f"Day {epoch_s // DAY_S + 1:.0f}"
    when = datetime.fromtimestamp(epoch_s, UTC)
    return f"{when.day} {when:%b %Y}"


def moment_words(epoch_s: float, clock: str) -> str:
    """Return a day and the time of day, to the minute, such as "7 Mar 2025, 08:00"."""
    return f"{day_words(epoch_s, clock)}, {time_words(epoch_s)}"


def time_words(epoch_s: float) -> str:
    """Return the time of day, to the minute."""
    hours, minutes = divmod(round(epoch_s % DAY_S) // 60, 60)
    return f"{hours:02d}:{minutes:02d}"


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "4th", "11th" and so on."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _sums_of_windows(values: FloatArray, first: IntArray, bins: int) -> FloatArray:
    """Return, for each index of ``first``, the sum of the ``bins`` values from there on.

    Values outside the array count as 0.
    """
    # The difference of two cumulative sums.
    total = np.concatenate(([0.0], np.cumsum(values)))
    begin, end = np.clip(first, 0, len(values)), np.clip(first + bins, 0, len(values))
    return np.asarray(total[end] - total[begin])
