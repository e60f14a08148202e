"""Find the columns of a demand file: amounts per bin of one series, or of a series per column."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.checks import cell_unit, numbers, numbers_and_blanks
from planner.inputs.ingest.columns import (
    DATE,
    MOMENT,
    Expression,
    Resolver,
    all_match,
    columns_of_moment,
    sums_of_parts,
    words_of,
)
from planner.inputs.ingest.connectors import Connector
from planner.inputs.ingest.grid import AMOUNTS
from planner.inputs.ingest.names import NAMED, RATE_NAMES, SYNONYMS, WIDE, compact_name
from planner.inputs.ingest.options import AUTO, COUNTS, LABELS, PER_REQUEST, RATES, IngestOptions

_MEAN = frozenset(["avg", "mean", "average"])  # words of a column of means
_COUNTED = re.compile(r"(req(uest)?s?|calls?|tok(en)?s?)?", re.IGNORECASE)  # units of counts
_VALUES = ("value", "Value", "VALUE")
_RATE_UNITS = {  # units of cells that are rates
    **dict.fromkeys(("reqps", "rps", "qps", "ops", "ops/s"), "per_second"),
    **dict.fromkeys(("rpm", "tpm", "opm", "cpm", "reqpm"), "per_minute"),
}


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """The columns of one series in a demand file: its requests and tokens per bin, and its time."""

    name: str  # "" if rows or the file name the series
    amounts: Mapping[str, Expression]  # by field: requests, input_tokens, output_tokens
    # By field, what its numbers are per: a rate such as per_second, or PER_REQUEST. A field that is
    # absent here has amounts per bin.
    basis: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None  # named by the column
    time: tuple[str, ...] = ()
    time_unit: str | None = None  # as the caller states it

    @property
    def rates(self) -> Mapping[str, int]:
        """Return the fields that are rates, and the seconds of their unit (60 for per_minute).

        Means per request have the rate of the requests, because they are multiplied by them.
        """
        basis_of_means = dict.fromkeys(self.means, self.basis.get("requests", ""))
        basis_by_field = {**self.basis, **basis_of_means}
        return {name: RATES[basis] for name, basis in basis_by_field.items() if basis in RATES}

    @property
    def means(self) -> tuple[str, ...]:
        """Return the fields that are means per request."""
        return tuple(name for name, basis in self.basis.items() if basis == PER_REQUEST)


@dataclass(frozen=True, slots=True)
class DemandLayout:
    """The columns of all series of a demand file."""

    series: tuple[SeriesColumns, ...]
    labels: Mapping[str, str]  # column by label: series, model, region, tier
    notes: tuple[str, ...] = ()  # caveats about the columns, as sentences
    unknown_unit: bool = False  # nothing states whether amounts are counts or rates
    parts: tuple[str, ...] = ()  # columns that split a bin into rows, which are added

    @property
    def columns(self) -> Mapping[str, str]:
        """Return the column of each field; several are joined with "," or as "a+b|c"."""
        columns_by_field: dict[str, dict[str, None]] = {}
        for series in self.series:
            for name, column in {"time": "+".join(series.time), **series.amounts}.items():
                columns_by_field.setdefault(name, {})[str(column)] = None
        joined = {name: ",".join(columns) for name, columns in columns_by_field.items()}
        return joined | dict(self.labels)


def declared_layout(connector: Connector) -> DemandLayout:
    """Return the layout of a format that declares the columns of each series."""
    all_series = []
    for declared in connector.series:
        amounts = {
            field: Expression(((declared[field],),)) for field in AMOUNTS if field in declared
        }
        all_series.append(SeriesColumns(declared["name"], amounts, time=(declared["time"],)))
    return DemandLayout(tuple(all_series), {}, (connector.note,))


def demand_layout(
    probe: pl.DataFrame, options: IngestOptions, name: str, format_columns: Mapping[str, str]
) -> DemandLayout:
    """Return the columns of the demand file ``name`` by its first rows; or raise IngestError.

    ``format_columns`` are the columns of fields that the file's format declares; {} without one.
    """
    resolver = Resolver(probe.columns, options.mapping, name, format_columns)
    time, time_unit = resolver.time("time")
    if "time" not in options.mapping and not format_columns:
        time = columns_of_moment(time, probe)
    labels = {}
    for label in ("series", *LABELS):
        column = resolver.column(label)
        if options.constant(label) is None and column and column not in time:
            labels[label] = column
    # A file has a column per service, a column per model (a panel), or a column per field.
    parts: tuple[str, ...] = ()
    all_series = _series_per_column(resolver, probe)
    if not all_series:
        all_series = _panel(resolver, probe)
        if all_series:  # the columns are named after models
            labels = {}
    if all_series:
        all_series, notes = _without_parts(all_series, probe)
        notes += _note_on_failed(resolver)
    else:
        series, notes = _single_series(resolver, time, probe)
        all_series = [series]
        parts = _distinguishing_columns(probe, series, [*time, *labels.values()])
        if parts:
            notes += (f"Rows of one bin are its parts by {', '.join(parts)}: they are added.",)
    unknown_unit = options.amounts == AUTO and _is_unit_unknown(all_series)
    if options.amounts != AUTO:
        all_series = _with_basis(all_series, options.amounts)
    if any(series.means and "requests" not in series.amounts for series in all_series):
        raise resolver.missing("requests")
    timed = tuple(replace(series, time=time, time_unit=time_unit) for series in all_series)
    return DemandLayout(timed, labels, notes, unknown_unit=unknown_unit, parts=parts)


def _note_on_failed(resolver: Resolver) -> tuple[str, ...]:
    """Return a sentence on the columns of failed requests, which are no load; () without any."""
    failed = [
        c for c in resolver.columns if WIDE["requests"].match(c) and NAMED["failed"].search(c)
    ]
    if not failed or "requests" in resolver.mapping or resolver.expression("requests"):
        return ()
    return (f"{' and '.join(failed[:5])}: failed requests do not count as load.",)


def _is_unit_unknown(all_series: Sequence[SeriesColumns]) -> bool:
    """Return whether no name tells if amounts are counts or rates, such as in a column "value"."""
    if any(series.basis for series in all_series):
        return False
    column = str(all_series[0].amounts.get("requests", ""))
    is_of_panel = all_series[0].model is not None
    return is_of_panel or column in _VALUES or bool(words_of(column) & _MEAN)


def _with_basis(all_series: Sequence[SeriesColumns], basis: str) -> list[SeriesColumns]:
    """Return the series with ``basis`` as stated by the caller: COUNTS, PER_REQUEST or a rate."""
    if basis == COUNTS:
        fields: Sequence[str] = ()
    else:
        fields = AMOUNTS[1:] if basis == PER_REQUEST else AMOUNTS  # without requests, or all
    return [
        replace(series, basis={field: basis for field in fields if field in series.amounts})
        for series in all_series
    ]


def _distinguishing_columns(
    probe: pl.DataFrame, series: SeriesColumns, keys: list[str]
) -> tuple[str, ...]:
    """Return the text columns, such as of API keys, that tell apart rows of one bin and series.

    ``keys`` are the columns of time and labels (series, model, region, tier). () if these are
    unique, or if text columns do not make them so.
    """
    if not probe.select(keys).is_duplicated().any():
        return ()
    used = set(keys)
    for expression in series.amounts.values():
        used.update(expression.columns)
    named = [column for column in probe.columns if column not in used and _has_names(probe[column])]
    return tuple(named) if probe.select(keys + named).is_unique().all() else ()


def _has_names(cells: pl.Series) -> bool:
    """Return whether a column has several texts that are neither times nor numbers."""
    if cells.dtype != pl.String or cells.n_unique() <= 1:
        return False
    is_numeric = not np.isnan(numbers(cells)).any()
    return not is_numeric and not all_match(cells, f"{DATE}|{MOMENT}")


def _is_count(cells: pl.Series) -> bool:
    """Return whether the cells of a column are counts: without a unit, or with one of counts."""
    return bool(_COUNTED.fullmatch(cell_unit(cells)))


def _stated_basis(column: str, probe: pl.DataFrame) -> str:
    """Return what a column's name or cells show its numbers are per: PER_REQUEST, a rate, or ""."""
    words = words_of(column)
    if "tokens" in words and (words & _MEAN or re.search(r"/ ?req|per_?req", column, re.I)):
        return PER_REQUEST
    unit = cell_unit(probe[column])
    name = re.sub(r"[^\w/]+", "_", NAMED["multiple"].sub("", column))
    for rate, pattern in RATE_NAMES.items():
        if (unit and pattern.search(unit)) or pattern.search(name):
            return rate
    return _RATE_UNITS.get(unit.lower(), "")


def _stated_bases(amounts: Mapping[str, Expression], probe: pl.DataFrame) -> dict[str, str]:
    """Return ``_stated_basis`` of each amount's column, by field; amounts per bin are left out."""
    basis_by_field = {
        field: _stated_basis(expression.columns[0], probe) for field, expression in amounts.items()
    }
    return {field: basis for field, basis in basis_by_field.items() if basis}


def _single_series(
    resolver: Resolver, time: tuple[str, ...], probe: pl.DataFrame
) -> tuple[SeriesColumns, tuple[str, ...]]:
    """Return the amounts of a file with one column per field, and notes.

    Columns of ``time`` are no amounts. Raise IngestError for cells with another unit, and without
    requests, unless the file has tokens per bin.
    """
    amounts: dict[str, Expression] = {}
    for name in AMOUNTS:
        expression = resolver.expression(name)
        if expression and expression.columns[0] not in time:
            amounts[name] = expression
    notes: tuple[str, ...] = ()
    if "input_tokens" in amounts:
        sums, notes = sums_of_parts(resolver, amounts, probe)
        amounts |= sums
    basis = _stated_bases(amounts, probe)
    columns = {expression.columns[0] for expression in amounts.values()}
    for column in columns - {*resolver.mapping.values()}:  # those that the caller does not state
        if not _is_count(probe[column]) and not _stated_basis(column, probe):
            raise IngestError(
                f"{resolver.name}: cells of {column} have the unit "
                f"{cell_unit(probe[column])[:20]!r}, which is neither requests nor tokens. Write "
                "numbers alone."
            )
    if "rate" in resolver.mapping and "requests" in resolver.mapping:
        raise IngestError(
            f"{resolver.name}: requests and rate are both mapped. Map requests per bin, or a rate."
        )
    # A rate stands for the requests if the file does not count them.
    rate = resolver.expression("rate")
    if rate and ("requests" not in amounts or "rate" in resolver.mapping):
        amounts["requests"] = rate
        basis["requests"] = _stated_basis(rate.columns[0], probe) or "per_second"
    if "requests" not in amounts and (not amounts or PER_REQUEST in basis.values()):
        raise resolver.missing("requests")
    return SeriesColumns("", amounts, basis), notes


def _series_per_column(resolver: Resolver, probe: pl.DataFrame) -> list[SeriesColumns]:
    """Return one series per column of requests, if a file has several (one per service); else [].

    Raise IngestError if the caller names a column twice.
    """
    count_columns = _count_columns(resolver)
    if len(set(count_columns)) < len(count_columns):
        raise IngestError(
            f"{resolver.name}: requests is mapped twice to one column. Name each once."
        )
    all_series = []
    for column in count_columns:
        match = WIDE["requests"].match(column)
        service = match[1] if match else column  # chat of chat_requests
        amounts = {"requests": Expression(((column,),))}
        for tokens in ("input_tokens", "output_tokens"):
            for other in resolver.columns:
                wide_name = WIDE[tokens].match(other)
                if wide_name and wide_name[1] == service:
                    amounts[tokens] = Expression(((other,),))
        all_series.append(SeriesColumns(service, amounts, _stated_bases(amounts, probe)))
    return all_series


def _count_columns(resolver: Resolver) -> list[str]:
    """Return the columns of requests per service: as the caller maps them, or by their names.

    [] if one column has all requests or their rate.
    """
    mapped = resolver.mapping.get("requests", "")
    if mapped not in resolver.columns and "," in mapped:
        return [resolver.exact("requests", part.strip()) for part in mapped.split(",")]
    if mapped or resolver.expression("requests") or resolver.column("rate"):
        return []
    count_columns = [
        column
        for column in resolver.columns
        if WIDE["requests"].match(column)
        and not NAMED["no_count"].search(column)
        and not _is_statistic(column)
    ]
    return [c for c in count_columns if not NAMED["failed"].search(c)] or count_columns


def _is_statistic(column: str) -> bool:
    """Return whether a column is a statistic such as a maximum, by its name."""
    return bool(NAMED["statistic"].search(column.replace("_", " ")))


def panel_like(probe: pl.DataFrame) -> bool:
    """Return whether a table is a time and one column of numbers per series."""
    series = _panel_columns(probe)
    if not series or probe.height < 2:
        return False
    resolver = Resolver(series)
    fields = set(SYNONYMS) - {"time", "arrival", "series", "model", "region", "tier"}
    if any(map(resolver.expression, fields)):
        return False
    for column in series:  # all must have numbers that can be counts or rates
        number, blank = numbers_and_blanks(probe[column])
        is_unread = np.isnan(number)
        has_text = (is_unread & ~blank).any()
        if NAMED["no_count"].search(column) or is_unread.all() or has_text:
            return False
        if not _is_count(probe[column]) and not _stated_basis(column, probe):
            return False
    return True


def _panel_columns(probe: pl.DataFrame) -> list[str]:
    """Return the columns besides a first or last column of times, without statistics; else []."""
    for time in (probe.columns[0], probe.columns[-1]):
        if compact_name(time) in SYNONYMS["time"]:
            return [c for c in probe.columns if c != time and not _is_statistic(c)]
    return []


def _panel(resolver: Resolver, probe: pl.DataFrame) -> list[SeriesColumns]:
    """Return one series per column of a table exported from a dashboard's panel (a chart).

    A column is named after its model. Empty if the table is not like that (``panel_like``).
    """
    if resolver.mapping or not panel_like(probe):
        return []
    all_series = []
    for column in _panel_columns(probe):
        label = NAMED["label"].search(column)
        amounts = {"requests": Expression(((column,),))}
        name = label[1].strip() if label else column
        all_series.append(SeriesColumns(name, amounts, _stated_bases(amounts, probe), model=name))
    return all_series


def _without_parts(
    all_series: list[SeriesColumns], probe: pl.DataFrame
) -> tuple[list[SeriesColumns], tuple[str, ...]]:
    """Return the series of a file without double counts, and notes.

    A series that is the sum of all others in every row is kept alone. In a dashboard's panel, whose
    series are models, it is left out instead.
    """
    total = _sum_of_others(all_series, probe)
    if total is None:
        return all_series, ()
    column = total.amounts["requests"]
    others = [series for series in all_series if series is not total]
    parts = " and ".join(str(series.amounts["requests"]) for series in others)
    if total.model is not None:  # of a panel, whose parts are models
        return others, (f"{column} is the sum of {parts}, and is not counted again.",)
    note = f"{column} is the sum of {parts}: only {column} is counted."
    return [replace(total, name="")], (note,)


def _sum_of_others(
    all_series: Sequence[SeriesColumns], probe: pl.DataFrame
) -> SeriesColumns | None:
    """Return the first of three or more series that is the sum of all others; else None.

    A series with a name such as "Total" may differ from the sum by 2% of its largest amount.
    """
    if len(all_series) < 3:
        return None
    requests_of_series = [series.amounts["requests"].values(probe) for series in all_series]
    sum_of_all = sum(requests_of_series[1:], requests_of_series[0])
    for series, requests in zip(all_series, requests_of_series, strict=True):
        share = 0.02 if NAMED["total"].search(series.name) else 1e-6
        tolerance = share * abs(requests).max(initial=0.0)
        sum_of_others = sum_of_all - requests
        if requests.any() and abs(sum_of_others - requests).max() <= tolerance:
            return series
    return None
