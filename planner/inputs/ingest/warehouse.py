"""Aggregate traces where they are stored, because they are too large to copy.

Only sums and counts come back. One set of Ibis expressions serves every engine: Spark, and DuckDB,
which is embedded and reads files larger than memory. All amounts are whole numbers, so the engines
agree exactly.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.columns import Resolver
from planner.inputs.ingest.options import LABELS, MAX_TOKENS, NEEDED_FIELDS, IngestOptions

try:
    import ibis
except ModuleNotFoundError:  # engines are large, so an optional dependency
    ibis = None

ENGINES = ("duckdb", "spark")
DEMAND_ROWS = 20_000_000  # most bins of all series; more are no summary


@dataclass(frozen=True, slots=True)
class TraceAggregates:
    """The demand and the lengths of a trace, aggregated in a warehouse."""

    demand: pl.DataFrame  # bin_start, labels, requests, input_tokens, output_tokens; by time
    lengths: pl.DataFrame  # of (input or output), tokens, requests: count of each length
    rows: int
    left_out: int  # rows without a time, or with invalid tokens


def connect(engine: str) -> Any:
    """Connect to an engine on this machine; Spark reads ``SPARK_*`` and its own configuration."""
    if ibis is None:
        raise IngestError(
            "Aggregating traces where they lie needs an engine: "
            ".venv/bin/python -m pip install -r requirements-warehouse.txt"
        )
    return ibis.duckdb.connect() if engine == "duckdb" else ibis.pyspark.connect()


def table_of(backend: Any, source: str) -> Any:
    """Return the table of files (a path or pattern), or the engine's table ``source``."""
    name = re.sub(r"\.(gz|zst)$", "", source.lower())
    if name.endswith(".parquet"):
        return backend.read_parquet(source)
    if name.endswith(".csv"):
        return backend.read_csv(source)
    return backend.table(source)


def columns_of(table: Any, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field, by ``mapping`` or by a well-known name."""
    resolver = Resolver(table.columns, IngestOptions(mapping=mapping).mapping, "The table")
    columns = {field: resolver.column(field) for field in (*NEEDED_FIELDS, *LABELS)}
    if missing := [field for field in NEEDED_FIELDS if columns[field] is None]:
        raise resolver.missing(missing[0])
    return {field: column for field, column in columns.items() if column}


def aggregate(table: Any, columns: Mapping[str, str], bin_s: int) -> TraceAggregates:
    """Return the demand of a table per bin of ``bin_s`` seconds, and a histogram of its lengths.

    ``columns`` are those of ``columns_of``, by field. The demand is split by the labels among them.
    The histogram has the number of requests of each prompt length and each output length. Raise
    IngestError for too many bins, or if no row is a request.
    """
    rows = _rows(table, columns, bin_s)
    good = rows.filter(
        rows.bin.notnull()
        & rows.input_tokens.between(1, MAX_TOKENS)
        & rows.output_tokens.between(1, MAX_TOKENS)
    )
    demand = _demand(good, [label for label in LABELS if label in columns])
    histograms = []
    for side in ("input", "output"):
        counts = good.group_by(tokens=good[f"{side}_tokens"]).aggregate(requests=good.count())
        histogram = _fetch(counts).sort("tokens")
        histograms.append(histogram.select(pl.lit(side).alias("of"), "tokens", "requests"))
    requests = int(demand["requests"].sum())
    total = int(rows.count().to_pyarrow().as_py())
    if not requests:
        raise IngestError(
            f"None of {total:,} rows is a request. A request has a time, and 1 to "
            f"{MAX_TOKENS:,} tokens in {columns['input_tokens']} and in "
            f"{columns['output_tokens']}. Read amounts per bin with bin/manage ingest."
        )
    return TraceAggregates(demand, pl.concat(histograms), total, total - requests)


def _demand(requests: Any, labels: Sequence[str]) -> pl.DataFrame:
    """Return requests and tokens by bin and labels; raise IngestError for too many bins."""
    grouped = requests.group_by(["bin", *labels]).aggregate(
        requests=requests.count(),
        input_tokens=requests.input_tokens.sum(),
        output_tokens=requests.output_tokens.sum(),
    )
    demand = _fetch(grouped.limit(DEMAND_ROWS + 1)).sort("bin", *labels)
    if len(demand) > DEMAND_ROWS:
        raise IngestError(
            f"The demand has over {DEMAND_ROWS:,} rows: choose wider bins (--bin), or fewer labels."
        )
    moments = pl.from_epoch(demand["bin"], time_unit="s").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    return demand.select(moments.alias("bin_start"), pl.exclude("bin"))


def _rows(table: Any, columns: Mapping[str, str], bin_s: int) -> Any:
    """Return bin start (epoch s), labels and tokens of each request; null if missing."""
    arrival = table[columns["arrival"]]
    if arrival.type().is_timestamp():
        arrival = arrival.epoch_seconds()
    elif not arrival.type().is_numeric():
        arrival = arrival.cast("timestamp").epoch_seconds()
    bins = (arrival / bin_s).floor().cast("int64") * bin_s
    sides = ("input_tokens", "output_tokens")
    tokens = {name: table[columns[name]].cast("int64") for name in sides}
    labels = {name: table[columns[name]].cast("string") for name in LABELS if name in columns}
    return table.select(bin=bins, **tokens, **labels)


def _fetch(expression: Any) -> pl.DataFrame:
    """Return the result of an Ibis expression, with whole numbers of 64 bits in every engine."""
    frame = pl.DataFrame(expression.to_pyarrow())
    numeric = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    return frame.with_columns(pl.col(numeric).cast(pl.Int64))
