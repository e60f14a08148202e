"""Find the column of each field: by the caller's mapping, well-known names and known layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import IngestError
from planner.inputs.ingest.clock import UNITS_NS
from planner.inputs.ingest.names import (
    SYNONYMS,
    compact,
)
from planner.inputs.ingest.options import (
    LABELS,
    IngestOptions,
)

_LISTED = 20  # columns listed in a message
_NO_ANSWERS = "; or read it as format arrivals, where it has no lengths of answers"
_COARSE = ("minute", "hourindex", "hour", "day")  # only used without a finer time
_PAIRS = (("day", "hour", "minute"), ("day", "hour"), ("utcdow", "utchour"), ("dow", "hour"))
_WIDE = {
    "requests": re.compile(r"^(.+?)[ _-]requests?(?:[ _-]count)?$", re.IGNORECASE),
    "input_tokens": re.compile(r"^(.+?)[ _-](?:input|context|prompt)[ _-]tokens$", re.IGNORECASE),
    "output_tokens": re.compile(
        r"^(.+?)[ _-](?:output|generated|response|completion)[ _-]tokens$", re.IGNORECASE
    ),
}
_PER_SECOND = re.compile(r"(per_?s(ec(ond)?)?|(^|_)[rqt]ps|_rate)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Amounts:
    """The columns of one series in a demand file."""

    name: str  # "" if rows or the file name the series
    time: tuple[str, ...]
    time_unit: str | None
    amounts: Mapping[str, str]  # requests, input_tokens, output_tokens, total_tokens
    rates: frozenset[str]  # amounts per second


@dataclass(frozen=True, slots=True)
class DemandLayout:
    """The columns of all series of a demand file."""

    sources: tuple[Amounts, ...]
    labels: Mapping[str, str]  # series, model, region, tier
    note: str = ""  # a caveat about the columns, as a sentence

    @property
    def columns(self) -> Mapping[str, str]:
        """Return field to column; several columns are joined as in a mapping."""
        fields: dict[str, list[str]] = {}
        for source in self.sources:
            for field, column in (("time", "+".join(source.time)), *source.amounts.items()):
                if column not in fields.setdefault(field, []):
                    fields[field].append(column)
        return {field: ",".join(columns) for field, columns in fields.items()} | dict(self.labels)


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """The columns of a request file."""

    arrival: tuple[str, ...]
    arrival_unit: str | None
    fields: Mapping[str, str]  # input_tokens, output_tokens and the optional fields found

    @property
    def columns(self) -> Mapping[str, str]:
        """Return field to column; several columns are joined as in a mapping."""
        return {"arrival": "+".join(self.arrival), **self.fields}


def counts_per_bin(columns: Sequence[str]) -> bool:
    """Return whether these are the columns of a demand file."""
    names = {compact(column) for column in columns}
    counted = {*SYNONYMS["requests"], *SYNONYMS["rate"]} & names
    if counted or any(_WIDE["requests"].match(column) for column in columns):
        return True
    per_request = all(
        set(SYNONYMS[field]) & names for field in ("arrival", "input_tokens", "output_tokens")
    )
    return bool(set(SYNONYMS["total_tokens"]) & names) and not per_request


def _listed(columns: Sequence[str]) -> str:
    """Return column names for a message, cut to a readable length."""
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    return ", ".join(column[:40] for column in columns[:_LISTED]) + more


class _Resolver:
    """A search for columns, by the caller's mapping first and by well-known names second."""

    def __init__(
        self,
        columns: Sequence[str],
        options: IngestOptions,
        name: str,
        known: Mapping[str, str] | None = None,
    ) -> None:
        self.columns, self.mapping, self.name = columns, options.mapping, name
        self._of_format = known or {}
        self._by_compact: dict[str, str] = {}
        for column in columns:
            self._by_compact.setdefault(compact(column), column)
        for column in columns:  # nested names: usage.prompt_tokens, gen_ai.usage.input_tokens
            self._by_compact.setdefault(compact(column.rpartition(".")[2]), column)

    def column(self, field: str) -> str | None:
        if field in self.mapping:
            return self.exact(field, self.mapping[field])
        return self._known(self._names(field))

    def _names(self, field: str) -> tuple[str, ...]:
        """Return the names that a column of ``field`` may have; the format's name comes first."""
        of_format = self._of_format.get(field)
        return (of_format, *SYNONYMS[field]) if of_format else SYNONYMS[field]

    def exact(self, field: str, column: str) -> str:
        if column in self.columns:
            return column
        raise IngestError(
            f"{self.name} has no column {column!r} to take {field} from; its columns are "
            f"{_listed(self.columns)}."
        )

    def time(self, field: str) -> tuple[tuple[str, ...], str | None]:
        """Return the columns that add up to a time, and the unit the caller gave."""
        if field not in self.mapping:
            if field == "time" and (pair := self._pair()):
                return pair, None
            column = (
                self._known(self._names(field))
                or next((c for c in self.columns if "timestamp" in compact(c)), None)
                or (self._known(_COARSE) if field == "time" else None)
            )
            if column is None:
                raise self.missing(field)
            return (column,), None
        value, unit = self.mapping[field], None
        if value not in self.columns:
            head, colon, tail = value.rpartition(":")
            if colon and tail in UNITS_NS:
                value, unit = head, tail
        parts = (value,) if value in self.columns else tuple(p.strip() for p in value.split("+"))
        return tuple(self.exact(field, part) for part in parts), unit

    def missing(self, field: str, otherwise: str = "") -> IngestError:
        return IngestError(
            f"{self.name} has no column known to hold {field}; map one to it "
            f"({field}=COLUMN), its columns being {_listed(self.columns)}{otherwise}."
        )

    def _pair(self) -> tuple[str, ...]:
        for pair in _PAIRS:
            if all(part in self._by_compact for part in pair):
                return tuple(self._by_compact[part] for part in pair)
        return ()

    def _known(self, synonyms: Iterable[str]) -> str | None:
        return next((self._by_compact[s] for s in synonyms if s in self._by_compact), None)


def request_layout(
    columns: Sequence[str],
    options: IngestOptions,
    name: str,
    known: Mapping[str, str],
    *,
    answers: bool = True,
) -> RequestLayout:
    """Find the columns of a request file; raise IngestError that names the missing field.

    ``known`` maps fields to the column names of the file's format, which come first. Without
    ``answers``, output lengths are not required.
    """
    find = _Resolver(columns, options, name, known)
    arrival, unit = find.time("arrival")
    fields: dict[str, str] = {}
    for field in ("input_tokens", "output_tokens")[: 2 if answers else 1]:
        column = find.column(field)
        if column is None:
            raise find.missing(field, _NO_ANSWERS if field == "output_tokens" else "")
        fields[field] = column
    for field in (*LABELS, "hash_ids", "utility"):
        if field in LABELS and options.constant(field) is not None:
            continue
        column = find.column(field)
        if column is not None:
            fields[field] = column
    return RequestLayout(arrival, unit, fields)


def demand_layout(columns: Sequence[str], options: IngestOptions, name: str) -> DemandLayout:
    """Find the columns of a demand file; raise IngestError that names the missing field."""
    # This public file has a time column per series, which no general rule finds.
    if not options.mapping and set(_AZURE_WEEK_COLUMNS) <= set(columns):
        return _AZURE_WEEK
    find = _Resolver(columns, options, name)
    time, unit = find.time("time")
    labels = {
        field: column
        for field in ("series", *LABELS)
        if (field == "series" or options.constant(field) is None)
        and (column := find.column(field)) is not None
    }
    sources = _wide(find, time, unit) or (_single(find, time, unit),)
    return DemandLayout(sources, labels)


def _single(find: _Resolver, time: tuple[str, ...], unit: str | None) -> Amounts:
    """Return the source of a file with one set of amount columns."""
    amounts: dict[str, str] = {}
    for field in ("requests", "input_tokens", "output_tokens", "total_tokens"):
        if (column := find.column(field)) is not None:
            amounts[field] = column
    rates = {field for field, column in amounts.items() if _PER_SECOND.search(column)}
    if "rate" in find.mapping and "requests" in find.mapping:
        raise IngestError(
            f"{find.name}: requests and rate are both mapped; map requests where the file counts "
            "requests per bin, rate where it gives them per second."
        )
    if ("requests" not in amounts or "rate" in find.mapping) and (column := find.column("rate")):
        amounts["requests"] = column
        rates.add("requests")
    if not amounts:
        raise find.missing("requests")
    return Amounts("", time, unit, amounts, frozenset(rates))


def _wide(find: _Resolver, time: tuple[str, ...], unit: str | None) -> tuple[Amounts, ...]:
    """Return one source per requests column, if columns are mapped or named by series.

    Returns nothing if one column holds the requests of all series.
    """
    mapped = find.mapping.get("requests", "")
    if mapped and mapped not in find.columns and "," in mapped:
        counts = [find.exact("requests", part.strip()) for part in mapped.split(",")]
    elif mapped or find.column("requests") or find.column("rate"):
        return ()
    else:
        counts = [column for column in find.columns if _WIDE["requests"].match(column)]
    if len(set(counts)) < len(counts):
        raise IngestError(f"{find.name}: requests is mapped twice to one column; name each once.")
    sources = []
    for column in counts:
        match = _WIDE["requests"].match(column)
        prefix = match.group(1) if match else column
        amounts = {"requests": column}
        for field in ("input_tokens", "output_tokens"):
            for other in find.columns:
                named = _WIDE[field].match(other)
                if named and named.group(1) == prefix:
                    amounts[field] = other
        rates = frozenset(f for f, c in amounts.items() if _PER_SECOND.search(c))
        sources.append(Amounts(prefix, time, unit, amounts, rates))
    return tuple(sources)


_AZURE_WEEK = DemandLayout(
    sources=tuple(
        Amounts(
            name,
            (f"{name}_hour_utc",),
            None,
            {
                "requests": requests,
                "input_tokens": f"{name}_context_tokens_est",
                "output_tokens": f"{name}_generated_tokens",
            },
            frozenset(),
        )
        for name, requests in (("code", "code_requests"), ("conv", "conv_requests_10s"))
    ),
    labels={},
    note="Input tokens are estimates: the file gives them exactly only for both services together.",
)
_AZURE_WEEK_COLUMNS = tuple(
    column for source in _AZURE_WEEK.sources for column in (*source.time, *source.amounts.values())
)
