"""Find the column of each field, and the columns of a request file.

The caller's mapping counts first, then the format of the file, then well-known names.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl

from planner.errors import ColumnMissing, IngestError
from planner.inputs.ingest.checks import numbers
from planner.inputs.ingest.clock import UNITS_NS, time_numbers
from planner.inputs.ingest.grid import AMOUNTS
from planner.inputs.ingest.names import DECLARED, NAMED, SYNONYMS, WIDE, compact_name
from planner.inputs.ingest.options import LABELS, OPTIONAL_FIELDS, IngestOptions
from simulation.arrays import FloatArray

_MOST_LISTED = 20  # columns in a message
_NO_ANSWERS = ", or read it as format arrivals, without output lengths"
_COARSE = ("minute", "hourindex", "hour", "day", "week", "isoweek")  # without a finer time
_COLUMNS_OF_A_TIME = (
    ("day", "hour", "minute"),
    ("day", "hour"),
    ("utcdow", "utchour"),
    ("dow", "hour"),
)
_HOUR_NAMES = ("hour", "hourofday", "hourutc", "utchour", "hr", "seconds")  # beside a date
_PROBED = 100  # cells of a column that are tested for a pattern
_MOMENTS = frozenset(["date", "day", "time", "timestamp", "datetime", "at", "ts", "start", "local"])
_OF_DAY = r"^\s*\d{1,2}:\d\d(:\d\d)?([.,]\d+)?( ?[APap][Mm])?\s*$"
DATE = (
    r"^\s*(\d{4}[-/]?\d\d[-/]?\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{4})"
    r"([ T]00:00(:00)?(\.0+)?(Z|\+00:00)?)?\s*$"
)
_CLOCK = r"\d{1,2}(:\d\d)?( ?[APap]\.?[Mm]\.?)?"
_RANGE = rf"^\s*{_CLOCK} ?(-|–|to|bis|a|à) ?{_CLOCK}\s*$"
_HOUR = rf"^\s*(\d{{1,5}}|{_CLOCK}|\d\d?h)\s*$|{_RANGE}"
_MOST = 0.9  # share of cells that may decide, beside rows of totals
MOMENT = r"\d{4}.*\d{1,2}:\d\d"
_DURATION_S = 86_400  # a column of smaller numbers may be durations

# Words of a column's name that make it the field, for names that are in no list.
_NOT_WORDS = frozenset(DECLARED["words"]["not"].split())
_WORDS = {
    field: [set(words.split()) for words in lists]
    for field, lists in DECLARED["words"].items()
    if field != "not"
}


@dataclass(frozen=True, slots=True)
class Expression:
    """How to compute a field from columns of the file: in each row, the first sum with a value.

    Without alternatives, the field is 0 in every row.
    """

    alternatives: tuple[tuple[str, ...], ...]  # the columns of each sum
    factor: float = 1.0  # of a column in thousands or millions

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for parts in self.alternatives for column in parts))

    @property
    def single(self) -> str | None:
        """Return the column if the expression is a single column; else None."""
        return self.columns[0] if len(self.columns) == 1 else None

    def __str__(self) -> str:
        return "|".join("+".join(parts) for parts in self.alternatives)

    def values(self, frame: pl.DataFrame) -> FloatArray:
        """Return the field as numbers, ``[rows]``; NaN for a row without a number."""
        return numbers(self.series(frame))

    def series(self, frame: pl.DataFrame) -> pl.Series:
        """Return the values of each row: cells of the single column as they are, or sums (floats).

        Null means no value. An empty cell of a sum counts as 0 if another column has a value.
        """
        if not self.alternatives:
            return pl.Series([0]).new_from_index(0, frame.height)
        if self.single is not None:
            column = frame[self.single]
            if self.factor == 1:
                return column
            return pl.Series(numbers(column) * self.factor).round().fill_nan(None)
        values = {column: numbers(frame[column], whole=True) for column in self.columns}
        sums = []
        for columns in self.alternatives:
            has_value = pl.any_horizontal(pl.col(column).is_not_null() for column in columns)
            sums.append(pl.when(has_value).then(pl.sum_horizontal(columns)))
        first_sum = pl.coalesce(*sums)  # that is not null
        return pl.DataFrame(values).fill_nan(None).select(sum=first_sum).to_series()


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """The columns of a request file."""

    arrival: tuple[str, ...]
    arrival_unit: str | None
    fields: Mapping[str, str]  # labels and optional fields found
    tokens: Mapping[str, Expression]  # input_tokens, output_tokens, cached_tokens, ...
    notes: tuple[str, ...] = ()
    weight: str | None = None  # column of the requests that a row may stand for
    total: Expression | None = None  # all tokens of a request

    @property
    def columns(self) -> Mapping[str, str]:
        """Return the column of each field; several are joined as "a+b|c"."""
        tokens = {name: str(each) for name, each in self.tokens.items() if each.alternatives}
        return {"arrival": "+".join(self.arrival), **tokens, **self.fields}


NO_ANSWERS = Expression(())


def without_answers(probe: pl.DataFrame) -> bool:
    """Return whether requests have no output tokens (embeddings), by the first rows of a file.

    There is no column of output tokens, and the input tokens are the total tokens.
    """
    resolver = Resolver(probe.columns)
    prompt, total = resolver.expression("input_tokens"), resolver.expression("total_tokens")
    if prompt is None or total is None or resolver.expression("requests"):
        return False
    if not resolver.expression("arrival") or resolver.expression("output_tokens"):
        return False
    return bool(np.array_equal(prompt.values(probe), total.values(probe), equal_nan=True))


def counts_per_bin(columns: Sequence[str]) -> bool:
    """Return whether columns are those of a demand file (amounts per bin), not of requests."""
    resolver = Resolver(columns)
    needed = ("arrival", "input_tokens", "output_tokens")
    per_request = all(resolver.column(field) for field in needed)
    column_per_service = any(WIDE["requests"].match(column) for column in columns)
    has_counts = resolver.expression("requests") or resolver.expression("rate")
    if column_per_service or has_counts:
        return not (per_request and resolver.column("request_id"))
    token_columns = [resolver.column(f"{side}_tokens") or "" for side in ("input", "output")]
    if any(map(NAMED["suffix"].search, token_columns)):  # tokens per second are of no request
        return True
    return bool(resolver.expression("total_tokens")) and not per_request


def _column_list(columns: Sequence[str]) -> str:
    """Return the names of columns for a message, at most ``_MOST_LISTED``."""
    more = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
    return ", ".join(column[:40] for column in columns[:_MOST_LISTED]) + more


def words_of(column: str) -> set[str]:
    """Return the words in the last part of a column's name, split at case and punctuation."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", ".".join(column.split(".")[-2:]))
    return set(re.split(r"[^a-z]+", spaced.lower()))


def _forms_of_name(column: str) -> tuple[str, ...]:
    """Return a column's name and shorter forms of it, to look up among the well-known names."""
    return (
        column,
        column.rpartition(".")[2],  # nested: usage.prompt_tokens
        column.removesuffix(".value").rpartition(".")[2],
        *(NAMED[mark].sub("", column) for mark in ("suffix", "multiple", "namespace")),
        NAMED["sum"].sub("", column).rpartition(".")[2],
    )


class Resolver:
    """A search for the columns of fields (such as "input_tokens") in one file.

    It tries ``mapping`` (the caller's, field to column), then ``of_format`` (the columns of fields
    that the file's format declares), then well-known names. ``name`` is the file's, for errors.
    """

    def __init__(
        self,
        columns: Sequence[str],
        mapping: Mapping[str, str] | None = None,
        name: str = "",
        of_format: Mapping[str, str] | None = None,
    ) -> None:
        """Index the ``columns`` of the file by their full and their shorter names."""
        self.columns = columns
        self.mapping = mapping or {}
        self.name = name
        self.of_format = of_format or {}
        searched = columns
        if not of_format:  # a share must not be taken for an amount
            searched = [column for column in columns if not NAMED["share"].search(column)]
        self._by_compact: dict[str, str] = {}  # column by compact name
        # The full names of all columns come first, then each of their shorter forms.
        forms_by_column = zip(*map(_forms_of_name, searched), strict=True)
        for forms in forms_by_column:
            for column, form in zip(searched, forms, strict=True):
                self._by_compact.setdefault(compact_name(form), column)

    def column(self, field: str) -> str | None:
        """Return the only column of a field; None if it has none or several."""
        expression = self.expression(field)
        return expression.single if expression else None

    def expression(self, field: str) -> Expression | None:
        """Return how to compute a field from the file's columns; None if the file lacks it.

        The caller may state a sum and alternatives, such as a+b|c. A column in thousands or
        millions gets a factor. Raise IngestError if the caller names a column that is absent.
        """
        if stated := self.mapping.get(field):
            sums = []
            for part in [stated] if stated in self.columns else stated.split("|"):
                names = [part] if part.strip() in self.columns else part.split("+")
                sums.append(tuple(self.exact(field, column.strip()) for column in names))
            return Expression(tuple(sums))
        if declared := self._declared(field):
            return declared
        column = self._first_present(SYNONYMS.get(field, ())) or self._by_words(field)
        if column is None:
            return None
        if field == "requests" and NAMED["moment_s"].search(column):
            return None  # a time, such as request_time
        multiple = NAMED["multiple"].search(column)
        factor = 1.0
        if multiple and field in (*AMOUNTS, "rate"):
            factor = 1e6 if multiple[1][0] in "mM" else 1e3
        return Expression(((column,),), factor)

    def _declared(self, field: str) -> Expression | None:
        """Return the expression that the format declares for a field, such as ``a+b|c``.

        ``a+b`` is a sum: a file must have column a, and may lack b. ``|`` separates alternatives.
        None if the format declares none, or the file has no alternative.
        """
        if field not in self.of_format:
            return None
        alternatives = []
        for part in self.of_format[field].split("|"):
            columns = [self._by_compact.get(compact_name(name)) for name in part.split("+")]
            if columns[0] is not None:
                alternatives.append(tuple(column for column in columns if column is not None))
        return Expression(tuple(alternatives)) if alternatives else None

    def _by_words(self, field: str) -> str | None:
        """Return the only column with a word of both word lists of a field, or None."""
        if field not in _WORDS:
            return None
        first_list, second_list = _WORDS[field]
        matching = []
        for column in self.columns:
            words = words_of(column)
            if words & first_list and words & second_list and not words & _NOT_WORDS:
                matching.append(column)
        return matching[0] if len(matching) == 1 else None

    def exact(self, field: str, column: str) -> str:
        """Return ``column`` if the file has it; raise IngestError otherwise."""
        if column not in self.columns:
            raise IngestError(
                f"{self.name}: no column {column!r} for {field}. Choose one of "
                f"{_column_list(self.columns)}."
            )
        return column

    def time(self, field: str) -> tuple[tuple[str, ...], str | None]:
        """Return the columns that add up to a time, and the unit that the caller gave, or None.

        ``field`` is "time" (of bins) or "arrival" (of requests). The caller may state date+time or
        seconds:s. Raise ColumnMissing if there is no column.
        """
        if stated := self.mapping.get(field):
            unit = None
            columns, _, stated_unit = stated.rpartition(":")
            if stated not in self.columns and columns and stated_unit in UNITS_NS:
                stated, unit = columns, stated_unit
            if stated in self.columns:
                return (stated,), unit
            return tuple(self.exact(field, part.strip()) for part in stated.split("+")), unit
        if field == "time" and not self.of_format:
            for names in _COLUMNS_OF_A_TIME:
                if all(name in self._by_compact for name in names):
                    return tuple(self._by_compact[name] for name in names), None
        column = self._time_column(field)
        if column is None:
            raise self.missing(field)
        return (column,), None

    def _time_column(self, field: str) -> str | None:
        """Return the column of a time: of the format, or else by its name; None without one."""
        declared = self._declared(field)
        if declared and declared.columns[0]:
            return declared.columns[0]
        named = self._first_present(SYNONYMS[field]) or self._by_words(field)
        if named:
            return named
        for column in self.columns:
            if "timestamp" in compact_name(column):
                return column
        return self._first_present(_COARSE) if field == "time" else None

    def missing(self, field: str, otherwise: str = "") -> IngestError:
        """Return the error for a field without a column; ``otherwise`` is another remedy."""
        return ColumnMissing(
            f"{self.name} has no column known to hold {field}. Choose one of its columns for "
            f"{field} ({_column_list(self.columns)}){otherwise}.",
            field,
        )

    def _first_present(self, synonyms: Iterable[str]) -> str | None:
        """Return the file's column of the first well-known name that it has; None if none."""
        return next((self._by_compact[s] for s in synonyms if s in self._by_compact), None)


def request_layout(
    probe: pl.DataFrame,
    options: IngestOptions,
    name: str,
    of_format: Mapping[str, str],
    *,
    answers: bool = True,
) -> RequestLayout:
    """Find the columns of a request file; raise IngestError that names the missing field.

    ``of_format`` has the columns by field that the file's format declares. Without ``answers``,
    output lengths are not required.
    """
    resolver = Resolver(probe.columns, options.mapping, name, of_format)
    arrival, unit = resolver.time("arrival")
    if "arrival" not in options.mapping and not of_format:
        arrival = columns_of_moment(arrival, probe)
    tokens = _prompt_and_answer(resolver, probe, answers=answers)
    fields: dict[str, str] = {}
    for field in OPTIONAL_FIELDS:
        expression = resolver.expression(field)
        if expression is None or (field in LABELS and options.constant(field) is not None):
            continue
        if field in ("cached_tokens", "reasoning_tokens"):
            tokens[field] = expression
        # A column of the time is no other field, unless the caller says so.
        elif field in resolver.mapping or expression.columns[0] not in arrival:
            fields[field] = expression.columns[0]
    notes: tuple[str, ...] = ()
    if answers:
        sums, notes = sums_of_parts(resolver, tokens, probe)
        tokens |= sums
    weight, total = resolver.column("weight"), resolver.expression("total_tokens")
    return RequestLayout(arrival, unit, fields, tokens, notes, weight, total)


def _prompt_and_answer(
    resolver: Resolver, probe: pl.DataFrame, *, answers: bool
) -> dict[str, Expression]:
    """Return input_tokens and output_tokens; raise IngestError if the file lacks a needed one."""
    prompt, answer = resolver.expression("input_tokens"), resolver.expression("output_tokens")
    if not answers or (answer is None and without_answers(probe)):
        answer = NO_ANSWERS
    if prompt is None:
        raise resolver.missing("input_tokens")
    if answer is None:
        raise resolver.missing("output_tokens", _NO_ANSWERS)
    return {"input_tokens": prompt, "output_tokens": answer}


def columns_of_moment(columns: tuple[str, ...], probe: pl.DataFrame) -> tuple[str, ...]:
    """Return the columns of the time: ``columns``, corrected if they are one column without a time.

    A time of day is joined with a column of dates: (date, time of day). Dates are joined with a
    column of hours or ranges of a day, or of times if each date comes again. A duration, such as
    ``request_time``, is replaced by a column of timestamps.
    """
    if len(columns) > 1:
        return columns
    column, cells = columns[0], probe[columns[0]]
    # Other columns that may have a date or a time, by their names.
    moments = [c for c in probe.columns if c != column and words_of(c) & _MOMENTS]
    if all_match(cells, f"{_OF_DAY}|{_RANGE}"):
        for date in moments:
            if all_match(probe[date], DATE):
                return date, column
    elif all_match(cells, DATE):
        has_rows_per_time = bool(cells.is_duplicated().all())  # several rows for each date
        for other in probe:
            # Plain numbers are hours only in a column with such a name.
            of_day = _HOUR if compact_name(other.name) in _HOUR_NAMES else _RANGE
            is_time_of_day = has_rows_per_time and all_match(other, _OF_DAY, _MOST)
            if is_time_of_day or all_match(other, of_day, _MOST):
                return column, other.name
    elif _has_durations(cells):
        for timestamp in moments:
            if all_match(probe[timestamp], MOMENT):
                return (timestamp,)
    return columns


def _has_durations(series: pl.Series) -> bool:
    """Return whether a column has only numbers of at most a day that do not rise as times do."""
    numbers = time_numbers(series)
    all_numbers = numbers.size == series.len() > 0
    if not all_numbers or np.abs(numbers).max() >= _DURATION_S:
        return False
    if numbers.size == 1 or np.ptp(numbers) == 0:
        return True
    share_falling = (np.diff(numbers) < 0).mean()
    return bool(share_falling > 0.05)


def all_match(series: pl.Series, pattern: str, share: float = 1.0) -> bool:
    """Return whether at least a ``share`` of the first cells of a column match the pattern."""
    text = series.cast(pl.String, strict=False).drop_nulls().head(_PROBED)
    return bool(text.len() and text.str.contains(pattern).sum() >= share * text.len())


def sums_of_parts(
    resolver: Resolver, tokens: Mapping[str, Expression], probe: pl.DataFrame
) -> tuple[dict[str, Expression], tuple[str, ...]]:
    """Return sums for input and output tokens whose columns are incomplete, and a note on each.

    Some tools count cached or reasoning tokens in columns of their own ("parts"), and not in the
    column of all input or output tokens. That a column leaves out its parts is shown by, in order:

    - the name of the column of input tokens;
    - a column of total tokens, if the file has one;
    - a part that exceeds the column;
    - two parts of the input (cache reads and writes): tools that count both count them apart.
    """
    parts_by_field = _token_parts(resolver, tokens)
    prompt_column = str(tokens["input_tokens"])
    is_named_apart = "input_tokens" in parts_by_field and bool(NAMED["apart"].search(prompt_column))
    total = resolver.expression("total_tokens")
    incomplete = []
    if total is not None and not is_named_apart:
        # What the total has beyond the columns.
        columns = [tokens[field] for field in ("input_tokens", "output_tokens") if field in tokens]
        beyond = _row_sums([total], probe) - _row_sums(columns, probe)
        incomplete = _fields_that_add_up(beyond, parts_by_field, probe)
    else:
        for field, parts in parts_by_field.items():
            parts_exceed = (_row_sums(parts, probe) > _row_sums([tokens[field]], probe)).any()
            name_shows_it = is_named_apart and field == "input_tokens"
            if len(parts) > 1 or name_shows_it or parts_exceed:
                incomplete.append(field)
    sums, notes = {}, []
    for field in incomplete:
        columns_of_sum = (*tokens[field].columns, *map(str, parts_by_field[field]))
        sums[field] = Expression((columns_of_sum,))
        notes.append(f"{field} is the sum {sums[field]}: its parts are counted apart.")
    return sums, tuple(notes)


def _row_sums(expressions: Iterable[Expression], probe: pl.DataFrame) -> FloatArray:
    """Return the sum of the columns per row of the probe; an empty cell counts as 0."""
    values = [np.nan_to_num(expression.values(probe)) for expression in expressions]
    return np.asarray(np.sum(values, axis=0) if values else np.zeros(probe.height))


def _fields_that_add_up(
    amounts: FloatArray, parts_by_field: Mapping[str, Sequence[Expression]], probe: pl.DataFrame
) -> list[str]:
    """Return the fewest fields whose parts together come nearest to ``amounts``, ``[rows]``."""
    differences: dict[tuple[str, ...], float] = {}
    for count in range(len(parts_by_field) + 1):
        for fields in combinations(parts_by_field, count):
            parts = [part for field in fields for part in parts_by_field[field]]
            differences[fields] = float(np.abs(amounts - _row_sums(parts, probe)).sum())
    nearest = min(differences, key=differences.__getitem__)
    return list(nearest)


def _token_parts(
    resolver: Resolver, tokens: Mapping[str, Expression]
) -> dict[str, list[Expression]]:
    """Return, by field, the columns of tokens that the field's own column may leave out.

    These are tokens read from the cache or written to it (input_tokens), and reasoning tokens
    (output_tokens). A field that the user or the format states is complete, so it has no entry.
    """
    reads, writes = tokens.get("cached_tokens"), resolver.expression("cache_writes")
    reasoning = resolver.expression("reasoning_tokens")
    parts_by_field = {}
    # Tokens written to the cache are a separate count only if those read from it have a column too.
    for field, candidates, needed in (
        ("input_tokens", (writes, reads), reads),
        ("output_tokens", (reasoning,), reasoning),
    ):
        column = tokens.get(field)
        is_stated = field in resolver.mapping or field in resolver.of_format
        parts = [part for part in candidates if part and part.single]
        are_separate = needed in parts and column not in parts
        if column and column.single and not is_stated and are_separate:
            parts_by_field[field] = parts
    return parts_by_field
