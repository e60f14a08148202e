"""Whether engines count the same where a trace lies: DuckDB and Spark (local) over many rows.

    python -m bench.warehouse [--json] [--rows 100000000] [--folder FOLDER]

Needs `pip install 'ibis-framework[duckdb,pyspark]==12.0.0'` and Java. Rows are made in Parquet
files of 10 million (in ``--folder``, kept there and used again; 1.3 GB for 100 million), some of
them no requests; each engine then gives demand by minute, model and region, and every length.

- ``equal``: 1 where both answers are the same to the last row and number.
- ``duckdb_seconds``, ``spark_seconds``: wall clock of each, the start of Spark included.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.inputs.ingest import warehouse

PART = 10_000_000
BEGAN_S, DAYS, BIN_S = 1_772_323_200, 7, 60  # 1 March 2026


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(args.rows, args.folder or Path(scratch))
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def measure(rows: int, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    made = [_part(folder, start, min(PART, rows - start)) for start in range(0, rows, PART)]
    assert len(made) == len(list(folder.glob("*.parquet"))), f"{folder} holds other files"
    answers, figures = {}, {}
    for engine in warehouse.ENGINES:
        began = time.perf_counter()
        table = warehouse.table_of(warehouse.connect(engine), f"{folder}/*.parquet")
        answers[engine] = warehouse.aggregate(table, warehouse.columns_of(table, {}), BIN_S)
        figures[f"{engine}_seconds"] = round(time.perf_counter() - began, 1)
    first, other = answers.values()
    same = first.demand.equals(other.demand) and first.lengths.equals(other.lengths)
    return {
        "rows": first.rows,
        "equal": int(same and (first.rows, first.left_out) == (other.rows, other.left_out)),
        "left_out": first.left_out,
        "demand_rows": len(first.demand),
        "lengths_rows": len(first.lengths),
        **figures,
    }


def _part(folder: Path, start: int, rows: int) -> Path:
    """Write ``rows`` rows from number ``start`` on, the same in every call."""
    path = folder / f"{start}-{rows}.parquet"
    if path.exists():
        return path
    rng = np.random.default_rng([start, rows])
    isl = rng.lognormal(6.0, 1.0, rows).astype(np.int64)  # none for some
    moments = BEGAN_S * 1_000_000 + rng.integers(0, DAYS * 86_400_000_000, rows)
    moment = pl.Series(moments).cast(pl.Datetime("us"))
    table = pl.DataFrame(
        {
            "timestamp": moment,
            "input_tokens": isl,
            "output_tokens": rng.integers(0, 900, rows),
            "model": pl.Series(["a", "b", "c", "d"]).gather(rng.integers(0, 4, rows)),
            "region": pl.Series(["east", "west", "north"]).gather(rng.integers(0, 3, rows)),
        }
    )
    table.write_parquet(path)
    return path


if __name__ == "__main__":
    main()
