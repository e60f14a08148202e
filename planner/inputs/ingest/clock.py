"""Convert times from text or numbers, in one or several columns, to nanoseconds.

One :class:`TimeFormat` is fixed per file from its first rows. Later rows are read in the same way,
wherever the file is cut into batches. Rows that do not fit are refused by reason. Numbers in two
units (seconds and milliseconds) refuse the whole file, because no row shows which of them is wrong.

Local times of a zone are converted to UTC. The hour that comes twice in autumn is resolved by the
order of the rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC as UTC_ZONE
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.names import DECLARED, compact_name
from planner.inputs.ingest.report import RELATIVE, UTC, moment_text
from simulation.arrays import BoolArray, FloatArray, IntArray

NAIVE = "Times have no offset and are read as UTC."
MISSING = "time missing"
UNREADABLE = "time not understood"
NO_OFFSET = "time without an offset in a file with offsets"
WITH_OFFSET = "time with an offset in a file without offsets"
NEGATIVE = "time negative"
OUT_OF_RANGE = "time outside 1970 to 2261"

UNITS_NS: Mapping[str, int] = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_UNIT_WORDS: Mapping[str, str] = {
    unit: words.split()[0] for unit, words in DECLARED["units"].items()
}
_WORDS: Mapping[str, str] = {
    word: unit for unit, words in DECLARED["units"].items() for word in (unit, *words.split())
}
_EPOCH_S = 946_684_800  # the year 2000: later numbers are epoch times, smaller ones are offsets
_LAST_S = 9_214_646_400  # the year 2262, the end of 64-bit nanoseconds
# Smallest epoch time since 2000 in each unit. Smaller numbers count from the trace's start.
_EPOCHS = (("ns", 9e17), ("us", 9e14), ("ms", 9e11), ("s", float(_EPOCH_S)))
_HOURS = (" %H:%M:%S%.f", " %H:%M", " %I:%M:%S%.f %p", " %I:%M %p", "")
_ISO = tuple(
    day + rest
    for day in ("%Y-%m-%d", "%Y/%m/%d")
    for rest in (" %H:%M:%S%.f", "T%H:%M:%S%.f", " %H:%M", "T%H:%M", "")
)
# A file has one of these forms. A star stands for every notation of the time of day.
_OTHER = tuple(
    day + rest
    for day, star, _ in (form.partition(" *") for form in DECLARED["times"]["forms"])
    for rest in (_HOURS if star else ("",))
)
_SLASHED = (*_HOURS, ", %H:%M:%S%.f", ", %I:%M:%S%.f %p")
DAY_FIRST, MONTH_FIRST = "day_first", "month_first"
# %Y takes two digits too, as a year of the first century, so %y comes first.
_SLASHES = {DAY_FIRST: ("%d/%m/%y", "%d/%m/%Y"), MONTH_FIRST: ("%m/%d/%y", "%m/%d/%Y")}
_DOTTED = r"^(\d{1,2})\.(\d{1,2})\.(\d{4})"  # 31.12.2026: dotted dates begin with the day
_SLASH = r"^\s*(\d{1,2})/(\d{1,2})/(?:\d{4}|\d\d)\b"
_ZONES = {  # hours east of UTC
    name: int(hours) for hours, names in DECLARED["zones"].items() for name in names.split()
}
_ZONE_NAMES = {word: tuple(zones.split()) for word, zones in DECLARED["zone_names"].items()}
_OFFSET = (
    r"^(.*(?:\d[:.]\d\d|[T ]\d{4}).*?)\s*((?i:" + "|".join(_ZONES) + r")|[+-]\d\d(?::?\d\d)?)"
    r"(?:\s*\([A-Za-z ]+\))?$"
)
_RANGE_OF_DAY = r"^(\d[^-–toba]*?(?: ?[AaPp]\.?[Mm]\.?)?) ?(?:-|–|to|bis|a|à) ?\d.*$"
_UNSPACED_RANGE = r"^(.*\d[ T](\d\d?):(\d\d))[-–](\d\d?):(\d\d)$"
_NOTHING = pl.Series([None], dtype=pl.Int64)
BLANK = ("", "nan", "null", "none", "na", "n/a", "nat")


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """The notation of a file's times: their columns, unit or format, and time zone."""

    columns: tuple[str, ...]
    units: tuple[str, ...] = ()  # of each column, for numbers; empty for calendar text
    aware: bool = False  # calendar times carry an offset from UTC
    kind: str = UTC  # or RELATIVE: times count from the start of the trace
    note: str = ""  # assumption, as a sentence; empty without one
    form: str = ""  # of calendar text that is not ISO 8601
    zone: str = ""  # of local times, as in the IANA database
    certain: bool = True  # whether the file or the caller states unit and zone
    first_hour: int = 0  # number of a day's first hour (0 or 1) next to a column of dates
    ranges: bool = False  # cells are ranges such as 08:00-09:00, of which the beginning counts

    @property
    def may_be_local(self) -> bool:
        """Return whether calendar times are read as UTC although nothing states their zone."""
        return self.kind == UTC and not self.certain


@dataclass(slots=True)
class Order:
    """The state of reading local times in file order, carried from batch to batch.

    In autumn a clock shows one hour twice. The order of the rows tells its two passes apart.
    """

    latest_ns: int = 0  # the latest local time so far
    in_second_pass: bool = False  # of the last row


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of some rows.

    ``ns`` has shape ``[rows]`` and is 0 for refused rows. ``refused`` maps a reason to its rows.
    """

    ns: IntArray
    refused: Mapping[str, BoolArray]
    offsets: frozenset[str] = frozenset()
    other_unit: tuple[int, str] | None = None  # first row in another unit, and why

    @property
    def good(self) -> BoolArray:
        """Return a mask of the rows whose time is known, ``[rows]``."""
        good = np.ones(self.ns.size, np.bool_)
        for rows in self.refused.values():
            good &= ~rows
        return good


def unit_of(column: str) -> str | None:
    """Return the last unit in a column's name, such as s for ``t_s``; None if it has none."""
    words = reversed(re.split(r"[^a-z]+", column.lower()))
    return next((_WORDS[word] for word in words if word in _WORDS), None)


def check_zone(zone: str | None) -> None:
    """Raise IngestError for a name that is no time zone; None and "" state no zone."""
    if zone and zone not in available_timezones():
        raise IngestError(
            f"timezone: there is no zone {zone[:60]!r}. Give a name such as Europe/Berlin or UTC."
        )


def choose_time_format(
    probe: pl.DataFrame,
    columns: Sequence[str],
    *,
    name: str,
    unit: str | None = None,
    default: str = "",
    zone: str = "",
    dates: str = "",
) -> TimeFormat:
    """Return the notation of the times in ``columns`` of a file, from its first rows.

    The notation that most cells share decides: numbers, or dates with or without a UTC offset. The
    caller may state the ``unit`` of numbers and the ``zone``. ``default`` is the unit of the file's
    format. ``dates`` is DAY_FIRST, MONTH_FIRST, or "" to find out.

    Raises IngestError if no row of the probe has a readable time, and AmbiguousDates if its dates
    can begin with the day or with the month.
    """
    names, column = tuple(columns), " ".join(columns)
    # Numbers in several columns add up to the time.
    if len(columns) > 1 and all(time_numbers(probe[part]).size for part in columns):
        units = tuple(unit_of(part) or "s" for part in columns)
        note = _relative_note(" plus ".join(columns))
        return TimeFormat(names, units, kind=RELATIVE, note=note)
    # One column has the time, or a date and a time of day are in two.
    first_hour = 0
    if len(columns) > 1:  # a date stands next to a column of hours, perhaps from 1 to 24
        hours = time_numbers(probe[columns[1]])
        first_hour = int(hours.size and hours.min() == 1 and hours.max() == 24)
    series = _date_and_time(probe, columns, first_hour)
    if series.dtype.is_temporal():
        aware = isinstance(series.dtype, pl.Datetime) and series.dtype.time_zone is not None
        return _with_zone(TimeFormat(names, aware=aware), zone)
    text = _text(series)
    ranges = _has_ranges(text)
    if ranges:
        text = text.str.replace(_UNSPACED_RANGE, "$1")
    text = _without_brackets(text)
    form = _date_format(text, dates, name, column)
    # Count the rows that can be read in each notation, and take the notation with most.
    rows_without_offset = _calendar(text, form).count()
    rows_with_offset = _calendar(text.str.extract(_OFFSET, 1), form).count()
    numbers = time_numbers(series)
    if numbers.size > max(rows_without_offset, rows_with_offset):
        return _numeric_time_format(column, numbers, unit, default)
    if not rows_without_offset and not rows_with_offset:
        filled = text.filter(~text.str.to_lowercase().is_in(BLANK)).drop_nulls()
        example = str(filled[0])[:40] if filled.len() else ""
        raise IngestError(
            f"{name}: column {column} holds no time that can be read in its first {len(text):,} "
            f"rows ({example!r}). Write times as 2024-05-10 13:45:00+00:00 or as numbers."
        )
    aware = rows_with_offset > rows_without_offset
    time_format = TimeFormat(names, aware=aware, form=form, first_hour=first_hour, ranges=ranges)
    return _with_zone(time_format, zone)


def _has_ranges(texts: pl.Series) -> bool:
    """Return whether times are ranges such as 08:00-09:00.

    A time with the offset -09:00 looks the same. But ranges have one length, and different begins.
    """

    def numbers_of_group(group: int) -> pl.Series:
        """Return a group of the pattern as numbers; null where the pattern does not match."""
        return texts.str.extract(_UNSPACED_RANGE, group).cast(pl.Int32)

    begin_min = numbers_of_group(2) * 60 + numbers_of_group(3)
    end_min = numbers_of_group(4) * 60 + numbers_of_group(5)
    lengths_min = ((end_min - begin_min) % 1440).drop_nulls()
    return lengths_min.n_unique() == 1 and begin_min.drop_nulls().n_unique() > 1


def _with_zone(time_format: TimeFormat, zone: str) -> TimeFormat:
    """Return the notation of calendar times with their ``zone``, and a note on it.

    Without a zone ("") the times are read as UTC. Times with offsets have no zone.
    """
    if time_format.aware:
        return time_format
    note = f"Times have no offset and are read as local time of {zone}." if zone else NAIVE
    return replace(time_format, note=note, zone=zone, certain=bool(zone))


def possible_zones(probe: pl.DataFrame, time_format: TimeFormat) -> tuple[str, ...]:
    """Return the time zones that the local times of ``probe`` may be in; () if unknown.

    They are taken from the name of the time column, from a mark such as CST in its first cell, or
    from a column of time zones. Times with a known zone have none to guess: ().
    """
    if not time_format.may_be_local:
        return ()
    title = " ".join(time_format.columns)
    zones = _zones_in_name(title)
    if zones:
        return zones
    first_cell = _text(probe[time_format.columns[0]].head(1))
    marks = first_cell.str.extract(r"(?i)\b(CST|IST|BST)(?: \d{4})?$").drop_nulls()
    for word in (*marks, *re.split(r"[^A-Za-z]+", title)):
        if word.lower() in _ZONE_NAMES:
            return _ZONE_NAMES[word.lower()]
    for column in probe.columns:
        if compact_name(column) in ("timezone", "tz"):
            values = _text(probe[column]).drop_nulls().unique().head(6)
            return tuple(zone for zone in values if zone in available_timezones() - {"UTC"})
    return ()


def _zones_in_name(title: str) -> tuple[str, ...]:
    """Return the zones in a column's name, such as Europe/Berlin or UTC+2; () without any."""
    names = re.findall(r"[A-Z]\w+/[A-Z]\w+", title)
    zones = tuple(name for name in names if name in available_timezones())
    shift = re.search(r"(?:UTC|GMT) ?([+-])0?(\d{1,2})\b", title)
    if zones or not shift:
        return zones
    west = "-" if shift[1] == "+" else "+"  # the names of these zones count hours west
    return (f"Etc/GMT{west}{shift[2]}",)


class AmbiguousDates(IngestError):
    """All dates of the first rows can begin with the day or with the month."""


def _date_format(text: pl.Series, dates: str, name: str, column: str) -> str:
    """Return the strptime format of calendar text; "" for ISO 8601 or if none fits.

    In dates with slashes, such as 5/6/2024, a number above 12 shows which part is the day. Raise
    AmbiguousDates if no row shows it, and ``dates`` does not state it.
    """
    known = text.filter(text != "")
    if known.is_empty() or _calendar(known, "").is_not_null().any():
        return ""
    without_offset = known.str.extract(_OFFSET, 1).fill_null(known)
    if _calendar(without_offset, "").is_not_null().any():
        return ""
    if not known.str.contains(_SLASH).any():
        return _best_form(without_offset, _OTHER)
    dates = dates or _order_of_dates(without_offset)
    if not dates:
        raise AmbiguousDates(
            f"{name}: dates in {column} ({str(without_offset[0])[:40]!r}) may begin with the day "
            "or the month."
        )
    forms = [day + rest for day in _SLASHES[dates] for rest in _SLASHED]
    return _best_form(without_offset, forms) or forms[0]


def _order_of_dates(text: pl.Series) -> str:
    """Return DAY_FIRST or MONTH_FIRST for dates with slashes; "" if no row shows it."""
    first = text.str.extract(_SLASH, 1).cast(pl.Int64)
    second = text.str.extract(_SLASH, 2).cast(pl.Int64)
    if (first > 12).any():
        return DAY_FIRST
    # If both numbers are equal in all rows, both orders mean the same.
    return MONTH_FIRST if (second > 12).any() or (first == second).all() else ""


def _best_form(text: pl.Series, forms: Sequence[str]) -> str:
    """Return the first strptime format that reads the most rows; "" if none reads any."""
    rows_read = [_parse(text, form).count() for form in forms]
    return forms[int(np.argmax(rows_read))] if any(rows_read) else ""


_EXCEL_DAYS = (36_526.0, 73_050.0)  # spreadsheets count days from 1899-12-30: 2000 to 2100
_EXCEL_EPOCH_NS = -25_569 * UNITS_NS["d"]
EXCEL = "excel"  # a form of numeric times


def _numeric_time_format(
    column: str, numbers: FloatArray, stated_unit: str | None, default: str
) -> TimeFormat:
    """Return the notation of times in a numeric column.

    ``stated_unit`` is the caller's, or None. ``default`` is the format's, or "". If the column's
    name has no unit either, the median shows the unit of epoch times (since 1970). Smaller numbers
    count from the start of the trace, and are taken as seconds. Numbers with fractions in the range
    of spreadsheet days from 2000 to 2100 are such days.
    """
    unit = known_unit = stated_unit or default or unit_of(column)
    median = float(np.median(numbers))
    if unit is None:
        first_day, end_day = _EXCEL_DAYS
        are_days = first_day <= numbers.min() <= numbers.max() < end_day
        if are_days and (numbers % 1).any():
            note = f"{column} holds spreadsheet days, read as UTC."
            return TimeFormat((column,), ("d",), note=note, form=EXCEL, certain=False)
        unit = next((name for name, least in _EPOCHS if median >= least), "s")
    if median * UNITS_NS[unit] / 1e9 >= _EPOCH_S:
        note = "" if known_unit else f"{column} holds epoch times, read as {unit}."
        return TimeFormat((column,), (unit,), note=note)
    note = _relative_note(column if known_unit else f"{column}, read as s,")
    is_in_name = not default and known_unit is not None
    certain = stated_unit is not None or is_in_name
    return TimeFormat((column,), (unit,), kind=RELATIVE, note=note, certain=certain)


def _relative_note(columns: str) -> str:
    """Return the note that times in ``columns`` count from the start of the trace."""
    return f"Times have no calendar: {columns} counts from the start of the trace."


def read_times(frame: pl.DataFrame, time_format: TimeFormat, order: Order | None = None) -> Times:
    """Return the times of the rows of ``frame``, in ns since 1970 or since the trace's start.

    ``order`` is the state after the batch before, and is updated for the next batch. None: there is
    only this batch.
    """
    if time_format.units:
        return _read_numbers(frame, time_format)
    if time_format.ranges:
        (column,) = time_format.columns
        frame = frame.with_columns(pl.col(column).str.replace(_UNSPACED_RANGE, "$1"))
    series = _date_and_time(frame, time_format.columns, time_format.first_hour)
    if series.dtype.is_temporal():
        times = _read_temporal(series)
    elif time_format.aware:
        times = _read_text_with_offset(series, time_format.form)
    else:
        times = _read_text(series, time_format.form)
    if not time_format.zone:
        return times
    # The first rows in an hour that the clock repeats are in its first pass, until times jump back.
    local = pl.Series(times.ns).cast(pl.Datetime("ns"))
    in_first_pass = _in_zone(local, time_format.zone, "earliest")
    in_second_pass = _in_zone(local, time_format.zone, "latest")
    is_second = _is_second_pass(times.ns, order or Order())
    return replace(times, ns=np.where(is_second, in_second_pass, in_first_pass))


def _read_temporal(series: pl.Series) -> Times:
    """Return the times of a column of dates or timestamps."""
    unit = series.dtype.time_unit if isinstance(series.dtype, pl.Datetime) else None
    unit_ns = UNITS_NS[unit or ("d" if series.dtype == pl.Date else "us")]
    count = series.to_physical().cast(pl.Int64)  # of the column's own unit
    # The unit may reach beyond 64-bit nanoseconds, so the range is checked before scaling.
    is_outside = ~count.is_between(0, _LAST_S * UNITS_NS["s"] // unit_ns).fill_null(True)
    ns = (count.set(is_outside, 0) * unit_ns).fill_null(0)
    refused = {MISSING: series.is_null().to_numpy(), OUT_OF_RANGE: is_outside.to_numpy()}
    return Times(ns.to_numpy(), refused)


def _date_and_time(frame: pl.DataFrame, columns: Sequence[str], first_hour: int) -> pl.Series:
    """Return the times of one column, or the text "date time" of a column of each.

    The time of day may be a number, such as an hour of a day whose first hour is ``first_hour``. Of
    a range of time, the begin is taken.
    """
    if len(columns) == 1:
        return frame[columns[0]]
    date, time = _strip(frame[columns[0]]), _strip(frame[columns[1]])
    time = time.str.replace(_RANGE_OF_DAY, "$1")
    time = time.str.replace(r"^(\d{1,2}) ?([AaPp])\.?[Mm]\.?$", "$1:00 ${2}M")
    time = time.str.replace(r"^(\d{1,2}) ?h$", "$1")
    number = time.cast(pl.Float64, strict=False)
    if number.is_not_null().any():
        unit = "h" if "hour" in columns[1].lower() else unit_of(columns[1]) or "h"
        ns_of_day = ((number - first_hour) * UNITS_NS[unit]).cast(pl.Int64)
        time = ns_of_day.cast(pl.Time, strict=False).cast(pl.String)
    return date.str.replace(r"[ T]00:00.*$", "") + " " + time


def _in_zone(local: pl.Series, zone: str, ambiguous: str) -> IntArray:
    """Return local times of a zone in UTC ns.

    ``ambiguous`` ("earliest" or "latest") is the pass of times in an hour that the clock repeats.
    A time that the clock skips in spring is read as if the clock had not been set.
    """
    hour = UNITS_NS["h"]
    in_zone = local.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]
    if in_zone.null_count():  # times that the clock skips
        hour_before = (local.cast(pl.Int64) - hour).cast(pl.Datetime("ns"))
        skipped = hour_before.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]
        return in_zone.cast(pl.Int64).fill_null(skipped.cast(pl.Int64) + hour).to_numpy()
    return in_zone.cast(pl.Int64).to_numpy()


def _is_second_pass(ns: IntArray, order: Order) -> BoolArray:
    """Return a mask of the rows in the second pass of an hour that the clock repeats, ``[rows]``.

    ``ns`` are local times in file order. The second pass begins with a jump back in time. It ends
    with a row later than all rows before. ``order`` is updated for the next batch.
    """
    if not ns.size:
        return np.zeros(0, dtype=np.bool_)
    latest_ns = np.maximum.accumulate(np.concatenate(([order.latest_ns], ns)))
    behind_ns = latest_ns[:-1] - ns  # below 0 for a row later than all before
    # A jump of less than a few minutes is a row out of order. One of many hours is another series.
    jumped_back = (behind_ns > 5 * UNITS_NS["min"]) & (behind_ns <= 2 * UNITS_NS["h"])
    # For each row, the index of the last jump and of the last row ahead of all others; -1: none.
    row = np.arange(ns.size)
    without_jump = 0 if order.in_second_pass else -1  # a batch can begin within the second pass
    last_jump = np.maximum.accumulate(np.where(jumped_back, row, without_jump))
    last_ahead = np.maximum.accumulate(np.where(behind_ns < 0, row, -1))
    in_second_pass = last_jump > last_ahead
    order.latest_ns, order.in_second_pass = int(latest_ns[-1]), bool(in_second_pass[-1])
    return in_second_pass


# Zones to offer at a change of clocks, one for each time of the change.
CHANGING = tuple(DECLARED["times"]["changing"].split())


def changing_zones(local_ns: int, *, skipped: bool) -> tuple[str, ...]:
    """Return the zones of CHANGING whose clock skips a local time, or else shows it twice."""
    if skipped:
        return tuple(zone for zone in CHANGING if _set_back_s(local_ns, zone) < 0)
    return tuple(zone for zone in CHANGING if _set_back_s(local_ns, zone) > 0)


def is_first_pass(ns: int, zone: str) -> bool:
    """Return whether a time (UTC) is in the first pass of an hour that the zone's clock repeats."""
    when = datetime.fromtimestamp(ns / 1e9, tz=ZoneInfo(zone))
    return not when.fold and when.utcoffset() != when.replace(fold=1).utcoffset()


@cache
def _set_back_s(local_ns: int, zone: str) -> float:
    """Return by how many seconds a zone sets its clock back at a local time; 0 if it does not.

    The result is negative if the clock is set ahead.
    """
    when = datetime.fromtimestamp(local_ns / 1e9, tz=UTC_ZONE).replace(tzinfo=None)
    before = ZoneInfo(zone).utcoffset(when.replace(fold=0))
    after = ZoneInfo(zone).utcoffset(when.replace(fold=1))
    return (before - after).total_seconds() if before is not None and after is not None else 0.0


def _read_numbers(frame: pl.DataFrame, time_format: TimeFormat) -> Times:
    """Return the times of numeric columns; several columns are added up.

    A refused row has the time 0. It is missing, unreadable, negative or out of range.
    """
    is_missing = np.zeros(frame.height, dtype=np.bool_)
    is_unreadable = is_missing.copy()
    total_ns = np.zeros(frame.height, dtype=np.int64)
    total_s = np.zeros(frame.height)
    other_unit = None
    for column, unit in zip(time_format.columns, time_format.units, strict=True):
        cells, unit_ns = frame[column], UNITS_NS[unit]
        number = _numbers(cells)
        has_no_number = ~np.isfinite(number)
        if has_no_number.any():
            is_missing |= _is_blank(cells)
            is_unreadable |= has_no_number
            number[has_no_number] = 0.0
        other_unit = _first_row_in_other_unit(number, cells, time_format)
        total_s += number * (unit_ns / 1e9)
        # Such numbers would overflow 64-bit nanoseconds. ``total_s`` has them refused below.
        number[np.abs(number) > _LAST_S * (1e9 / unit_ns)] = 0.0
        total_ns += _scale_to_integers(cells, number, unit_ns)
    if time_format.form == EXCEL:
        # A float of days has no finer time than a millisecond.
        total_ns = np.rint((total_ns + _EXCEL_EPOCH_NS) / 1e6).astype(np.int64) * 1_000_000
        total_s = total_ns / 1e9
    refused = {MISSING: is_missing, UNREADABLE: is_unreadable & ~is_missing}
    is_negative, is_late = total_s < 0, total_s > _LAST_S
    if time_format.kind == RELATIVE:
        refused |= {NEGATIVE: is_negative, OUT_OF_RANGE: is_late}
    else:
        refused |= {OUT_OF_RANGE: is_late | is_negative}
    is_refused = np.logical_or.reduce([*refused.values()])
    return Times(np.where(is_refused, 0, total_ns), refused, other_unit=other_unit)


def _first_row_in_other_unit(
    number: FloatArray, column: pl.Series, time_format: TimeFormat
) -> tuple[int, str] | None:
    """Return the first row that is an epoch time in another unit than the column's, and a sentence.

    ``number`` has the cells of ``column`` as numbers. Epoch times since 2000 in s, ms, us and ns
    have separate ranges, so a number shows its unit. A column of offsets from the start may have
    any number below 30 years, so those are not reported. None if there is no such row, if several
    columns add up to the time, or for spreadsheet days.
    """
    if len(time_format.columns) > 1 or not number.size or time_format.form == EXCEL:
        return None
    (unit,), is_epoch = time_format.units, time_format.kind == UTC
    first_in_unit, end_in_unit = _epoch_range(unit)
    all_in_unit = is_epoch and first_in_unit <= number.min() and number.max() < end_in_unit
    if number.max() < first_in_unit or all_in_unit:
        return None
    unit_of_row = {}  # by the first row in each other unit
    for other, _ in _EPOCHS:
        first_in_other, end_in_other = _epoch_range(other)
        # An offset from the start may be small, so only numbers from 30 years on show a unit.
        least = first_in_other if is_epoch else max(first_in_other, first_in_unit)
        rows = np.flatnonzero((number >= least) & (number < end_in_other))
        if rows.size and not (is_epoch and other == unit):
            unit_of_row[int(rows[0])] = other
    if not unit_of_row:
        return None
    row = min(unit_of_row)
    other = unit_of_row[row]
    moment = moment_text(round(number[row] * UNITS_NS[other]), UTC)
    return row, (
        f"column {time_format.columns[0]} mixes units of time. The first rows are in "
        f"{_UNIT_WORDS[unit]}, but {str(column[row]).strip()} is {moment} in {_UNIT_WORDS[other]} "
        "since 1970. Convert the column to one unit."
    )


def _epoch_range(unit: str) -> tuple[float, float]:
    """Return the range of epoch times from 2000 to 2261 in a unit, as [first, end)."""
    unit_s = UNITS_NS[unit] / 1e9
    return _EPOCH_S / unit_s, _LAST_S / unit_s


def _scale_to_integers(series: pl.Series, number: FloatArray, factor: int) -> IntArray:
    """Return ``number * factor`` as integers.

    ``number`` has the cells of ``series`` as floats. Whole numbers are taken from ``series``, since
    a float has too few digits for nanoseconds since 1970.
    """
    rounded = np.asarray(np.rint(number * factor), dtype=np.int64)
    if not (series.dtype.is_integer() or series.dtype == pl.String):
        return rounded
    exact = series.cast(pl.Int64, strict=False)
    is_whole = exact.is_not_null().to_numpy() & (number != 0.0)
    whole = np.where(is_whole, exact.fill_null(0).to_numpy(), 0)
    return np.where(is_whole, whole * factor, rounded)


def _read_text(series: pl.Series, form: str) -> Times:
    """Return the times of calendar text without offsets; ``form`` as for ``_calendar``."""
    ns = _calendar(series, form)
    if not ns.null_count():
        return Times(ns.to_numpy(), {})
    text = _without_brackets(series)
    refused = _unread_by_reason(text, ns, text.str.contains(_OFFSET), WITH_OFFSET)
    return Times(ns.fill_null(0).to_numpy(), refused)


def _read_text_with_offset(series: pl.Series, form: str) -> Times:
    """Return the times of calendar text with offsets; ``form`` as for ``_calendar``.

    Rows without a valid time and offset are refused, and have the time 0.
    """
    # Fast path: offsets such as +00:00 at the end of every row. Otherwise parse each row.
    text, local_text, offset = series, series.str.head(-6), series.str.tail(6)
    is_iso = not form and not _calendar(local_text.head(1), "").null_count()
    if not is_iso or not offset.unique().str.contains(r"^[+-]\d\d:\d\d$").fill_null(False).all():
        text = _without_brackets(series)
        local_text, offset = text.str.extract(_OFFSET, 1), text.str.extract(_OFFSET, 2)
    distinct_offsets = offset.unique().to_list()
    ns_by_offset = {}  # of the valid ones
    for mark in distinct_offsets:
        offset_ns = _offset_ns(mark) if mark else None
        if offset_ns is not None:
            ns_by_offset[mark] = offset_ns
    # Subtract the offset of each row; without a valid one, the result is null.
    ns = _calendar(local_text, form)
    if len(ns_by_offset) == len(distinct_offsets) == 1:
        ns = ns - ns_by_offset[distinct_offsets[0]]
    else:
        marks, values = list(ns_by_offset), list(ns_by_offset.values())
        ns = ns - offset.replace_strict(marks, values, default=None, return_dtype=pl.Int64)
    offsets = frozenset("+00:00" if value == 0 else mark for mark, value in ns_by_offset.items())
    if not ns.null_count():
        return Times(ns.to_numpy(), {}, offsets)
    has_no_offset = _calendar(text, form).is_not_null()
    refused = _unread_by_reason(text, ns, has_no_offset, NO_OFFSET)
    return Times(ns.fill_null(0).to_numpy(), refused, offsets)


def _unread_by_reason(
    text: pl.Series, ns: pl.Series, is_unfit_offset: pl.Series, unfit_reason: str
) -> dict[str, BoolArray]:
    """Return masks of the rows whose ``text`` could not be read (null in ``ns``), by reason.

    ``is_unfit_offset`` marks rows with an offset in a file of times without, or the reverse, and
    ``unfit_reason`` says which. The masks overlap: of several reasons of a row, the first counts.
    """
    year = text.str.extract(r"^(\d{4})-\d\d-\d\d")
    rows_by_reason = {
        MISSING: pl.Series(_is_blank(text)),
        unfit_reason: is_unfit_offset,
        OUT_OF_RANGE: ~year.is_between("1970", "2261"),
        UNREADABLE: pl.repeat(True, len(text), eager=True),
    }
    is_unread = ns.is_null()
    return {
        reason: (rows & is_unread).fill_null(False).to_numpy()
        for reason, rows in rows_by_reason.items()
    }


def _calendar(text: pl.Series, form: str) -> pl.Series:
    """Return nanoseconds of calendar times without offset; null if no format fits.

    ``form`` is the file's own strptime format, tried before ISO 8601; "" if it has none.
    """
    forms = (form, *_ISO) if form else _ISO
    ns = _parse(text, forms[0])
    unread = np.flatnonzero((ns.is_null() & text.is_not_null()).to_numpy())
    if unread.size:  # try the other formats on these rows
        rewritten = _without_brackets(text.gather(unread)).str.replace(_DOTTED, "$3-$2-$1")
        parsed = _parse(rewritten, forms[0])
        for other_form in forms[1:]:
            parsed = parsed.fill_null(_parse(rewritten, other_form))
        ns, text = ns.scatter(unread, parsed), text.scatter(unread, rewritten)
    if form:
        is_inside = ns.is_between(0, _LAST_S * UNITS_NS["s"])
    else:  # outside these years 64-bit nanoseconds overflow silently
        is_inside = text.is_between("1970", "2262")
        if not is_inside.all(ignore_nulls=False):
            is_inside = text.str.strip_chars_start().is_between("1970", "2262")
    return ns.zip_with(is_inside.fill_null(False), _NOTHING)


def _without_brackets(series: pl.Series) -> pl.Series:
    """Return times as text without brackets around them, in notations that strptime can parse."""
    text = _text(series).str.strip_chars(" \t[]")
    for pattern, replacement in DECLARED["times"]["rewritten"]:
        text = text.str.replace(pattern, replacement)
    return text


def _parse(text: pl.Series, form: str) -> pl.Series:
    """Return nanoseconds of texts in a strptime format; null for other texts."""
    return text.str.to_datetime(form, time_unit="ns", strict=False).cast(pl.Int64)


def _offset_ns(mark: str) -> int | None:
    """Return an offset such as +02:00 or CET in ns, positive to the east; None if invalid."""
    if mark.upper() in _ZONES:
        return _ZONES[mark.upper()] * UNITS_NS["h"]
    sign = -1 if mark[0] == "-" else 1
    digits = mark[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        return None
    return sign * (hours * 60 + minutes) * UNITS_NS["min"]


def time_numbers(series: pl.Series) -> FloatArray:
    """Return the numbers among the cells of a column, in order."""
    numbers = _numbers(series)
    return numbers[np.isfinite(numbers)]


def _text(series: pl.Series) -> pl.Series:
    """Return a column as text; null for cells that have no text."""
    return series.cast(pl.String, strict=False)


def _strip(series: pl.Series) -> pl.Series:
    """Return a column as text without blanks at the ends."""
    return _text(series).str.strip_chars()


def _numbers(series: pl.Series) -> FloatArray:
    """Return a column as numbers, NaN for other cells. A comma may be the decimal point."""
    written = series if series.dtype.is_numeric() else _strip(series)
    number = written.cast(pl.Float64, strict=False)
    if number.null_count() and written.dtype == pl.String:  # perhaps a decimal comma
        text = written.str.replace(r"^(\d{4,}),(\d+)$", "$1.$2")
        number = text.cast(pl.Float64, strict=False)
    return number.fill_null(np.nan).to_numpy(writable=True)


def _is_blank(series: pl.Series) -> BoolArray:
    """Return a mask of rows without a value: null, empty, or a word for it such as NaN."""
    text = _strip(series)
    return (text.is_null() | text.str.to_lowercase().is_in(BLANK)).to_numpy()
