"""Find the column of each field: by the caller's mapping, the format, or well-known names."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as default
from functools import partial
from itertools import combinations

import numpy as np
import polars as pl

from planner.errors import ColumnMissing, IngestError
from planner.inputs.ingest.checks import cell_unit, numbers
from planner.inputs.ingest.clock import UNITS_NS, time_numbers
from planner.inputs.ingest.connectors import Connector
from planner.inputs.ingest.grid import AMOUNTS
from planner.inputs.ingest.names import DECLARED, NAMED, RATE_NAMES, SYNONYMS, WIDE, compact_name
from planner.inputs.ingest.options import (
    AUTO,
    COUNTS,
    LABELS,
    PER_REQUEST,
    RATES,
    REQUEST_FIELDS,
    IngestOptions,
)
from simulation.arrays import FloatArray

_MOST_LISTED = 20  # columns in a message
_NO_ANSWERS = ", or read it as format arrivals, without output lengths"
_COARSE = ("minute", "hourindex", "hour", "day", "week", "isoweek")  # without a finer time
_PAIRS = (("day", "hour", "minute"), ("day", "hour"), ("utcdow", "utchour"), ("dow", "hour"))
_HOURS = ("hour", "hourofday", "hourutc", "utchour", "hr", "seconds")  # beside a date
_MEAN = frozenset(["avg", "mean", "average"])  # words of a column of means
_COUNTED = re.compile(r"(req(uest)?s?|calls?|tok(en)?s?)?", re.IGNORECASE)  # units of counts
_PROBED = 100  # cells of a column that are tested for a pattern
_MOMENTS = frozenset(["date", "day", "time", "timestamp", "datetime", "at", "ts", "start", "local"])
_OF_DAY = r"^\s*\d{1,2}:\d\d(:\d\d)?([.,]\d+)?( ?[APap][Mm])?\s*$"
_DATE = (
    r"^\s*(\d{4}[-/]?\d\d[-/]?\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{4})"
    r"([ T]00:00(:00)?(\.0+)?(Z|\+00:00)?)?\s*$"
)
_CLOCK = r"\d{1,2}(:\d\d)?( ?[APap]\.?[Mm]\.?)?"
_RANGE = rf"^\s*{_CLOCK} ?(-|–|to|bis|a|à) ?{_CLOCK}\s*$"
_HOUR = rf"^\s*(\d{{1,5}}|{_CLOCK}|\d\d?h)\s*$|{_RANGE}"
_MOST = 0.9  # share of cells that may decide, beside rows of totals
_MOMENT = r"\d{4}.*\d{1,2}:\d\d"
_DURATION_S = 86_400  # a column of smaller numbers may be durations
_VALUES = ("value", "Value", "VALUE")

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
        return numbers(self.series(frame))[0]

    def series(self, frame: pl.DataFrame) -> pl.Series:
        """Return the values of each row: cells of the single column as they are, or sums (floats).

        Null means no value. An empty cell of a sum counts as 0 if another column has a value.
        """
        if self.single is not None:
            column = frame[self.single]
            if self.factor == 1:
                return column
            return pl.Series(numbers(column)[0] * self.factor).round().fill_nan(None)
        if not self.alternatives:
            return pl.Series([0]).new_from_index(0, frame.height)
        values = {c: numbers(frame[c], whole=True)[0] for c in self.columns}
        sums = (
            pl.when(pl.any_horizontal(pl.col(part).is_not_null() for part in parts))
            .then(pl.sum_horizontal(parts))
            .otherwise(None)
            for parts in self.alternatives
        )
        return pl.DataFrame(values).fill_nan(None).select(sum=pl.coalesce(*sums)).to_series()


@dataclass(frozen=True, slots=True)
class Amounts:
    """The columns of one series in a demand file: its requests and tokens per bin, and its time."""

    name: str  # "" if rows or the file name the series
    amounts: Mapping[str, Expression]  # by field: requests, input_tokens, output_tokens
    # By field, what its numbers are per: a rate such as per_second, or PER_REQUEST. A field that is
    # absent here has amounts per bin.
    basis: Mapping[str, str] = default(default_factory=dict)
    model: str | None = None  # named by the column
    time: tuple[str, ...] = ()
    time_unit: str | None = None  # as the caller states it

    @property
    def rates(self) -> Mapping[str, int]:
        """Return the fields that are rates, and the seconds of their unit (60 for per_minute).

        Means per request have the rate of the requests, because they are multiplied by them.
        """
        units = {**self.basis, **dict.fromkeys(self.means, self.basis.get("requests", ""))}
        return {name: RATES[basis] for name, basis in units.items() if basis in RATES}

    @property
    def means(self) -> tuple[str, ...]:
        """Return the fields that are means per request."""
        return tuple(name for name, basis in self.basis.items() if basis == PER_REQUEST)


@dataclass(frozen=True, slots=True)
class DemandLayout:
    """The columns of all series of a demand file."""

    sources: tuple[Amounts, ...]
    labels: Mapping[str, str]  # series, model, region, tier
    notes: tuple[str, ...] = ()  # caveats about the columns, as sentences
    unknown_unit: bool = False  # nothing states whether amounts are counts or rates
    parts: tuple[str, ...] = ()  # columns that split a bin into rows, which are added

    @property
    def columns(self) -> Mapping[str, str]:
        """Return the column of each field; several are joined with "," or as "a+b|c"."""
        fields: dict[str, dict[str, None]] = {}
        for source in self.sources:
            for name, column in {"time": "+".join(source.time), **source.amounts}.items():
                fields.setdefault(name, {})[str(column)] = None
        return {name: ",".join(columns) for name, columns in fields.items()} | dict(self.labels)


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
    find = Resolver(probe.columns, IngestOptions(), "")
    prompt, total = find.expression("input_tokens"), find.expression("total_tokens")
    known = find.expression("arrival") and not find.expression("output_tokens")
    if not known or prompt is None or total is None or find.expression("requests"):
        return False
    return bool(np.array_equal(prompt.values(probe), total.values(probe), equal_nan=True))


def counts_per_bin(columns: Sequence[str]) -> bool:
    """Return whether columns are those of a demand file (amounts per bin), not of requests."""
    find = Resolver(columns, IngestOptions(), "")
    per_request = all(find.column(field) for field in ("arrival", "input_tokens", "output_tokens"))
    column_per_service = any(WIDE["requests"].match(column) for column in columns)
    if column_per_service or find.expression("requests") or find.expression("rate"):
        return not (per_request and find.column("request_id"))
    tokens = [find.column(f"{side}_tokens") or "" for side in ("input", "output")]
    if any(map(NAMED["suffix"].search, tokens)):  # tokens per second are no tokens of a request
        return True
    return bool(find.expression("total_tokens")) and not per_request


def _column_list(columns: Sequence[str]) -> str:
    """Return the names of columns for a message, at most ``_MOST_LISTED``."""
    more = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
    return ", ".join(column[:40] for column in columns[:_MOST_LISTED]) + more


def _words(column: str) -> set[str]:
    """Return the words in the last part of a column's name, split at case and punctuation."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", ".".join(column.split(".")[-2:]))
    return set(re.split(r"[^a-z]+", spaced.lower()))


# Shorter forms of a column's name. Each is looked up among the well-known names.
SHORTENED: tuple[Callable[[str], str], ...] = (
    str,
    lambda column: column.rpartition(".")[2],  # nested: usage.prompt_tokens
    lambda column: column.removesuffix(".value").rpartition(".")[2],
    *(partial(NAMED[mark].sub, "") for mark in ("suffix", "multiple", "namespace")),
    lambda column: NAMED["sum"].sub("", column).rpartition(".")[2],
)


class Resolver:
    """A search for the columns of fields (such as "input_tokens") in one file.

    It tries the caller's mapping, then ``known`` (the columns of fields that the file's format
    declares), then well-known names. ``name`` is the file's name, for errors.
    """

    def __init__(
        self,
        columns: Sequence[str],
        options: IngestOptions,
        name: str,
        known: Mapping[str, str] | None = None,
    ) -> None:
        self.columns = columns
        self.mapping = options.mapping
        self.name = name
        self.of_format = known or {}
        # A share must not be taken for an amount. The columns of a known format are certain.
        searched = columns if known else [c for c in columns if not NAMED["share"].search(c)]
        self._by_compact: dict[str, str] = {}
        for shortened in SHORTENED:
            for column in searched:
                self._by_compact.setdefault(compact_name(shortened(column)), column)

    def column(self, field: str) -> str | None:
        """Return the only column of a field; None if it has none or several."""
        expression = self.expression(field)
        return expression.single if expression else None

    def expression(self, field: str) -> Expression | None:
        """Return how to compute a field from the file's columns; None if the file lacks it."""
        if field in self.mapping:
            stated, sums = self.mapping[field], []  # such as a+b|c
            for part in [stated] if stated in self.columns else stated.split("|"):
                names = [part] if part.strip() in self.columns else part.split("+")
                sums.append(tuple(self.exact(field, column.strip()) for column in names))
            return Expression(tuple(sums))
        if (declared := self.of_format.get(field)) and (
            columns := self._columns_of_format(declared)
        ):
            return columns
        column = self._first_present(SYNONYMS.get(field, ())) or self._by_words(field)
        if field == "requests" and column and NAMED["moment_s"].search(column):
            return None  # a time, such as request_time
        if column is None:
            return None
        factor = 1.0
        if field in (*AMOUNTS, "rate") and (multiple := NAMED["multiple"].search(column)):
            factor = 1e6 if multiple[1][0] in "mM" else 1e3
        return Expression(((column,),), factor)

    def _columns_of_format(self, text: str) -> Expression | None:
        """Return the expression that a format declares for a field, such as ``a+b|c``.

        ``a+b`` is a sum: a file must have column a, and may lack b. ``|`` separates alternatives.
        None if the file has no alternative.
        """
        alternatives = []
        for part in text.split("|"):
            first, *others = (self._by_compact.get(compact_name(name)) for name in part.split("+"))
            if first is not None:
                alternatives.append((first, *(column for column in others if column is not None)))
        return Expression(tuple(alternatives)) if alternatives else None

    def _by_words(self, field: str) -> str | None:
        """Return the only column with a word of both word lists of a field, or None."""
        if field not in _WORDS:
            return None
        first_list, second_list = _WORDS[field]
        fits = [
            column
            for column in self.columns
            if (words := _words(column)) & first_list
            and words & second_list
            and not words & _NOT_WORDS
        ]
        return fits[0] if len(fits) == 1 else None

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

        ``field`` is "time" (of bins) or "arrival" (of requests). Raise ColumnMissing if there is no
        column.
        """
        if field not in self.mapping:
            if field == "time" and not self.of_format and (pair := self._pair()):
                return pair, None
            declared = field in self.of_format and self._columns_of_format(self.of_format[field])
            column = (
                (declared.columns[0] if declared else None)
                or self._first_present(SYNONYMS[field])
                or self._by_words(field)
                or next((c for c in self.columns if "timestamp" in compact_name(c)), None)
                or (self._first_present(_COARSE) if field == "time" else None)
            )
            if column is None:
                raise self.missing(field)
            return (column,), None
        value, unit = self.mapping[field], None
        columns, _, stated_unit = value.rpartition(":")  # such as date+time or seconds:s
        if value not in self.columns and columns and stated_unit in UNITS_NS:
            value, unit = columns, stated_unit
        parts = (value,) if value in self.columns else tuple(p.strip() for p in value.split("+"))
        return tuple(self.exact(field, part) for part in parts), unit

    def missing(self, field: str, otherwise: str = "") -> IngestError:
        """Return the error for a field without a column; ``otherwise`` is another remedy."""
        return ColumnMissing(
            f"{self.name} has no column known to hold {field}. Choose one of its columns for "
            f"{field} ({_column_list(self.columns)}){otherwise}.",
            field,
        )

    def _pair(self) -> tuple[str, ...]:
        """Return a date and a time column whose names form a known pair, or ()."""
        for pair in _PAIRS:
            if all(part in self._by_compact for part in pair):
                return tuple(self._by_compact[part] for part in pair)
        return ()

    def _first_present(self, synonyms: Iterable[str]) -> str | None:
        """Return the file's column of the first well-known name that it has; None if none."""
        return next((self._by_compact[s] for s in synonyms if s in self._by_compact), None)


def request_layout(
    probe: pl.DataFrame,
    options: IngestOptions,
    name: str,
    known: Mapping[str, str],
    *,
    answers: bool = True,
) -> RequestLayout:
    """Find the columns of a request file; raise IngestError that names the missing field.

    ``known`` maps fields to the columns of the file's format, which are tried first. Without
    ``answers``, output lengths are not required.
    """
    find = Resolver(probe.columns, options, name, known)
    arrival, unit = find.time("arrival")
    if "arrival" not in options.mapping and not known:
        arrival = _columns_of_moment(arrival, probe)
    prompt, answer = find.expression("input_tokens"), find.expression("output_tokens")
    if not answers or (answer is None and without_answers(probe)):
        answer = NO_ANSWERS
    if prompt is None:
        raise find.missing("input_tokens")
    if answer is None:
        raise find.missing("output_tokens", _NO_ANSWERS)
    tokens = {"input_tokens": prompt, "output_tokens": answer}
    fields: dict[str, str] = {}
    for field in REQUEST_FIELDS[3:]:
        expression = find.expression(field)
        if expression is None or (field in LABELS and options.constant(field) is not None):
            continue
        if field in ("cached_tokens", "reasoning_tokens"):
            tokens[field] = expression
        elif field in find.mapping or expression.columns[0] not in arrival:
            fields[field] = expression.columns[0]
    notes: tuple[str, ...] = ()
    if answers:
        sums, notes = _sums_of_parts(find, tokens, probe)
        tokens |= sums
    weight, total = find.column("weight"), find.expression("total_tokens")
    return RequestLayout(arrival, unit, fields, tokens, notes, weight, total)


def _columns_of_moment(columns: tuple[str, ...], probe: pl.DataFrame) -> tuple[str, ...]:
    """Return the columns of the time: ``columns``, corrected if they are one column without a time.

    A time of day is joined with a column of dates: (date, time of day). Dates are joined with a
    column of hours. A duration, such as ``request_time``, is replaced by a column of timestamps.
    """
    if len(columns) > 1:
        return columns
    column = columns[0]
    others = [c for c in probe.columns if c != column and _words(c) & _MOMENTS]
    if _all_match(probe[column], f"{_OF_DAY}|{_RANGE}"):
        dates = (c for c in others if _all_match(probe[c], _DATE))
        return next(((date, column) for date in dates), columns)
    if _all_match(probe[column], _DATE):
        several_a_day = bool(probe[column].is_duplicated().all())
        for other in probe.columns:  # of hours or ranges of a day, or perhaps of times of the day
            patterns = [_HOUR if compact_name(other) in _HOURS else _RANGE]
            patterns += [_OF_DAY] if several_a_day else []
            if any(_all_match(probe[other], pattern, _MOST) for pattern in patterns):
                return column, other
        return columns
    if _has_durations(probe[column]):
        moments = (c for c in others if _all_match(probe[c], _MOMENT))
        return next(((moment,) for moment in moments), columns)
    return columns


def _has_durations(series: pl.Series) -> bool:
    """Return whether a column has only numbers of at most a day that do not rise as times do."""
    small = time_numbers(series)
    if not small.size or small.size < series.len() or np.abs(small).max() >= _DURATION_S:
        return False
    return bool(small.size < 2 or (np.diff(small) < 0).mean() > 0.05 or np.ptp(small) == 0)


def _all_match(series: pl.Series, pattern: str, share: float = 1.0) -> bool:
    """Return whether at least a ``share`` of the first cells of a column match the pattern."""
    text = series.cast(pl.String, strict=False).drop_nulls().head(_PROBED)
    return bool(text.len() and text.str.contains(pattern).sum() >= share * text.len())


def _sums_of_parts(
    find: Resolver, tokens: Mapping[str, Expression], probe: pl.DataFrame
) -> tuple[dict[str, Expression], tuple[str, ...]]:
    """Return sums for input and output tokens whose columns are incomplete, and a note on each.

    Some tools count cached or reasoning tokens in columns of their own ("parts"), and not in the
    column of all input or output tokens. That a column leaves out its parts is shown by, in order:

    - the name of the column of input tokens;
    - a column of total tokens, if the file has one;
    - a part that exceeds the column;
    - two parts of the input (cache reads and writes): tools that count both count them apart.
    """
    parts = _token_parts(find, tokens)

    def sum_of(expressions: Iterable[Expression]) -> FloatArray:
        """Return the sum of the columns per row of the probe; an empty cell counts as 0."""
        values = [np.nan_to_num(expression.values(probe)) for expression in expressions]
        return np.asarray(np.sum(values, axis=0) if values else np.zeros(probe.height))

    name_shows_it = "input_tokens" in parts and bool(
        NAMED["apart"].search(str(tokens["input_tokens"]))
    )
    total = find.expression("total_tokens")
    if total is not None and not name_shows_it:
        # The fields whose parts come nearest to what the total has beyond the columns.
        columns = [tokens[field] for field in ("input_tokens", "output_tokens") if field in tokens]
        beyond_columns = sum_of([total]) - sum_of(columns)
        subsets = [fields for n in range(len(parts) + 1) for fields in combinations(parts, n)]

        def distance(fields: tuple[str, ...]) -> float:
            """Return the tokens that differ if the parts of these fields are counted apart."""
            added = sum_of(part for field in fields for part in parts[field])
            return float(np.abs(beyond_columns - added).sum())

        incomplete = min(subsets, key=distance)
    else:
        incomplete = tuple(
            field
            for field, field_parts in parts.items()
            if len(field_parts) > 1
            or (name_shows_it and field == "input_tokens")
            or (sum_of(field_parts) > sum_of([tokens[field]])).any()
        )
    sums = {f: Expression(((*tokens[f].columns, *map(str, parts[f])),)) for f in incomplete}
    notes = (f"{f} is the sum {s}: its parts are counted apart." for f, s in sums.items())
    return sums, tuple(notes)


def _token_parts(find: Resolver, tokens: Mapping[str, Expression]) -> dict[str, list[Expression]]:
    """Return, by field, the columns of tokens that the field's own column may leave out.

    These are tokens read from the cache or written to it (input_tokens), and reasoning tokens
    (output_tokens). A field that the user or the format states is complete, so it has no entry.
    """
    reads, writes = tokens.get("cached_tokens"), find.expression("cache_writes")
    reasoning = find.expression("reasoning_tokens")
    parts_by_field = {}
    # Tokens written to the cache are a separate count only if those read from it have a column too.
    for field, candidates, needed in (
        ("input_tokens", (writes, reads), reads),
        ("output_tokens", (reasoning,), reasoning),
    ):
        column = tokens.get(field)
        is_stated = field in find.mapping or field in find.of_format
        parts = [part for part in candidates if part and part.single]
        is_separate = needed in parts and column not in parts
        if column and column.single and not is_stated and is_separate:
            parts_by_field[field] = parts
    return parts_by_field


def declared_layout(connector: Connector) -> DemandLayout:
    """Return the layout of a format that declares the columns of each series."""
    sources = (
        Amounts(
            series["name"],
            {field: Expression(((series[field],),)) for field in AMOUNTS if field in series},
            time=(series["time"],),
        )
        for series in connector.series
    )
    return DemandLayout(tuple(sources), {}, (connector.note,))


def demand_layout(
    probe: pl.DataFrame, options: IngestOptions, name: str, known: Mapping[str, str]
) -> DemandLayout:
    """Find a demand file's columns (``known``: those of its format), or raise IngestError."""
    find = Resolver(probe.columns, options, name, known)
    time, unit = find.time("time")
    if "time" not in options.mapping and not known:
        time = _columns_of_moment(time, probe)
    free = [label for label in LABELS if options.constant(label) is None]
    label_columns = {field: find.column(field) for field in ("series", *free)}
    labels = {
        field: column for field, column in label_columns.items() if column and column not in time
    }
    parts: tuple[str, ...] = ()
    sources = _source_per_column(find, probe)
    if not sources and (sources := _panel(find, probe)):
        labels = {}
    if sources:
        sources, notes = _without_parts(sources, probe)
        counts = filter(WIDE["requests"].match, probe.columns)
        failed = list(filter(NAMED["failed"].search, counts))
        if failed and "requests" not in find.mapping and not find.expression("requests"):
            notes += (f"{' and '.join(failed[:5])}: failed requests do not count as load.",)
    else:
        source, notes = _single_source(find, time, probe)
        sources = [source]
        parts = _distinguishing_columns(probe, source, [*time, *labels.values()])
        if parts:
            notes += (f"Rows of one bin are its parts by {', '.join(parts)}: they are added.",)
    unknown_unit = options.amounts == AUTO and _is_unit_unknown(sources)
    if options.amounts != AUTO:
        sources = _with_basis(sources, options.amounts)
    timed = tuple(replace(source, time=time, time_unit=unit) for source in sources)
    return DemandLayout(timed, labels, notes, unknown_unit=unknown_unit, parts=parts)


def _is_unit_unknown(sources: Sequence[Amounts]) -> bool:
    """Return whether no name tells if amounts are counts or rates, such as in a column "value"."""
    amount = str(sources[0].amounts.get("requests", ""))
    is_unnamed = sources[0].model is not None or amount in _VALUES or bool(_words(amount) & _MEAN)
    return is_unnamed and not any(source.basis for source in sources)


def _with_basis(sources: Sequence[Amounts], basis: str) -> list[Amounts]:
    """Return the sources with ``basis`` as stated by the caller: COUNTS, PER_REQUEST or a rate."""
    fields = {COUNTS: (), PER_REQUEST: AMOUNTS[1:]}.get(basis, AMOUNTS)
    return [
        replace(source, basis={field: basis for field in fields if field in source.amounts})
        for source in sources
    ]


def _distinguishing_columns(
    probe: pl.DataFrame, source: Amounts, keys: list[str]
) -> tuple[str, ...]:
    """Return the text columns, such as of API keys, that tell apart rows of one bin and series.

    ``keys`` are the columns of time and labels (series, model, region, tier). () if these are
    unique, or if text columns do not make them so.
    """
    if not probe.select(keys).is_duplicated().any():
        return ()
    used = {*keys, *(column for each in source.amounts.values() for column in each.columns)}

    def has_names(cells: pl.Series) -> bool:
        """Return whether a column has several texts that are neither times nor numbers."""
        if cells.dtype != pl.String or cells.n_unique() <= 1:
            return False
        is_numeric = not np.isnan(numbers(cells)[0]).any()
        return not is_numeric and not _all_match(cells, f"{_DATE}|{_MOMENT}")

    named = [column for column in probe.columns if column not in used and has_names(probe[column])]
    return tuple(named) if probe.select(keys + named).is_unique().all() else ()


def _is_count(cells: pl.Series) -> bool:
    """Return whether the cells of a column are counts: without a unit, or with one of counts."""
    return bool(_COUNTED.fullmatch(cell_unit(cells)))


def _stated_basis(column: str, probe: pl.DataFrame) -> str:
    """Return what a column's name or cells show its numbers are per: PER_REQUEST, a rate, or ""."""
    words = _words(column)
    if "tokens" in words and (words & _MEAN or re.search(r"/ ?req|per_?req", column, re.I)):
        return PER_REQUEST
    unit, column = cell_unit(probe[column]), NAMED["multiple"].sub("", column)
    for rate, pattern in RATE_NAMES.items():
        if (unit and pattern.search(unit)) or pattern.search(re.sub(r"[^\w/]+", "_", column)):
            return rate
    if unit.lower() in ("reqps", "rps", "qps", "ops", "ops/s"):
        return "per_second"
    return "per_minute" if unit.lower() in ("rpm", "tpm", "opm", "cpm", "reqpm") else ""


def _stated_bases(amounts: Mapping[str, Expression], probe: pl.DataFrame) -> dict[str, str]:
    """Return ``_stated_basis`` of each amount's column, by field; amounts per bin are left out."""
    bases = {field: _stated_basis(each.columns[0], probe) for field, each in amounts.items()}
    return {field: basis for field, basis in bases.items() if basis}


def _single_source(
    find: Resolver, time: tuple[str, ...], probe: pl.DataFrame
) -> tuple[Amounts, tuple[str, ...]]:
    """Return the amounts of one column per field, besides those of ``time``, and notes."""
    expressions = {field: find.expression(field) for field in AMOUNTS}
    amounts = {
        name: each for name, each in expressions.items() if each and each.columns[0] not in time
    }
    notes: tuple[str, ...] = ()
    if "input_tokens" in amounts:
        sums, notes = _sums_of_parts(find, amounts, probe)
        amounts |= sums
    basis = _stated_bases(amounts, probe)
    for column in {each.columns[0] for each in amounts.values()} - {*find.mapping.values()}:
        if not _is_count(probe[column]) and not _stated_basis(column, probe):
            raise IngestError(
                f"{find.name}: cells of {column} have the unit {cell_unit(probe[column])[:20]!r}, "
                "which is neither requests nor tokens. Write numbers alone."
            )
    if "rate" in find.mapping and "requests" in find.mapping:
        raise IngestError(
            f"{find.name}: requests and rate are both mapped. Map requests per bin, or a rate."
        )
    if ("requests" not in amounts or "rate" in find.mapping) and (rate := find.expression("rate")):
        amounts["requests"] = rate
        basis["requests"] = _stated_basis(rate.columns[0], probe) or "per_second"
    if not amounts or (PER_REQUEST in basis.values() and "requests" not in amounts):
        raise find.missing("requests")
    return Amounts("", amounts, basis), notes


def _source_per_column(find: Resolver, probe: pl.DataFrame) -> list[Amounts]:
    """Return one series per column of requests, if a file has several (one per service)."""
    mapped = find.mapping.get("requests", "")
    if mapped not in find.columns and "," in mapped:
        counts = [find.exact("requests", part.strip()) for part in mapped.split(",")]
    elif mapped or find.expression("requests") or find.column("rate"):
        return []
    else:
        counts = [column for column in find.columns if WIDE["requests"].match(column)]
        counts = [c for c in counts if not (NAMED["no_count"].search(c) or _statistic(c))]
        counts = [c for c in counts if not NAMED["failed"].search(c)] or counts
    if len(set(counts)) < len(counts):
        raise IngestError(f"{find.name}: requests is mapped twice to one column. Name each once.")
    sources = []
    for column in counts:
        match = WIDE["requests"].match(column)
        prefix = match[1] if match else column
        amounts = {"requests": Expression(((column,),))}
        amounts |= {
            field: Expression(((other,),))
            for field in ("input_tokens", "output_tokens")
            for other in find.columns
            if (wide_name := WIDE[field].match(other)) and wide_name[1] == prefix
        }
        sources.append(Amounts(prefix, amounts, _stated_bases(amounts, probe)))
    return sources


def _statistic(column: str) -> bool:
    """Return whether a column is a statistic such as a maximum, by its name."""
    return bool(NAMED["statistic"].search(column.replace("_", " ")))


def panel_like(probe: pl.DataFrame) -> bool:
    """Return whether a table is a time and one column of numbers per series."""
    series = _panel_columns(probe)
    if not series or probe.height < 2:
        return False
    find = Resolver(series, IngestOptions(), "")
    fields = set(SYNONYMS) - {"time", "arrival", "series", "model", "region", "tier"}
    return not any(map(find.expression, fields)) and all(_is_amount(c, probe) for c in series)


def _is_amount(column: str, probe: pl.DataFrame) -> bool:
    """Return whether a column has numbers that can be counts or rates."""
    number, blank = numbers(probe[column])
    unread = np.isnan(number)
    if NAMED["no_count"].search(column) or unread.all() or (unread & ~blank).any():
        return False
    return _is_count(probe[column]) or bool(_stated_basis(column, probe))


def _panel_columns(probe: pl.DataFrame) -> list[str]:
    """Return the columns besides a first or last column of times, without statistics; else []."""
    for time in (probe.columns[0], probe.columns[-1]):
        if compact_name(time) in SYNONYMS["time"]:
            return [c for c in probe.columns if c != time and not _statistic(c)]
    return []


def _panel(find: Resolver, probe: pl.DataFrame) -> list[Amounts]:
    """Return one series per column of a table exported from a dashboard's panel (a chart).

    A column is named after its model. Empty if the table is not like that (``panel_like``).
    """
    if find.mapping or not panel_like(probe):
        return []
    sources = []
    for column in _panel_columns(probe):
        label = NAMED["label"].search(column)
        amounts = {"requests": Expression(((column,),))}
        name = label[1].strip() if label else column
        sources.append(Amounts(name, amounts, _stated_bases(amounts, probe), model=name))
    return sources


def _without_parts(
    sources: list[Amounts], probe: pl.DataFrame
) -> tuple[list[Amounts], tuple[str, ...]]:
    """Return the series of a file without double counts, and notes.

    A series that is the sum of all others in every row is kept alone. In a dashboard's panel, whose
    series are models, it is left out instead.
    """
    if len(sources) < 3:
        return sources, ()
    values = [source.amounts["requests"].values(probe) for source in sources]
    sum_of_all = sum(values[1:], values[0])
    for source, value in zip(sources, values, strict=True):
        share = 0.02 if NAMED["total"].search(source.name) else 1e-6
        tolerance = share * abs(value).max(initial=0.0)
        sum_of_others = sum_of_all - value
        if value.any() and abs(sum_of_others - value).max() <= tolerance:
            column = source.amounts["requests"]
            others = [each for each in sources if each is not source]
            parts = " and ".join(str(each.amounts["requests"]) for each in others)
            if source.model is not None:  # of a panel, whose parts are models
                return others, (f"{column} is the sum of {parts}, and is not counted again.",)
            total = Amounts("", source.amounts, source.basis)
            return [total], (f"{column} is the sum of {parts}: only {column} is counted.",)
    return sources, ()
