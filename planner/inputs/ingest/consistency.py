"""Check a reading against its file by small rules with names.

A rule compares what a reading implies (rate, span, gaps, sums) with what the file holds. It finds
nothing, states a sentence for the report, or asks: then the file allows several readings, and the
caller has to choose an option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.errors import Choice, IngestError
from planner.inputs.ingest.clock import Clock, changing_zones
from planner.inputs.ingest.options import COUNTER, COUNTS, PER_REQUEST
from planner.inputs.ingest.report import RELATIVE, moment_text
from simulation.arrays import FloatArray, IntArray

FEW_TIMES = 20  # fewer times show no rate
SLOW_GAP = 20.0  # mean gap from which numbers may be milliseconds as well as seconds
MINUTE_MS, LONGEST_BIN_S = 60_000.0, 31 * 86_400.0
FAST_RATE = 100.0  # requests per second that a trace in milliseconds hardly has
STRAY_SHARE = 0.01  # most rows that may be set aside for their clock
FAR_HOURS = 2 * 8766  # a gap that no trace of one service has
STRAY_SPANS = 10  # a stray row lies this many spans of the others away, and a day
HOUR_NS = 3_600_000_000_000
SOON = 0.02  # share of a latency within which a start follows an end
BY_CHANCE = 0.3  # more starts than this share follow an end anyway at a high rate
FEW_REPEATS = 5  # fewer repeated rows may be chance
FEW_BINS = 12  # fewer bins do not show a counter
LEAST_SPREAD = 0.2  # of requests between bins (logarithms), from which means differ from sums
MOST_HOURS = 10  # of 12 hours of the day, from which the other twelve are missing
MIXED = 0.3  # least share of steps up, and of steps down, of numbers without an order
FALLS = 0.05  # largest share of steps down of a counter, which are restarts
RESTART = 0.25  # largest share of the value before that a counter has after a restart
ENOUGH_ROWS = 30  # of an hour; with fewer, its neighbours may differ by chance
BUSY_ROWS = 10  # of hours next to one that has none by chance once in 22,000 times
NEAR_HOURS = 12
TWICE = (1.6, 2.5)  # requests of a repeated hour against its neighbours
COUNTER_NAMES = ("_total", "_sum", "_bucket", "counter")


class Question(IngestError):
    """An error for a file that allows several readings; ``choices`` have no figures yet."""

    def __init__(self, words: str, choices: Sequence[Choice]) -> None:
        super().__init__(words)
        self.words, self.choices = words, tuple(choices)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Facts that a reading found; each rule uses the facts that are present."""

    name: str  # of the file
    column: str = ""
    clock: Clock | None = None
    numbers: FloatArray | None = None  # times of the first rows as they are written
    declared_unit: bool = False  # the format declares the unit
    bins: bool = False  # the times are those of bins, not of requests
    jump_ns: IntArray | None = None  # local times that follow a jump back of about an hour
    hours: Mapping[int, int] = field(default_factory=dict)  # rows by hour since the epoch
    before: FloatArray | None = None  # amounts of a series, and those that follow them
    after: FloatArray | None = None
    values: FloatArray | None = None  # amounts of one field, or lengths of bins
    step_s: float = 0.0  # between bins
    times_ns: IntArray | None = None  # of the first rows
    latency_s: FloatArray | None = None  # of the requests that start at ``numbers``, in seconds
    repeats: int = 0  # rows with the id of another row and another time
    parts: bool = False  # most ids come again with the same prompt
    events: tuple[tuple[str, str], ...] = ()  # column and value of rows that each id has once
    unit_stated: bool = True  # name, cells, format or caller state how amounts are meant


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence for the report. With choices it is a question to the user."""

    words: str
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A named rule; ``words`` say what it compares."""

    name: str
    words: str
    find: Callable[[Evidence], Finding | None]


def run(names: Sequence[str], evidence: Evidence) -> dict[str, str]:
    """Return the sentence of each check ("" if it found nothing); raise Question to ask."""
    sentences = {}
    for name in names:
        finding = CHECKS[name].find(evidence)
        if finding is not None and finding.choices:
            raise Question(finding.words, finding.choices)
        sentences[name] = finding.words if finding else ""
    return sentences


def _time_unit(evidence: Evidence) -> Finding | None:
    """Ask whether numbers count seconds or milliseconds from the start."""
    clock, numbers = evidence.clock, evidence.numbers
    if clock is None or numbers is None or clock.kind != RELATIVE or clock.certain:
        return None
    if numbers.size < FEW_TIMES or len(clock.units) != 1 or clock.units[0] not in ("s", "ms"):
        return None
    gap = float(numbers.max() - numbers.min()) / (numbers.size - 1)
    if gap <= 0:
        return None
    is_whole = bool((numbers % 1 == 0).all())
    if evidence.bins:  # bins have widths of the clock: a minute in ms would be 17 h in s
        doubt = clock.units == ("s",) and (
            gap > LONGEST_BIN_S or (gap >= MINUTE_MS and gap % 3600 != 0)
        )
    elif clock.units == ("ms",):
        doubt = (not is_whole and 1 / gap <= FAST_RATE) or 1e3 / gap > FAST_RATE
    else:
        doubt = not evidence.declared_unit and gap >= SLOW_GAP
    if not doubt:
        return None
    seconds = (("s", "seconds"), ("ms", "milliseconds"))
    units = seconds if gap < 1e3 * SLOW_GAP else (seconds[1], ("us", "microseconds"))
    field = "time" if evidence.bins else "arrival"
    return Finding(
        f"{evidence.name}: nothing states the unit of {evidence.column}, which counts from the "
        f"start of the trace in {' or in '.join(words for _, words in units)}.",
        tuple(Choice(words, "map", f"{field}={evidence.column}:{unit}") for unit, words in units),
    )


def _clock_change(evidence: Evidence) -> Finding | None:
    """Ask for the time zone of local times in which an hour occurs twice or never."""
    if evidence.clock is None or evidence.clock.certain or evidence.clock.kind == RELATIVE:
        return None
    jumps = [] if evidence.jump_ns is None else evidence.jump_ns[:50].tolist()
    hours = evidence.hours
    doubled = [h * HOUR_NS for h, rows in hours.items() if _is_double_hour(h, rows, evidence)]
    absent = [hour * HOUR_NS for hour in _absent_hours(evidence)]
    for words, skipped, local_times in (
        ("an hour at the end of summer time comes twice", False, (*jumps, *doubled)),
        ("the hour that clocks skip for summer time has no row", True, absent),
    ):
        found = (changing_zones(local, skipped=skipped) for local in local_times)
        if zones := next(filter(None, found), ()):
            choices = [Choice(f"local time of {zone}", "timezone", zone) for zone in zones[:4]]
            return Finding(
                f"{evidence.name}: {evidence.column} has no offset, and {words}, so it may be "
                "local time.",
                (*choices, Choice("UTC", "timezone", "UTC")),
            )
    return None


def _is_double_hour(hour: int, rows: int, evidence: Evidence) -> bool:
    """Return whether an hour has about twice the rows of each hour next to it."""
    neighbours = [evidence.hours.get(hour - 1, 0), evidence.hours.get(hour + 1, 0)]
    lowest_ratio, highest_ratio = TWICE
    return min(neighbours) >= ENOUGH_ROWS and all(
        lowest_ratio <= rows / other <= highest_ratio for other in neighbours
    )


def _absent_hours(evidence: Evidence) -> list[int]:
    """Return hours without a row, each the only one for half a day before and after.

    Next to an hour with few requests, an hour may have none by chance. Bins need no such margin.
    """
    hours, least = evidence.hours, 1 if evidence.bins else BUSY_ROWS
    begin, end = min(hours, default=0), max(hours, default=0)
    return [
        hour + 1
        for hour, rows in hours.items()
        if hour + 1 not in hours
        and min(rows, hours.get(hour + 2, 0)) >= least
        and all(
            near in hours or near == hour + 1
            for near in range(
                max(hour + 1 - NEAR_HOURS, begin), min(hour + 1 + NEAR_HOURS, end) + 1
            )
        )
    ]


def _twelve_hours(evidence: Evidence) -> Finding | None:
    """Ask whether hours of the day from 1 to 12 alone have lost their AM and PM."""
    clock, hours = evidence.clock, evidence.hours
    if clock is None or clock.certain or clock.kind == RELATIVE or not hours:
        return None
    of_day = {hour % 24 for hour in hours}
    if max(hours) - min(hours) < 24 or not of_day <= set(range(1, 13)) or len(of_day) < MOST_HOURS:
        return None
    return Finding(
        f"{evidence.name}: {evidence.column} has hours from 1 to 12 alone, as times that have lost "
        "AM and PM. Export them with 24 hours.",
        (Choice("the hours are right", "timezone", "UTC"),),
    )


def _coarse_times(evidence: Evidence) -> Finding | None:
    """State that times are whole minutes; ask if they have no time of day or are rounded."""
    times = evidence.times_ns
    if times is None or times.size < FEW_TIMES or 3 * np.unique(times).size > times.size:
        return None
    step_s = int(np.gcd.reduce(times - times.min())) // 1_000_000_000
    if step_s < 60:
        return None
    if step_s < 3600 and 3600 % step_s == 0:
        return Finding(
            f"{evidence.column} has whole minutes: requests of one minute arrive together. A "
            "simulation of them has bursts that may not be real."
        )
    return Finding(
        f"{evidence.name}: {evidence.column} has multiples of {step_s:,} s alone, and many rows "
        "share one. Give a column with the time of day, or without rounding.",
        (Choice("requests arrive together", "where", "all"),),
    )


def _unsorted_offsets(evidence: Evidence) -> Finding | None:
    """Ask whether numbers that rise and fall are times from the start, not gaps."""
    numbers, clock = evidence.numbers, evidence.clock
    if clock is None or clock.kind != RELATIVE or numbers is None or numbers.size < FEW_TIMES:
        return None
    falls = float((np.diff(numbers) < 0).mean())
    rising = np.corrcoef(np.arange(numbers.size), numbers)[0, 1] if np.ptp(numbers) > 0 else 1.0
    if evidence.unit_stated or not MIXED <= falls <= 1 - MIXED or abs(rising) > MIXED:
        return None
    return Finding(
        f"{evidence.name}: {evidence.column} rises and falls from row to row, as gaps or durations "
        "do. Give times that count from the start.",
        (Choice("times from the start, in any order", "where", "all"),),
    )


def _nested_rows(evidence: Evidence) -> Finding | None:
    """Ask whether rows hold the tokens of the rows below them, as the spans of an agent do."""
    if not evidence.parts:
        return None
    return Finding(
        f"{evidence.name}: rows hold the sum of the rows below them (by {evidence.column}). Keep "
        "the rows of model calls by where.",
        (Choice("each row is a request", "where", "all"),),
    )


def _stray_clocks(evidence: Evidence) -> Finding | None:
    """Refuse a file if many of its times are years away from the others; few are set aside."""
    bounds = stray_bounds(evidence.hours)
    low, high = bounds or (min(evidence.hours, default=0), max(evidence.hours, default=0))
    places = np.array(sorted(place for place in evidence.hours if low <= place <= high))
    gaps = np.diff(places)
    if gaps.size and gaps.max() > FAR_HOURS and sum(evidence.hours.values()) >= FEW_TIMES:
        before = int(places[int(gaps.argmax())])
        kind = evidence.clock.kind if evidence.clock else RELATIVE
        raise IngestError(
            f"{evidence.name}: no row lies in the {gaps.max() / 8766:,.1f} years after "
            f"{moment_text(before * HOUR_NS, kind)}. Correct the clock of those rows, or keep one "
            "part by where."
        )
    return None if bounds is None else Finding("Rows far from the others are excluded.")


def stray_bounds(hours: Mapping[int, int]) -> tuple[int, int] | None:
    """Return the first and last hour of the rows with a correct clock; None if all are correct.

    Correct is the largest group of rows without a gap of more than a day. Other rows are strays if
    they are few and far from it.
    """
    if len(hours) < 2:
        return None
    places = np.array(sorted(hours), dtype=np.int64)
    rows = np.array([hours[place] for place in places.tolist()])
    total = int(rows.sum())
    most_strays = max(1.0, STRAY_SHARE * total)
    if total < 10 or places[-1] - places[0] <= 24:
        return None
    low, high, aside = 0, len(places) - 1, 0
    # Drop an end while the rest is compact in comparison and only few rows go.
    while low < high:
        ends = (
            (low, places[low + 1] - places[low], places[high] - places[low + 1]),
            (high, places[high] - places[high - 1], places[high - 1] - places[low]),
        )
        far = [
            end for end, gap, span in ends if _spans(gap, span) and aside + rows[end] <= most_strays
        ]
        if not far:
            break
        aside += int(rows[far[0]])
        low, high = (low + 1, high) if far[0] == low else (low, high - 1)
    return (int(places[low]), int(places[high])) if aside else None


def _spans(gap: int, span: int) -> bool:
    return bool(gap > 24 and gap > STRAY_SPANS * max(1, span))


def only_grows(before: FloatArray, after: FloatArray) -> bool:
    """Return whether amounts only grow, apart from a few restarts to a small value."""
    known = np.isfinite(before) & np.isfinite(after)
    before, after = before[known], after[known]
    if before.size < FEW_BINS or (after > before).mean() < 0.5:
        return False
    fell = after < before
    return bool(fell.mean() <= FALLS and (after[fell] <= RESTART * before[fell]).all())


def _repeated_ids(evidence: Evidence) -> Finding | None:
    """State that ids repeat at other times, as retries do; ask if most do, as in event logs."""
    every = Choice("each row is a request", "where", "all")
    if evidence.parts and evidence.events:
        choices = (
            Choice(f"rows of {value}", "where", f'{column} = "{value}"')
            for column, value in evidence.events
        )
        words = f"{evidence.name}: each {evidence.column} has several rows, as events have."
        return Finding(words, (*choices, every))
    if evidence.parts:
        raise IngestError(
            f"{evidence.name}: most values of {evidence.column} come again with the same prompt, "
            "as parts of one answer do. Keep the last row of each, or give where=all to count "
            "every row."
        )
    if not evidence.repeats:
        return None
    return Finding(
        f"{evidence.repeats:,} of the first rows repeat a value of {evidence.column} at another "
        "time. Each counts as one request. Filter events with where."
    )


def _sum_rows(evidence: Evidence) -> Finding | None:
    """Ask whether one label is the sum of the others, because its amounts equal theirs."""
    ((column, name),) = evidence.events
    return Finding(
        f"{evidence.name}: the rows of {column} {name} hold as much as all others together.",
        (
            Choice("they are the sum of the others", "where", f'{column} != "{name}"'),
            Choice("every row is load", "where", "all"),
        ),
    )


def _repeated_rows(evidence: Evidence) -> Finding | None:
    """Ask whether rows are duplicates, because whole rows repeat to the fraction of a second."""
    if evidence.repeats < FEW_REPEATS:
        return None
    return Finding(
        f"{evidence.name}: {evidence.repeats:,} of the first rows repeat a whole row, with its "
        f"fraction of a second in {evidence.column}.",
        (
            Choice("each once", "map", f"request_id={evidence.column}"),
            Choice("every row is a request", "where", "all"),
        ),
    )


def _latency_gaps(evidence: Evidence) -> Finding | None:
    """State that requests start when others end, as in a benchmark with a fixed concurrency."""
    start, latency = evidence.numbers, evidence.latency_s
    if start is None or latency is None or start.size < FEW_TIMES or not (latency > 0).all():
        return None
    span, soon = float(np.ptp(start)), SOON * float(np.median(latency))
    if span <= 0 or -np.expm1(-start.size / span * soon) > BY_CHANCE:
        return None
    ends = np.sort(start + latency)
    last = np.searchsorted(ends, start + 1e-3, side="right") - 1
    later = last >= 0  # the first requests of the users follow no end
    follows = start[later] - ends[last[later]] <= soon
    if later.mean() < 0.5 or follows.mean() < 0.9:
        return None
    return Finding(
        f"{follows.mean():.0%} of the requests start as another ends (by {evidence.column}), as in "
        "a benchmark with a fixed number of users. Their rate is that of the client, not demand."
    )


def _counter(evidence: Evidence) -> Finding | None:
    """Ask whether amounts that hardly ever fall are a counter or counts per bin."""
    before, after = evidence.before, evidence.after
    if evidence.unit_stated or before is None or after is None or not only_grows(before, after):
        return None
    if evidence.column.lower().endswith(COUNTER_NAMES):
        return Finding(f"{evidence.column} only grows and is named like a counter. Read as one.")
    return Finding(
        f"{evidence.name}: {evidence.column} hardly ever falls, as a counter does that is read at "
        "intervals.",
        (
            Choice("a counter that only grows", "amounts", COUNTER),
            Choice("counts per bin", "amounts", COUNTS),
        ),
    )


def _growing_tokens(evidence: Evidence) -> Finding | None:
    """Ask whether tokens that only grow from row to row are counters, not tokens per request."""
    before, after = evidence.before, evidence.after
    if evidence.unit_stated or before is None or after is None or not only_grows(before, after):
        return None
    return Finding(
        f"{evidence.name}: tokens only grow from row to row, as a counter does that is read at "
        "intervals.",
        (
            Choice("one row per request", "format", "csv"),
            Choice("amounts per bin", "format", "demand"),
        ),
    )


def _sums_or_means(evidence: Evidence) -> Finding | None:
    """Ask whether tokens that do not grow with the requests of a bin are means per request."""
    requests, tokens = evidence.before, evidence.after
    if evidence.unit_stated or requests is None or tokens is None:
        return None
    known = (requests > 0) & (tokens > 0)
    if known.sum() < FEW_BINS:
        return None
    spread, of_means = (
        float(np.std(np.log(values[known]))) for values in (tokens, tokens / requests)
    )
    if of_means < LEAST_SPREAD or spread > of_means / 2:
        return None
    return Finding(
        f"{evidence.name}: {evidence.column} does not grow with the requests of a bin, as means "
        "per request do.",
        (
            Choice("means per request", "amounts", PER_REQUEST),
            Choice("sums per bin", "amounts", COUNTS),
        ),
    )


def _bin_ends(evidence: Evidence) -> Finding | None:
    """Ask if bins last much shorter or longer than the step between them."""
    lasts, step = evidence.values, evidence.step_s
    if evidence.unit_stated or lasts is None or not lasts.size or not step:
        return None
    length = float(np.nanmedian(lasts))
    if not length > 0 or 0.5 < length / step < 1.5:
        return None
    return Finding(
        f"{evidence.name}: bins last {length:g} s by {evidence.column} and begin every {step:g} s. "
        "Export bins that follow each other.",
        (Choice("each counts its whole step", "amounts", COUNTS),),
    )


_AS_RATES = (
    Choice("requests per second", "amounts", "per_second"),
    Choice("requests per minute", "amounts", "per_minute"),
    Choice("counts per bin", "amounts", COUNTS),
)


def _bare_amounts(evidence: Evidence) -> Finding | None:
    """Ask for the unit of amounts if nothing in the file states it."""
    if evidence.unit_stated:
        return None
    return Finding(
        f"{evidence.name}: nothing states whether {evidence.column} is a rate or a count.",
        _AS_RATES,
    )


def _whole_counts(evidence: Evidence) -> Finding | None:
    """Ask whether request counts that are not whole numbers are rates."""
    values = evidence.values
    if evidence.unit_stated or values is None:
        return None
    known = values[np.isfinite(values) & (values != 0)]
    if known.size < FEW_BINS or (np.abs(known - np.rint(known)) > 1e-6).mean() < 0.1:
        return None
    return Finding(
        f"{evidence.name}: {evidence.column} has fractions, so it is a rate and not a count.",
        _AS_RATES,
    )


CHECKS: Mapping[str, Check] = {
    each.name: each
    for each in (
        Check("time_unit", "rate and gaps of times in seconds and in milliseconds", _time_unit),
        Check("clock_change", "local times at the changes of summer time", _clock_change),
        Check("stray_clocks", "rows with a time far from the others", _stray_clocks),
        Check("twelve_hours", "hours of the day from 1 to 12 alone", _twelve_hours),
        Check("coarse_times", "times that many rows share", _coarse_times),
        Check("unsorted_offsets", "times from the start that rise and fall", _unsorted_offsets),
        Check("nested_rows", "tokens of spans and of those below them", _nested_rows),
        Check("repeated_ids", "ids that come again at other times", _repeated_ids),
        Check("repeated_rows", "whole rows that come again", _repeated_rows),
        Check("sum_rows", "rows of one label and the sum of the others", _sum_rows),
        Check("latency_gaps", "ends of requests and the starts of others", _latency_gaps),
        Check("counter", "amounts that only grow", _counter),
        Check("growing_tokens", "tokens of requests that only grow", _growing_tokens),
        Check("sums_or_means", "tokens and requests of bins", _sums_or_means),
        Check("bin_ends", "ends of bins and the step between bins", _bin_ends),
        Check("bare_amounts", "the unit of a panel's numbers", _bare_amounts),
        Check("whole_counts", "fractions in counts", _whole_counts),
    )
}
