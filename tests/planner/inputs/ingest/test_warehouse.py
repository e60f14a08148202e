"""Demand and lengths of a trace that stays where it lies: by every engine what polars counts."""

from datetime import UTC, datetime
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest

from planner.errors import IngestError
from planner.inputs.ingest import warehouse

engine_here = pytest.mark.skipif(
    not find_spec("ibis"), reason="no engine here: pip install -r requirements-warehouse.txt"
)
BIN_S = 300


@pytest.fixture(scope="module")
def log():
    """Requests of two days, some rows of which are none."""
    rng = np.random.default_rng(0)
    n = 20_000
    began = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    arrived = began * 1_000_000 + rng.integers(0, 2 * 86_400_000_000, n)
    isl = rng.lognormal(6, 1, n).astype(np.int64) + 1
    isl[::97] = 0
    return pl.DataFrame(
        {
            "Timestamp": pl.Series(arrived).cast(pl.Datetime("us")),
            "Context Tokens": isl,
            "generated_tokens": rng.integers(1, 900, n),
            "model": rng.choice(["a", "b"], n),
            "note": ["x"] * n,
        }
    )


def expected(log):
    good = log.filter(pl.col("Context Tokens") >= 1)
    bin_start = pl.col("Timestamp").dt.epoch("s") // BIN_S * BIN_S
    demand = good.group_by(bin_start.alias("bin"), "model").agg(
        pl.len().cast(pl.Int64).alias("requests"),
        pl.col("Context Tokens").sum().alias("input_tokens"),
        pl.col("generated_tokens").sum().alias("output_tokens"),
    )
    start = pl.from_epoch("bin").dt.strftime("%Y-%m-%dT%H:%M:%SZ").alias("bin_start")
    return good, demand.sort("bin", "model").select(start, pl.exclude("bin"))


@engine_here
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_every_engine_counts_the_same(log, tmp_path, engine):
    if engine == "spark" and not find_spec("pyspark"):
        pytest.skip("pyspark is not here: pip install 'ibis-framework[pyspark]'")
    (tmp_path / "log").mkdir()
    for i in range(3):
        log[i::3].write_parquet(tmp_path / "log" / f"{i}.parquet")
    table = warehouse.table_of(warehouse.connect(engine), f"{tmp_path}/log/*.parquet")
    columns = warehouse.columns_of(table, {})
    assert columns == {"arrival": "Timestamp", "input_tokens": "Context Tokens",
                       "output_tokens": "generated_tokens", "model": "model"}  # fmt: skip
    sums = warehouse.aggregate(table, columns, BIN_S)
    good, demand = expected(log)
    assert sums.demand.equals(demand)
    assert (sums.rows, sums.left_out) == (len(log), len(log) - len(good))
    for of, column in (("input", "Context Tokens"), ("output", "generated_tokens")):
        counted = good[column].value_counts().sort(column)
        counts = sums.lengths.filter(of=of)
        assert counts["tokens"].to_list() == counted[column].to_list()
        assert counts["requests"].to_list() == counted["count"].to_list()


@engine_here
def test_seconds_are_a_time_too(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,isl,osl\n0,1,2\n299.9,1,2\n300,5,6\n,1,1\n")
    table = warehouse.table_of(warehouse.connect("duckdb"), str(path))
    sums = warehouse.aggregate(table, warehouse.columns_of(table, {}), BIN_S)
    assert sums.demand.rows() == [
        ("1970-01-01T00:00:00Z", 2, 2, 4),
        ("1970-01-01T00:05:00Z", 1, 5, 6),
    ]
    assert sums.left_out == 1


@engine_here
def test_a_column_that_is_not_there_is_told(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("when,isl,osl\n0,1,2\n")
    table = warehouse.table_of(warehouse.connect("duckdb"), str(path))
    with pytest.raises(IngestError, match="Choose from when, isl, osl"):
        warehouse.columns_of(table, {})
    with pytest.raises(IngestError, match="no such column"):
        warehouse.columns_of(table, {"arrival": "wen"})
    assert warehouse.columns_of(table, {"arrival": "when"})["arrival"] == "when"
    path.write_text("t,isl,osl\n0,0,0\n")
    table = warehouse.table_of(warehouse.connect("duckdb"), str(path))
    with pytest.raises(IngestError, match="None of 1 rows is a request"):
        warehouse.aggregate(table, warehouse.columns_of(table, {}), BIN_S)


def test_without_an_engine_what_to_install_is_told(monkeypatch):
    monkeypatch.setattr(warehouse, "ibis", None)
    with pytest.raises(IngestError, match="needs an engine"):
        warehouse.connect("duckdb")
