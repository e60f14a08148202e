"""Check a reading against its file: a function for each rule that ``checks.toml`` declares.

A rule compares what a reading implies (rate, span, gaps, sums) with what the file holds.
``checks.toml`` has its sentences and, for a file that allows several readings, the options to
choose from. ``Reading.check`` turns the finding of a rule into one of them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import Choice, IngestError
from planner.inputs.ingest.clock import TimeFormat, changing_zones
from planner.inputs.ingest.report import RELATIVE, moment_text
from simulation.arrays import FloatArray, IntArray

FEW_ROWS = 10  # with fewer rows, no time is known to be wrong
FEW_TIMES = 20  # fewer times show no rate
SLOW_GAP = 20.0  # mean gap from which numbers may be milliseconds as well as seconds
HOURS_PER_YEAR = 8766
MINUTE_MS, LONGEST_BIN_S = 60_000.0, 31 * 86_400.0
FAST_RATE = 100.0  # requests per second that a trace in milliseconds hardly has
STRAY_SHARE = 0.01  # most rows that may be set aside for their clock
FAR_HOURS = 2 * HOURS_PER_YEAR  # a gap that no trace of one service has
STRAY_SPANS = 10  # a stray row lies this many spans of the others away, and a day
HOUR_NS = 3_600_000_000_000
SOON = 0.02  # share of a latency within which a start follows an end
BY_CHANCE = 0.3  # more starts than this share follow an end anyway at a high rate
FEW_FRACTIONS = 3  # fewer numbers with fractions may be mistakes
FEW_GAPS, LEAST_ABSENT = 5, 0.05  # fewer absent bins are outages
FEW_ZEROS = 0.25  # zeros per absent bin; with more, zeros have rows
FEW_BINS = 12  # fewer bins do not show a counter
LEAST_SPREAD = 0.2  # of requests between bins (logarithms), from which means differ from sums
MOST_HOURS = 10  # of the 12 hours; with fewer, the times need not be on a 12-hour clock
MIXED = 0.3  # least share of steps up, and of steps down, of numbers without an order
FALLS = 0.05  # largest share of steps down of a counter, which are restarts
RESTART = 0.25  # largest share of the value before that a counter has after a restart
ENOUGH_ROWS = 30  # of an hour; with fewer, its neighbours may differ by chance
BUSY_ROWS = 10  # of hours next to one that has none by chance once in 22,000 times
NEAR_HOURS = 12
LEAST_TWICE, MOST_TWICE = 1.6, 2.5  # requests of a repeated hour against its neighbours
COUNTER_NAMES = ("_total", "_sum", "_bucket", "counter")


class Question(IngestError):
    """An error that asks which reading of a file is right; ``choices`` have no figures yet."""

    def __init__(self, words: str, choices: Sequence[Choice]) -> None:
        super().__init__(words)
        self.words, self.choices = words, tuple(choices)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a rule: which sentence of checks.toml applies, and the values in it."""

    outcome: str = "asks"  # the user; or "states" an assumption, or "refuses" the file
    values: Mapping[str, object] = field(default_factory=dict)  # for the sentence, by name
    choices: tuple[Choice, ...] = ()  # besides those that checks.toml declares


def report_finding(
    check: str, finding: Finding | bool | None, *, name: str, column: str = ""
) -> str:
    """Return the sentence of the rule ``check`` on the file ``name``; "" without a finding.

    A finding of True asks the question that checks.toml declares. Raise Question if the finding
    asks the user, and IngestError if it refuses the file.
    """
    if not finding:
        return ""
    finding = finding if isinstance(finding, Finding) else Finding()
    declared = CHECKS[check]  # the rule's sentences and choices, as templates
    values = {"name": name, "column": column, **finding.values}
    sentence: str = declared[finding.outcome].format(**values)
    if finding.outcome == "refuses":
        raise IngestError(sentence)
    if finding.outcome == "asks":
        choices = list(finding.choices)
        for templates in declared.get("choices", ()):
            choices.append(Choice(*(template.format(**values) for template in templates)))
        raise Question(sentence, tuple(choices))
    return sentence


def time_unit(
    time_format: TimeFormat, numbers: FloatArray, *, declared: bool, bins: bool
) -> Finding | None:
    """Return a finding that asks for the unit of ``numbers``, times from the trace's start.

    None if the unit is certain, or plausible for the gaps between the times. ``declared``: the
    format states the unit. ``bins``: the times are those of bins, not of requests.
    """
    is_offset = time_format.kind == RELATIVE  # from the start of the trace
    if not is_offset or time_format.certain or numbers.size < FEW_TIMES:
        return None
    mean_gap = float(numbers.max() - numbers.min()) / (numbers.size - 1)  # in the assumed unit
    if time_format.units not in (("s",), ("ms",)) or mean_gap <= 0:
        return None
    if bins:
        # 60,000 may be a minute in ms. Seconds are plausible for whole hours of that length.
        may_be_ms = mean_gap >= MINUTE_MS and mean_gap % 3600 != 0
        is_doubtful = time_format.units == ("s",) and (mean_gap > LONGEST_BIN_S or may_be_ms)
    elif time_format.units == ("ms",):
        is_whole = bool((numbers % 1 == 0).all())
        # Requests/s if the times are s or ms. Whole numbers are usual in ms, and high rates in us.
        rate_in_s, rate_in_ms = 1 / mean_gap, 1e3 / mean_gap
        is_doubtful = (not is_whole and rate_in_s <= FAST_RATE) or rate_in_ms > FAST_RATE
    else:  # in seconds, so few requests that these may be milliseconds
        is_doubtful = not declared and mean_gap >= SLOW_GAP
    if not is_doubtful:
        return None
    units = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
    # Offer two units: large gaps may be in us, small ones in s.
    units.pop("us" if mean_gap < 1e3 * SLOW_GAP else "s")
    mapped = f"{'time' if bins else 'arrival'}={time_format.columns[0]}"
    choices = tuple(Choice(words, "map", f"{mapped}:{unit}") for unit, words in units.items())
    return Finding(values={"units": " or in ".join(units.values())}, choices=choices)


def clock_change(
    time_format: TimeFormat,
    *,
    jump_ns: Sequence[int] = (),
    hours: Mapping[int, int] | None = None,
    bins: bool = False,
) -> Finding | None:
    """Return a finding that asks for the time zone: an hour of local times occurs twice or never.

    ``jump_ns`` are local times that follow a jump back of about an hour, and ``hours`` has the
    number of rows by hour since 1970. ``bins``: the rows are bins, not requests. None: no time
    shows such an hour, or the zone is certain.
    """
    if not time_format.may_be_local:
        return None
    rows_by_hour = hours or {}
    doubled_ns = [hour * HOUR_NS for hour in rows_by_hour if _is_double_hour(hour, rows_by_hour)]
    least_rows = 1 if bins else BUSY_ROWS
    absent_ns = [hour * HOUR_NS for hour in _absent_hours(rows_by_hour, least_rows)]
    for words, skipped, local_times_ns in (
        ("an hour at the end of summer time comes twice", False, (*jump_ns[:50], *doubled_ns)),
        ("the hour that clocks skip for summer time has no row", True, absent_ns),
    ):
        for local_ns in local_times_ns:
            if zones := changing_zones(local_ns, skipped=skipped):
                return Finding(values={"what": words}, choices=zone_choices(zones[:4]))
    return None


def zone_choices(zones: Sequence[str]) -> tuple[Choice, ...]:
    """Return the choices for the time zone of local times: ``zones``, and UTC."""
    local = (Choice(f"local time of {zone}", "timezone", zone) for zone in zones)
    return (*local, Choice("UTC", "timezone", "UTC"))


def _is_double_hour(hour: int, rows_by_hour: Mapping[int, int]) -> bool:
    """Return whether an hour has about twice the rows of each hour next to it."""
    neighbours = [rows_by_hour.get(hour - 1, 0), rows_by_hour.get(hour + 1, 0)]
    ratios = [rows_by_hour[hour] / max(rows, 1) for rows in neighbours]
    is_double = all(LEAST_TWICE <= ratio <= MOST_TWICE for ratio in ratios)
    return is_double and min(neighbours) >= ENOUGH_ROWS


def _absent_hours(rows_by_hour: Mapping[int, int], least_rows: int) -> list[int]:
    """Return the hours without a row that are the only ones for half a day before and after.

    Both neighbours must have ``least_rows`` or more. Next to quieter hours, an hour may have none
    by chance.
    """
    first, last = min(rows_by_hour, default=0), max(rows_by_hour, default=0)
    lonely = []
    for hour, rows in rows_by_hour.items():
        absent = hour + 1
        rows_around = min(rows, rows_by_hour.get(hour + 2, 0))
        if absent in rows_by_hour or rows_around < least_rows:
            continue
        near = range(max(absent - NEAR_HOURS, first), min(absent + NEAR_HOURS, last) + 1)
        if all(other in rows_by_hour or other == absent for other in near):
            lonely.append(absent)
    return lonely


def twelve_hours(time_format: TimeFormat, rows_by_hour: Mapping[int, int]) -> bool:
    """Return whether local times of several days are all in 1 to 12 o'clock."""
    if not time_format.may_be_local or not rows_by_hour:
        return False
    hours_of_day = {hour % 24 for hour in rows_by_hour}
    several_days = max(rows_by_hour) - min(rows_by_hour) >= 24
    return several_days and hours_of_day <= set(range(1, 13)) and len(hours_of_day) >= MOST_HOURS


def coarse_times(times_ns: IntArray) -> Finding | None:
    """Return a finding if many of ``times_ns`` repeat and are whole minutes; else None.

    Times with a step of some minutes are stated. Other steps are asked about, because the times are
    rounded or have no time of day.
    """
    if times_ns.size < FEW_TIMES or 3 * np.unique(times_ns).size > times_ns.size:
        return None
    step_s = int(np.gcd.reduce(times_ns - times_ns.min())) // 1_000_000_000
    all_equal = times_ns.max() == times_ns.min()
    if step_s < 60 and not all_equal:
        return None
    if not all_equal and step_s < 3600 and 3600 % step_s == 0:
        return Finding("states")
    return Finding(values={"times": "one time" if all_equal else f"multiples of {step_s:,} s"})


def unsorted_offsets(time_format: TimeFormat, numbers: FloatArray) -> bool:
    """Return whether numbers rise and fall like gaps between requests, unlike their times."""
    if time_format.kind != RELATIVE or numbers.size < FEW_TIMES:
        return False
    share_falling = float((np.diff(numbers) < 0).mean())
    correlation = 1.0  # of the numbers with their order
    if np.ptp(numbers) > 0:
        correlation = np.corrcoef(np.arange(numbers.size), numbers)[0, 1]
    return bool(MIXED <= share_falling <= 1 - MIXED and abs(correlation) <= MIXED)


def stray_clocks(time_format: TimeFormat, rows_by_hour: Mapping[int, int]) -> Finding | None:
    """Return a finding if some times are years away from the others; else None.

    Many such times refuse the file. Few are left out, which the finding states. The hours are
    counted from 1970.
    """
    bounds = stray_bounds(rows_by_hour)
    first, last = bounds or (min(rows_by_hour, default=0), max(rows_by_hour, default=0))
    hours_with_rows = np.array(sorted(hour for hour in rows_by_hour if first <= hour <= last))
    gaps = np.diff(hours_with_rows)
    if gaps.size and gaps.max() > FAR_HOURS and sum(rows_by_hour.values()) >= FEW_TIMES:
        hour_before = int(hours_with_rows[int(gaps.argmax())])
        moment = moment_text(hour_before * HOUR_NS, time_format.kind)
        return Finding("refuses", {"years": gaps.max() / HOURS_PER_YEAR, "moment": moment})
    return None if bounds is None else Finding("states")


def stray_bounds(rows_by_hour: Mapping[int, int]) -> tuple[int, int] | None:
    """Return the first and last hour of the rows with a correct clock; None if all are correct.

    The hours are counted from 1970. The first or last hour is dropped as long as its gap to the
    other rows is over a day and over STRAY_SPANS times the span of the others. At most the share
    STRAY_SHARE of all rows is dropped, or a single row.
    """
    hours = sorted(rows_by_hour)
    total = sum(rows_by_hour.values())
    if total < FEW_ROWS or hours[-1] - hours[0] <= 24:
        return None
    low, high = 0, len(hours) - 1  # indices of the first and the last hour that is not dropped
    rows_left = max(1.0, STRAY_SHARE * total)  # rows that may still be dropped
    while low < high:
        first, last = hours[low], hours[high]
        if rows_by_hour[first] <= rows_left and _is_far(first, hours[low + 1], last):
            rows_left -= rows_by_hour[first]
            low += 1
        elif rows_by_hour[last] <= rows_left and _is_far(last, hours[high - 1], first):
            rows_left -= rows_by_hour[last]
            high -= 1
        else:
            break
    is_any_dropped = high - low < len(hours) - 1
    return (hours[low], hours[high]) if is_any_dropped else None


def _is_far(hour: int, nearest: int, farthest: int) -> bool:
    """Return whether an hour is far from the others, which span ``nearest`` to ``farthest``."""
    span = max(1, abs(farthest - nearest))
    return abs(nearest - hour) > max(24, STRAY_SPANS * span)


def only_grows(before: FloatArray, after: FloatArray, *, restarts: bool = True) -> bool:
    """Return whether amounts only grow, as those of a counter.

    ``after[i]`` is the amount that follows ``before[i]``. With ``restarts``, a few falls to a small
    value are accepted.
    """
    known = np.isfinite(before) & np.isfinite(after)
    before, after = before[known], after[known]
    if before.size < FEW_BINS or (after > before).mean() < 0.5:
        return False
    fell = after < before
    if not restarts:
        return not fell.any()
    return bool(fell.mean() <= FALLS and (after[fell] <= RESTART * before[fell]).all())


def repeated_ids(repeats: int, *, parts: bool, events: Sequence[tuple[str, str]]) -> Finding | None:
    """Return a finding if ids of requests repeat.

    ``repeats`` is the number of rows that repeat an id at another time: retries, which are stated.
    ``parts``: rows are parts or events of requests. The user chooses one of ``events``, which are
    (column, value) pairs that select one row of each request. Without them the file is refused.
    """
    choices = tuple(
        Choice(f"rows of {value}", "where", f'{column} = "{value}"') for column, value in events
    )
    if parts:
        return Finding("asks" if choices else "refuses", choices=choices)
    return Finding("states", {"repeats": repeats}) if repeats else None


def latency_gaps(start_s: FloatArray, latency_s: FloatArray) -> Finding | None:
    """Return a finding that requests start when others end, as in a closed-loop benchmark.

    The arrays have shape ``[requests]``. None if requests start independently.
    """
    if start_s.size < FEW_TIMES or not (latency_s > 0).all():
        return None
    span_s = float(np.ptp(start_s))
    soon_s = SOON * float(np.median(latency_s))
    if span_s <= 0:
        return None
    # Probability that a Poisson arrival falls within ``soon_s`` after an end.
    probability_by_chance = -np.expm1(-start_s.size / span_s * soon_s)
    if probability_by_chance > BY_CHANCE:
        return None
    ends_s = np.sort(start_s + latency_s)
    # For each start, the index of the last end before it (1 ms of tolerance); -1: none.
    last_end = np.searchsorted(ends_s, start_s + 1e-3, side="right") - 1
    has_end_before = last_end >= 0  # the first requests of the users follow no end
    follows_soon = (start_s - ends_s[last_end])[has_end_before] <= soon_s
    if has_end_before.mean() < 0.5 or follows_soon.mean() < 0.9:
        return None
    return Finding("states", {"share": follows_soon.mean()})


def absent_bins(counts: FloatArray) -> Finding | None:
    """Return a finding that asks what absent bins mean: many are absent, and hardly any is zero.

    Absent bins are NaN. Tools that group rows by time write no row for an empty bin. None for a few
    absent bins: they are outages, and stay unknown.
    """
    is_absent = np.isnan(counts)
    gaps = np.count_nonzero(np.diff(is_absent.astype(np.int8)) == 1)  # begins of absent bins
    share = float(is_absent.mean()) if is_absent.size else 0.0
    zeros = np.count_nonzero(counts == 0)
    if gaps < FEW_GAPS or share < LEAST_ABSENT or zeros > FEW_ZEROS * is_absent.sum():
        return None
    return Finding(values={"share": share})


def counter(column: str, before: FloatArray, after: FloatArray) -> Finding | None:
    """Return a finding if the amounts of ``column`` hardly ever fall, as those of a counter.

    It is stated if the column has a name such as requests_total, and asked otherwise. ``after[i]``
    is the amount of the bin that follows the bin of ``before[i]``. None if the amounts fall too.
    """
    if not only_grows(before, after):
        return None
    is_named_counter = column.lower().endswith(COUNTER_NAMES)
    return Finding("states" if is_named_counter else "asks")


def sums_or_means(requests: FloatArray, tokens: FloatArray) -> bool:
    """Return whether tokens per bin do not grow with its requests, as means per request do."""
    known = (requests > 0) & (tokens > 0)
    if known.sum() < FEW_BINS:
        return False
    log_tokens = np.log(tokens[known])
    log_per_request = log_tokens - np.log(requests[known])
    # Sums vary with the requests, and tokens per request hardly do. For means it is the reverse.
    spread, spread_per_request = float(np.std(log_tokens)), float(np.std(log_per_request))
    return spread_per_request >= LEAST_SPREAD and spread <= spread_per_request / 2


def bin_ends(lengths_s: FloatArray, step_s: float) -> Finding | None:
    """Return a finding if the median length of bins differs from the step between them.

    None if they differ by less than half, or if the lengths are unknown.
    """
    length_s = float(np.nanmedian(lengths_s)) if lengths_s.size else 0.0
    if not step_s or not length_s > 0 or 0.5 < length_s / step_s < 1.5:
        return None
    return Finding(values={"length": length_s, "step": step_s})


def fractional_counts(counts: FloatArray) -> bool:
    """Return whether at least a tenth of the counts are no whole numbers, as rates are."""
    known = counts[np.isfinite(counts) & (counts != 0)]
    has_fraction = np.abs(known - np.rint(known)) > 1e-6
    return bool(known.size >= FEW_FRACTIONS and has_fraction.mean() >= 0.1)


def row_weights(weights: FloatArray) -> bool:
    """Return whether a column of weights has others than 1, so that a row is several requests."""
    known = weights[np.isfinite(weights)]
    return bool(known.size and known.min() >= 0 and (known != 1).any())


def token_totals(answers: FloatArray, beyond_prompt: FloatArray) -> bool:
    """Return whether prompts equal totals (``beyond_prompt`` is 0) although there are answers."""
    answered = answers > 0
    return bool(answered.sum() >= FEW_BINS and (beyond_prompt[answered] == 0).all())


CHECKS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "checks.toml").read_text(encoding="utf-8")
)
