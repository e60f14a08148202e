"""Check a reading against its file by small rules with names.

A rule compares what a reading implies (rate, span, gaps, sums) with what the file holds.
``checks.toml`` declares its sentences and, for a file that allows several readings, the options to
choose from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from planner.errors import Choice, IngestError
from planner.inputs.ingest.clock import Clock, changing_zones
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
FEW_FRACTIONS = 3  # fewer numbers with fractions may be mistakes
FEW_GAPS, LEAST_ABSENT = 5, 0.05  # fewer absent bins are outages
FEW_ZEROS = 0.25  # zeros per absent bin; with more, zeros have rows
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
    """An error that asks the user which of several readings of a file is right.

    ``choices`` have no figures yet; ``Ambiguous`` has them.
    """

    def __init__(self, words: str, choices: Sequence[Choice]) -> None:
        super().__init__(words)
        self.words, self.choices = words, tuple(choices)


_NONE: Any = np.empty(0)


class Evidence(NamedTuple):
    """Facts about a file for the rules; a rule uses those that it needs, if they are there."""

    name: str  # of the file
    column: str = ""
    clock: Clock | None = None
    numbers: FloatArray = _NONE  # times of the first rows as they are written
    declared_unit: bool = False  # the format declares the unit
    bins: bool = False  # the times are those of bins, not of requests
    jump_ns: IntArray = _NONE  # local times that follow a jump back of about an hour
    hours: Mapping[int, int] = MappingProxyType({})  # rows by hour since the epoch
    before: FloatArray = _NONE  # amounts of a series, and those that follow them
    after: FloatArray = _NONE
    values: FloatArray = _NONE  # amounts of one field, or lengths of bins
    step_s: float = 0.0  # between bins
    times_ns: IntArray = _NONE  # of the first rows
    latency_s: FloatArray = _NONE  # of the requests that start at ``numbers``, in seconds
    repeats: int = 0  # rows with the id of another row and another time
    parts: bool = False  # most ids come again with the same prompt
    events: tuple[tuple[str, str], ...] = ()  # column and value of rows that each id has once
    value: str = ""  # of ``column``, whose rows may be the sum of all others
    unit_stated: bool = True  # name, cells, format or caller state how amounts are meant


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a rule: which sentence of checks.toml applies, and the values in it.

    ``outcome`` is the kind of sentence. ``choices`` are added to the declared ones.
    """

    outcome: str = "asks"  # or states, or refuses
    values: Mapping[str, object] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()


Rule = Callable[[Evidence], Finding | bool | None]  # True asks as declared


def run_checks(names: Sequence[str], evidence: Evidence) -> dict[str, str]:
    """Run rules on the facts of a file, and return the sentence of each ("": nothing found).

    Raise Question if a rule asks the user, and IngestError if it refuses the file.
    """
    sentences = {}
    for name in names:
        check, sentences[name] = CHECKS[name], ""
        skipped = evidence.unit_stated and "unless_stated" in check
        finding = None if skipped else RULES[name](evidence)
        if not finding:
            continue
        finding = finding if isinstance(finding, Finding) else Finding()
        values = {"name": evidence.name, "column": evidence.column, **finding.values}
        sentences[name] = words = check[finding.outcome].format(**values)
        if finding.outcome == "refuses":
            raise IngestError(words)
        if finding.outcome == "asks":
            declared = ([text.format(**values) for text in c] for c in check.get("choices", ()))
            raise Question(words, (*finding.choices, *(Choice(*texts) for texts in declared)))
    return sentences


def _time_unit(evidence: Evidence) -> Finding | None:
    """Ask whether numbers count seconds or milliseconds from the start.

    None: the unit is certain, or plausible for the gaps between the times.
    """
    clock, numbers = evidence.clock, evidence.numbers
    if clock is None or clock.kind != RELATIVE or clock.certain or numbers.size < FEW_TIMES:
        return None
    if len(clock.units) != 1 or clock.units[0] not in ("s", "ms"):
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
    units = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
    units.pop("us" if gap < 1e3 * SLOW_GAP else "s")
    mapped = f"{'time' if evidence.bins else 'arrival'}={evidence.column}"
    choices = tuple(Choice(words, "map", f"{mapped}:{unit}") for unit, words in units.items())
    return Finding(values={"units": " or in ".join(units.values())}, choices=choices)


def _clock_change(evidence: Evidence) -> Finding | None:
    """Ask for the time zone of local times in which an hour occurs twice or never.

    None: no time shows such an hour, or the zone is certain.
    """
    if evidence.clock is None or evidence.clock.certain or evidence.clock.kind == RELATIVE:
        return None
    jumps = evidence.jump_ns[:50].tolist()
    hours = evidence.hours
    doubled = [h * HOUR_NS for h, rows in hours.items() if _is_double_hour(h, rows, evidence)]
    absent = [hour * HOUR_NS for hour in _absent_hours(evidence)]
    for words, skipped, local_times in (
        ("an hour at the end of summer time comes twice", False, (*jumps, *doubled)),
        ("the hour that clocks skip for summer time has no row", True, absent),
    ):
        found = (changing_zones(local, skipped=skipped) for local in local_times)
        if zones := next(filter(None, found), ()):
            return Finding(values={"what": words}, choices=zone_choices(zones[:4]))
    return None


def zone_choices(zones: Sequence[str]) -> tuple[Choice, ...]:
    """Return the choices for the time zone of local times: ``zones``, and UTC."""
    local = (Choice(f"local time of {zone}", "timezone", zone) for zone in zones)
    return (*local, Choice("UTC", "timezone", "UTC"))


def _is_double_hour(hour: int, rows: int, evidence: Evidence) -> bool:
    """Return whether an hour has about twice the rows of each hour next to it."""
    neighbours = [evidence.hours.get(hour - 1, 0), evidence.hours.get(hour + 1, 0)]
    ratios = [rows / max(other, 1) for other in neighbours]
    return min(neighbours) >= ENOUGH_ROWS and TWICE[0] <= min(ratios) <= max(ratios) <= TWICE[1]


def _absent_hours(evidence: Evidence) -> list[int]:
    """Return hours without a row, each the only one for half a day before and after.

    Next to an hour with few requests, an hour may have none by chance. Bins need no such margin.
    """
    hours, least = evidence.hours, 1 if evidence.bins else BUSY_ROWS
    begin, end = min(hours, default=0), max(hours, default=0)

    def alone(absent: int) -> bool:
        """Return whether an absent hour is the only one near it."""
        near = range(max(absent - NEAR_HOURS, begin), min(absent + NEAR_HOURS, end) + 1)
        return all(hour in hours or hour == absent for hour in near)

    return [
        hour + 1
        for hour, rows in hours.items()
        if hour + 1 not in hours and min(rows, hours.get(hour + 2, 0)) >= least and alone(hour + 1)
    ]


def _twelve_hours(evidence: Evidence) -> bool:
    """Return whether all times lie between 1 and 12 o'clock, as if AM and PM were lost."""
    clock, hours = evidence.clock, evidence.hours
    if clock is None or clock.certain or clock.kind == RELATIVE or not hours:
        return False
    of_day = {hour % 24 for hour in hours}
    several_days = max(hours) - min(hours) >= 24
    return several_days and of_day <= set(range(1, 13)) and len(of_day) >= MOST_HOURS


def _coarse_times(evidence: Evidence) -> Finding | None:
    """Return a finding if many times repeat and are whole minutes.

    It is a statement if their step divides an hour. Otherwise it asks, since the times are rounded
    or have no time of day.
    """
    times = evidence.times_ns
    if times.size < FEW_TIMES or 3 * np.unique(times).size > times.size:
        return None
    step_s = int(np.gcd.reduce(times - times.min())) // 1_000_000_000
    all_equal = times.max() == times.min()
    if step_s < 60 and not all_equal:
        return None
    if not all_equal and step_s < 3600 and 3600 % step_s == 0:
        return Finding("states")
    return Finding(values={"times": "one time" if all_equal else f"multiples of {step_s:,} s"})


def _unsorted_offsets(evidence: Evidence) -> bool:
    """Return whether numbers rise and fall, as gaps do; times from the start would rise."""
    numbers, clock = evidence.numbers, evidence.clock
    if clock is None or clock.kind != RELATIVE or numbers.size < FEW_TIMES:
        return False
    falls = float((np.diff(numbers) < 0).mean())
    rising = np.corrcoef(np.arange(numbers.size), numbers)[0, 1] if np.ptp(numbers) > 0 else 1.0
    return bool(MIXED <= falls <= 1 - MIXED and abs(rising) <= MIXED)


def _stray_clocks(evidence: Evidence) -> Finding | None:
    """Refuse a file if many of its times are years away from the others.

    State it if there are few, which the reader sets aside.
    """
    bounds = stray_bounds(evidence.hours)
    low, high = bounds or (min(evidence.hours, default=0), max(evidence.hours, default=0))
    places = np.array(sorted(place for place in evidence.hours if low <= place <= high))
    gaps = np.diff(places)
    if gaps.size and gaps.max() > FAR_HOURS and sum(evidence.hours.values()) >= FEW_TIMES:
        before = int(places[int(gaps.argmax())])
        kind = evidence.clock.kind if evidence.clock else RELATIVE
        moment = moment_text(before * HOUR_NS, kind)
        return Finding("refuses", {"years": gaps.max() / 8766, "moment": moment})
    return None if bounds is None else Finding("states")


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
            end
            for end, gap, span in ends
            if gap > max(24, STRAY_SPANS * max(1, span)) and aside + rows[end] <= most_strays
        ]
        if not far:
            break
        aside += int(rows[far[0]])
        low, high = (low + 1, high) if far[0] == low else (low, high - 1)
    return (int(places[low]), int(places[high])) if aside else None


def only_grows(before: FloatArray, after: FloatArray, *, restarts: bool = True) -> bool:
    """Return whether amounts only grow, as those of a counter.

    ``after`` follows ``before``. With ``restarts``, a few falls to a small value are accepted.
    """
    known = np.isfinite(before) & np.isfinite(after)
    before, after = before[known], after[known]
    if before.size < FEW_BINS or (after > before).mean() < 0.5:
        return False
    fell = after < before
    if not restarts:
        return not fell.any()
    return bool(fell.mean() <= FALLS and (after[fell] <= RESTART * before[fell]).all())


def _repeated_ids(evidence: Evidence) -> Finding | None:
    """State that ids repeat at other times, as retries do; ask if most do, as in event logs."""
    choices = tuple(Choice(f"rows of {v}", "where", f'{c} = "{v}"') for c, v in evidence.events)
    if evidence.parts:
        return Finding("asks" if choices else "refuses", choices=choices)
    return Finding("states", {"repeats": evidence.repeats}) if evidence.repeats else None


def _repeated_rows(evidence: Evidence) -> Finding | None:
    """Find whole rows that repeat to the fraction of a second."""
    repeats = evidence.repeats
    return Finding(values={"repeats": repeats}) if repeats >= FEW_REPEATS else None


def _latency_gaps(evidence: Evidence) -> Finding | None:
    """State that requests start when others end, as in a benchmark with a fixed concurrency.

    None if they do not.
    """
    start, latency = evidence.numbers, evidence.latency_s
    if start.size < FEW_TIMES or not (latency > 0).all():
        return None
    span, soon = float(np.ptp(start)), SOON * float(np.median(latency))
    if span <= 0:
        return None
    # Probability that a Poisson arrival falls within ``soon`` after an end.
    if -np.expm1(-start.size / span * soon) > BY_CHANCE:
        return None
    ends = np.sort(start + latency)
    last_end = np.searchsorted(ends, start + 1e-3, side="right") - 1
    has_end_before = last_end >= 0  # the first requests of the users follow no end
    follows = start[has_end_before] - ends[last_end[has_end_before]] <= soon
    if has_end_before.mean() < 0.5 or follows.mean() < 0.9:
        return None
    return Finding("states", {"share": follows.mean()})


def _absent_bins(evidence: Evidence) -> Finding | None:
    """Return a finding if many bins are absent and hardly one is zero.

    Counts grouped by time have no row for an empty bin. A few outages are no doubt: their bins are
    unknown.
    """
    unknown = np.isnan(evidence.values)
    begins = np.count_nonzero(np.diff(unknown.astype(np.int8)) == 1)
    share = float(unknown.mean()) if unknown.size else 0.0
    zeros = np.count_nonzero(evidence.values == 0)
    if begins < FEW_GAPS or share < LEAST_ABSENT or zeros > FEW_ZEROS * unknown.sum():
        return None
    return Finding(values={"share": share})


def _counter(evidence: Evidence) -> Finding | None:
    """Find amounts that hardly ever fall; a name such as requests_total makes them a counter.

    None: they fall too.
    """
    if not only_grows(evidence.before, evidence.after):
        return None
    named = evidence.column.lower().endswith(COUNTER_NAMES)
    return Finding("states" if named else "asks")


def _sums_or_means(evidence: Evidence) -> bool:
    """Return whether tokens per bin do not grow with its requests, as means per request do."""
    requests, tokens = evidence.before, evidence.after
    known = (requests > 0) & (tokens > 0)
    if known.sum() < FEW_BINS:
        return False
    log_tokens = np.log(tokens[known])
    log_per_request = log_tokens - np.log(requests[known])
    # Sums vary with the requests, and tokens per request hardly do. For means it is the reverse.
    spread, spread_per_request = float(np.std(log_tokens)), float(np.std(log_per_request))
    return spread_per_request >= LEAST_SPREAD and spread <= spread_per_request / 2


def _bin_ends(evidence: Evidence) -> Finding | None:
    """Find bins that last much shorter or longer than the step between them.

    None if there are none.
    """
    step = evidence.step_s
    length = float(np.nanmedian(evidence.values)) if evidence.values.size else 0.0
    if not step or not length > 0 or 0.5 < length / step < 1.5:
        return None
    return Finding(values={"length": length, "step": step})


def _whole_counts(evidence: Evidence) -> bool:
    """Return whether at least a tenth of the counts are no whole numbers, as rates are."""
    known = evidence.values[np.isfinite(evidence.values) & (evidence.values != 0)]
    has_fraction = np.abs(known - np.rint(known)) > 1e-6
    return bool(known.size >= FEW_FRACTIONS and has_fraction.mean() >= 0.1)


def _row_weights(evidence: Evidence) -> bool:
    """Return whether a column of weights has others than 1, so that a row is several requests."""
    known = evidence.values[np.isfinite(evidence.values)]
    return bool(known.size and known.min() >= 0 and (known != 1).any())


def _token_totals(evidence: Evidence) -> bool:
    """Return whether "prompt" tokens equal the total although requests have answers."""
    answered = evidence.values > 0
    return bool(answered.sum() >= FEW_BINS and (evidence.after[answered] == 0).all())


RULES: Mapping[str, Rule] = {
    "time_unit": _time_unit,
    "clock_change": _clock_change,
    "stray_clocks": _stray_clocks,
    "twelve_hours": _twelve_hours,
    "coarse_times": _coarse_times,
    "unsorted_offsets": _unsorted_offsets,
    "nested_rows": lambda evidence: evidence.parts,
    "repeated_ids": _repeated_ids,
    "repeated_rows": _repeated_rows,
    "row_weights": _row_weights,
    "token_totals": _token_totals,
    "planned_rows": lambda evidence: Finding(values={"value": evidence.value}),
    "sum_rows": lambda evidence: Finding(values={"value": evidence.value}),
    "latency_gaps": _latency_gaps,
    "absent_bins": _absent_bins,
    "counter": _counter,
    "growing_tokens": lambda evidence: only_grows(evidence.before, evidence.after),
    "falling_amounts": lambda each: only_grows(each.after, each.before, restarts=False),
    "sums_or_means": _sums_or_means,
    "bin_ends": _bin_ends,
    "bare_amounts": lambda _: True,
    "whole_counts": _whole_counts,
}
CHECKS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "checks.toml").read_text(encoding="utf-8")
)
