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


@dataclass(frozen=True, slots=True)
class Amounts:
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
    find = Resolver(probe.columns, options.mapping, name, known)
    time, unit = find.time("time")
    if "time" not in options.mapping and not known:
        time = columns_of_moment(time, probe)
    labels = _label_columns(find, options, time)
    parts: tuple[str, ...] = ()
    sources = _source_per_column(find, probe)
    if not sources:
        sources = _panel(find, probe)
        if sources:  # the columns are named after models
            labels = {}
    if sources:
        sources, notes = _without_parts(sources, probe)
        notes += _note_on_failed(find)
    else:
        source, notes = _single_source(find, time, probe)
        sources = [source]
        parts = _distinguishing_columns(probe, source, [*time, *labels.values()])
        if parts:
            notes += (f"Rows of one bin are its parts by {', '.join(parts)}: they are added.",)
    unknown_unit = options.amounts == AUTO and _is_unit_unknown(sources)
    if options.amounts != AUTO:
        sources = _with_basis(sources, options.amounts)
    if any(source.means and "requests" not in source.amounts for source in sources):
        raise find.missing("requests")
    timed = tuple(replace(source, time=time, time_unit=unit) for source in sources)
    return DemandLayout(timed, labels, notes, unknown_unit=unknown_unit, parts=parts)


def _label_columns(find: Resolver, options: IngestOptions, time: tuple[str, ...]) -> dict[str, str]:
    """Return the columns of series, model, region and tier, besides labels that are stated."""
    unstated = [label for label in ("series", *LABELS) if options.constant(label) is None]
    columns = {label: find.column(label) for label in unstated}
    return {label: column for label, column in columns.items() if column and column not in time}


def _note_on_failed(find: Resolver) -> tuple[str, ...]:
    """Return a sentence on the columns of failed requests, which are no load; () without any."""
    failed = [c for c in find.columns if WIDE["requests"].match(c) and NAMED["failed"].search(c)]
    if not failed or "requests" in find.mapping or find.expression("requests"):
        return ()
    return (f"{' and '.join(failed[:5])}: failed requests do not count as load.",)


def _is_unit_unknown(sources: Sequence[Amounts]) -> bool:
    """Return whether no name tells if amounts are counts or rates, such as in a column "value"."""
    amount = str(sources[0].amounts.get("requests", ""))
    is_unnamed = sources[0].model is not None or amount in _VALUES or bool(words_of(amount) & _MEAN)
    return is_unnamed and not any(source.basis for source in sources)


def _with_basis(sources: Sequence[Amounts], basis: str) -> list[Amounts]:
    """Return the sources with ``basis`` as stated by the caller: COUNTS, PER_REQUEST or a rate."""
    if basis == COUNTS:
        fields: Sequence[str] = ()
    else:
        fields = AMOUNTS[1:] if basis == PER_REQUEST else AMOUNTS  # without requests, or all
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
    amounts: dict[str, Expression] = {}
    for name in AMOUNTS:
        expression = find.expression(name)
        if expression and expression.columns[0] not in time:
            amounts[name] = expression
    notes: tuple[str, ...] = ()
    if "input_tokens" in amounts:
        sums, notes = sums_of_parts(find, amounts, probe)
        amounts |= sums
    basis = _stated_bases(amounts, probe)
    _check_units(find, {each.columns[0] for each in amounts.values()}, probe)
    if "rate" in find.mapping and "requests" in find.mapping:
        raise IngestError(
            f"{find.name}: requests and rate are both mapped. Map requests per bin, or a rate."
        )
    rate = find.expression("rate")
    if rate and ("requests" not in amounts or "rate" in find.mapping):
        amounts["requests"] = rate
        basis["requests"] = _stated_basis(rate.columns[0], probe) or "per_second"
    if "requests" not in amounts and (not amounts or PER_REQUEST in basis.values()):
        raise find.missing("requests")
    return Amounts("", amounts, basis), notes


def _check_units(find: Resolver, columns: set[str], probe: pl.DataFrame) -> None:
    """Raise IngestError for a column that is not mapped and has another unit than amounts."""
    for column in columns - {*find.mapping.values()}:
        if not _is_count(probe[column]) and not _stated_basis(column, probe):
            raise IngestError(
                f"{find.name}: cells of {column} have the unit {cell_unit(probe[column])[:20]!r}, "
                "which is neither requests nor tokens. Write numbers alone."
            )


def _source_per_column(find: Resolver, probe: pl.DataFrame) -> list[Amounts]:
    """Return one series per column of requests, if a file has several (one per service)."""
    counts = _count_columns(find)
    if len(set(counts)) < len(counts):
        raise IngestError(f"{find.name}: requests is mapped twice to one column. Name each once.")
    sources = []
    for column in counts:
        match = WIDE["requests"].match(column)
        prefix = match[1] if match else column
        amounts = {"requests": Expression(((column,),))}
        for tokens in ("input_tokens", "output_tokens"):
            for other in find.columns:
                wide_name = WIDE[tokens].match(other)
                if wide_name and wide_name[1] == prefix:
                    amounts[tokens] = Expression(((other,),))
        sources.append(Amounts(prefix, amounts, _stated_bases(amounts, probe)))
    return sources


def _count_columns(find: Resolver) -> list[str]:
    """Return the columns of requests per service: as the caller maps them, or by their names."""
    mapped = find.mapping.get("requests", "")
    if mapped not in find.columns and "," in mapped:
        return [find.exact("requests", part.strip()) for part in mapped.split(",")]
    if mapped or find.expression("requests") or find.column("rate"):
        return []
    counts = [
        column
        for column in find.columns
        if WIDE["requests"].match(column)
        and not NAMED["no_count"].search(column)
        and not _statistic(column)
    ]
    return [c for c in counts if not NAMED["failed"].search(c)] or counts


def _statistic(column: str) -> bool:
    """Return whether a column is a statistic such as a maximum, by its name."""
    return bool(NAMED["statistic"].search(column.replace("_", " ")))


def panel_like(probe: pl.DataFrame) -> bool:
    """Return whether a table is a time and one column of numbers per series."""
    series = _panel_columns(probe)
    if not series or probe.height < 2:
        return False
    find = Resolver(series)
    fields = set(SYNONYMS) - {"time", "arrival", "series", "model", "region", "tier"}
    if any(map(find.expression, fields)):
        return False
    for column in series:  # all must have numbers that can be counts or rates
        number, blank = numbers_and_blanks(probe[column])
        unread = np.isnan(number)
        if NAMED["no_count"].search(column) or unread.all() or (unread & ~blank).any():
            return False
        if not _is_count(probe[column]) and not _stated_basis(column, probe):
            return False
    return True


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
    total = _sum_of_others(sources, probe)
    if total is None:
        return sources, ()
    column = total.amounts["requests"]
    others = [each for each in sources if each is not total]
    parts = " and ".join(str(each.amounts["requests"]) for each in others)
    if total.model is not None:  # of a panel, whose parts are models
        return others, (f"{column} is the sum of {parts}, and is not counted again.",)
    note = f"{column} is the sum of {parts}: only {column} is counted."
    return [replace(total, name="")], (note,)


def _sum_of_others(sources: Sequence[Amounts], probe: pl.DataFrame) -> Amounts | None:
    """Return the first of three or more series that is the sum of all others; else None.

    A series with a name such as "Total" may differ from the sum by 2% of its largest amount.
    """
    if len(sources) < 3:
        return None
    values = [source.amounts["requests"].values(probe) for source in sources]
    sum_of_all = sum(values[1:], values[0])
    for source, value in zip(sources, values, strict=True):
        share = 0.02 if NAMED["total"].search(source.name) else 1e-6
        tolerance = share * abs(value).max(initial=0.0)
        sum_of_others = sum_of_all - value
        if value.any() and abs(sum_of_others - value).max() <= tolerance:
            return source
    return None
