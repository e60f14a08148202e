"""Rank a window among all windows of the same length in a trace.

A plan for the quietest day would be too small for the others, so results state the rank.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from forecasting.demand import DemandSeries, SeriesKey
from forecasting.outages import without_outages
from planner.domain.traffic.window import DAY_S, UTC_CLOCK
from simulation.arrays import FloatArray, IntArray

WEEK_S = 7 * DAY_S
SEEN = 0.8  # smallest share of observed bins of a compared stretch
SLACK = 0.05  # largest share of a stretch outside the trace: a day from 00:10 on counts as a day
LEAST_SAID = 0.005  # smaller shares would be shown as 0%
SAME = 1e-9  # relative tolerance: sums in another order differ by rounding
ALL = SeriesKey("all", "all", "all")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The demand in ``[start_s, end_s)``. Gaps are filled with the mean rate of the other bins."""

    start_s: float  # epoch seconds
    end_s: float
    amount: float


@dataclass(frozen=True, slots=True)
class WindowRank:
    """The rank of a window by requests, among all stretches as long as it, itself included."""

    start_s: float
    end_s: float
    amount: float | None  # requests in the window; None if too few bins were observed
    rank: int | None  # 1 is the busiest; None if it cannot be ranked
    of: int  # number of stretches compared
    busiest_ratio: float | None  # amount of the busiest stretch over that of the window
    busiest: Stretch | None
    sentence: str


def stretches(
    demand: DemandSeries, duration_s: float, phase_s: float = 0.0, step_s: float | None = None
) -> list[Stretch]:
    """Return every time span of ``duration_s`` with enough observed bins, with its demand.

    Spans begin at ``phase_s`` plus a multiple of ``step_s``. Default step: a day, or the duration
    if that is shorter. Outages count as gaps. Gaps are filled with the mean rate of the other bins.
    """
    step_s = step_s or min(DAY_S, duration_s)
    values = without_outages(demand).values
    bin_s = demand.bin_s
    slack = SLACK * duration_s
    first = np.ceil((demand.start_s - slack - phase_s) / step_s)
    last = np.floor((demand.end_s + slack - duration_s - phase_s) / step_s)
    begins = phase_s + step_s * np.arange(first, last + 1)
    if not begins.size or duration_s < bin_s:
        return []
    bins = max(1, round(duration_s / bin_s))
    first_bin = np.round((begins - demand.start_s) / bin_s).astype(np.int64)
    # Observed bins in each span, and their demand.
    count = _running_sums(~np.isnan(values), first_bin, bins)
    amount = _running_sums(np.nan_to_num(values), first_bin, bins)
    enough = (count >= SEEN * bins) & (count > 0)
    scaled = amount[enough] * (bins / count[enough])  # a gap counts as the mean of the others
    return [
        Stretch(begin, begin + duration_s, total)
        for begin, total in zip(begins[enough].tolist(), scaled.tolist(), strict=True)
    ]


def busiest(
    demand: DemandSeries, duration_s: float = DAY_S, *, not_before_s: float = -np.inf
) -> Stretch | None:
    """Return the stretch with the most demand that begins at midnight, by default the busiest day.

    Midnight is in UTC, or counted from the start of a trace without dates. Stretches that begin
    before ``not_before_s`` (epoch s) are skipped, so that a plan has history. Return None if no
    stretch of ``duration_s`` has enough observed bins.
    """
    allowed = (each for each in stretches(demand, duration_s) if each.start_s >= not_before_s)
    return max(allowed, key=lambda stretch: stretch.amount, default=None)


def window_rank(
    demand: DemandSeries, start_s: float, end_s: float, clock: str = UTC_CLOCK
) -> WindowRank:
    """Return how busy ``[start_s, end_s)`` is among all stretches of ``demand`` of that length.

    Stretches of a day or more begin at the time of day of ``start_s``. Shorter ones follow each
    other without a gap, and the window is one of them. A window without enough observed bins has
    no rank.
    """
    duration_s = end_s - start_s
    compared = stretches(demand, duration_s, phase_s=start_s)
    this = next((stretch for stretch in compared if abs(stretch.start_s - start_s) < 1e-6), None)
    top = max(compared, key=lambda stretch: stretch.amount, default=None)
    window_words = span_words(start_s, end_s, clock)
    if this is None or top is None or not top.amount:
        reason = "is not wholly within the trace or has too many gaps to rank"
        if top is not None and not top.amount:
            reason = "has no demand, and neither has the rest of the trace"
        return WindowRank(
            start_s, end_s, amount=None, rank=None, of=len(compared), busiest_ratio=None,
            busiest=top, sentence=f"{window_words} {reason}.",
        )  # fmt: skip
    rank = 1 + sum(stretch.amount > this.amount * (1 + SAME) for stretch in compared)
    ratio = top.amount / this.amount if this.amount > 0 else None
    sentence = _sentence(window_words, rank, this, top, compared, clock)
    return WindowRank(start_s, end_s, this.amount, rank, len(compared), ratio, top, sentence)


def _sentence(
    window_words: str, rank: int, this: Stretch, top: Stretch, compared: list[Stretch], clock: str
) -> str:
    """Return the rank of the window (``this``) as a sentence that names the busiest stretch."""
    kind = kind_of(this.end_s - this.start_s, this.start_s)
    if len(compared) == 1:
        return f"{window_words} is the only {kind} of the trace, so it cannot be ranked."
    if top.amount <= min(stretch.amount for stretch in compared) * (1 + SAME):
        return f"{window_words} is as busy as every other {kind} of the trace."
    all_stretches = f"{len(compared):,} {kind}s"
    if rank == 1:
        return f"{window_words} is the busiest of {all_stretches}."
    rank_words = "quietest" if rank == len(compared) else f"{ordinal(rank)} busiest"
    times = f"{top.amount / this.amount:.2g} times the volume" if this.amount else "the only volume"
    if this.amount and top.amount / this.amount < 2:
        excess = top.amount / this.amount - 1
        times = f"{excess:.0%} more" if excess >= LEAST_SAID else "about the same volume"
    busy = span_words(top.start_s, top.end_s, clock)
    this_rank = f"{window_words} is the {rank_words} of {all_stretches}"
    return f"{this_rank}. The busiest is {busy}, with {times}."


def kind_of(duration_s: float, start_s: float) -> str:
    """Return the name of a stretch: "day", "week", "6-hour window"."""
    on_edge = abs(start_s / DAY_S - round(start_s / DAY_S)) < 1e-9
    if on_edge and duration_s == DAY_S:
        return "day"
    days, hours = duration_s / DAY_S, duration_s / 3600
    if duration_s == WEEK_S:
        return "week"
    if duration_s > DAY_S and days == round(days):
        return f"{days:.0f}-day window"
    return f"{hours:.3g}-hour window" if hours >= 1 else f"{duration_s / 60:.3g}-minute window"


def span_words(start_s: float, end_s: float, clock: str) -> str:
    """Return "7 Mar 2025", "7 to 13 Mar 2025" or "7 Mar 2025, 08:00 to 10:00".

    Days are counted from the start of a trace that has a relative clock.
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
    """Return a date; with a relative clock, the number of the day."""
    if clock != UTC_CLOCK:
        return f"Day {epoch_s // DAY_S + 1:.0f}"
    when = datetime.fromtimestamp(epoch_s, UTC)
    return f"{when.day} {when:%b %Y}"


def moment_words(epoch_s: float, clock: str) -> str:
    """Return a day and the time of day, to the minute."""
    return f"{day_words(epoch_s, clock)}, {time_words(epoch_s)}"


def time_words(epoch_s: float) -> str:
    """Return the time of day, to the minute."""
    hours, minutes = divmod(round(epoch_s % DAY_S) // 60, 60)
    return f"{hours:02d}:{minutes:02d}"


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "4th", "11th" and so on."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _running_sums(values: FloatArray, first: IntArray, bins: int) -> FloatArray:
    """Return the sums of ``bins`` values in a row from each index of ``first`` on.

    Values outside the array count as 0.
    """
    total = np.concatenate(([0.0], np.cumsum(values)))
    low, high = (np.clip(edge, 0, len(values)) for edge in (first, first + bins))
    return np.asarray(total[high] - total[low])
