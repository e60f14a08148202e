"""``bin/manage aggregate``: compute the demand and the lengths of a trace without a copy of it."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.errors import IngestError
from planner.inputs.ingest import warehouse
from planner.inputs.ingest.options import column_mapping
from planner.management.base import Document, HeadroomCommand


class Command(HeadroomCommand):
    help = "Sum a large trace in place: demand per bin, and lengths."
    examples = (
        'aggregate "traces/*.parquet"',
        "aggregate requests.csv --map arrival=ts --bin 300",
        'aggregate "s3://logs/*.parquet" --engine duckdb --out demand',
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("source", help="Parquet or CSV files (a path or pattern), or a table")
        parser.add_argument(
            "--engine",
            choices=warehouse.ENGINES,
            default=warehouse.ENGINES[0],
            help="engine that computes the sums",
        )
        parser.add_argument("--bin", type=int, default=60, help="width of the bins in seconds")
        parser.add_argument(
            "--map", action="append", default=[], metavar="field=column", help="e.g. arrival=ts"
        )
        parser.add_argument("--out", type=Path, default=Path("."), help="folder for both files")

    def answer(self, options: Namespace) -> Document:
        """Write demand.csv and lengths.csv of the source, and return their counts and paths."""
        if not 1 <= options.bin <= 86_400:
            raise IngestError("--bin must be 1 to 86,400 s.")
        mapping = column_mapping(options.map, "--map ")
        try:
            table = warehouse.table_of(warehouse.connect(options.engine), options.source)
            columns = warehouse.columns_of(table, mapping)
            counts = warehouse.aggregate(table, columns, options.bin)
        except IngestError:
            raise
        except Exception as problem:  # each engine raises different exceptions
            first_line = str(problem).strip().split("\n", 1)[0][:300]
            raise IngestError(
                f"{options.source}: {options.engine} could not read it ({first_line})."
            ) from problem
        options.out.mkdir(parents=True, exist_ok=True)
        demand_path, lengths_path = options.out / "demand.csv", options.out / "lengths.csv"
        counts.demand.write_csv(demand_path)
        counts.lengths.write_csv(lengths_path)
        sums = {
            name: counts.demand[name].sum()
            for name in ("requests", "input_tokens", "output_tokens")
        }
        return {
            "rows": counts.rows,
            "left_out": counts.left_out,
            **sums,
            "bins": len(counts.demand),
            "bin_s": options.bin,
            "columns": columns,
            "demand": str(demand_path),
            "lengths": str(lengths_path),
        }

    def words(self, answer: Document) -> str:
        """Return the counts and the paths of both files as text."""
        return (
            f"{answer['requests']:,} requests of {answer['rows']:,} rows in {answer['bins']:,} "
            f"rows of demand by {answer['bin_s']} s: {answer['demand']} (for bin/manage ingest), "
            f"lengths: {answer['lengths']}.\n"
            f"{answer['left_out']:,} rows are ignored: no time, or invalid tokens."
        )
