"""bin/manage ingest: read a trace or demand file into the column store."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from planner.errors import IngestError
from planner.ingest import IngestOptions
from planner.ingest.options import FORMATS
from planner.management.base import HeadroomCommand
from planner.services.traces import trace_ingest_path


class Command(HeadroomCommand):
    help = "Read a request trace or demand file; the same file is recognised and not read again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", type=Path, help=".csv, .jsonl or .parquet, also .gz and .zst")
        parser.add_argument("--format", default="auto", choices=FORMATS)
        parser.add_argument(
            "--map", action="append", default=[], metavar="field=column", help="e.g. arrival=ts"
        )
        parser.add_argument("--model", help="model of every request, where the file has none")
        parser.add_argument("--region", help="home region, likewise")
        parser.add_argument("--tier", help="service tier, likewise")
        parser.add_argument(
            "--strict", action="store_true", help="refuse the file at its first bad row"
        )

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        path: Path = options["file"]
        mapping = {}
        for pair in options["map"]:
            field, equals, column = pair.partition("=")
            if not (field and equals and column):
                raise IngestError(f"--map {pair}: write field=column, e.g. --map arrival=ts.")
            mapping[field] = column
        trace = trace_ingest_path(
            path=path,
            options=IngestOptions(
                name=path.name,
                format=options["format"],
                mapping=mapping,
                model=options["model"],
                region=options["region"],
                tier=options["tier"],
                strict=options["strict"],
            ),
            progress=lambda done: self.progress(done, f"Reading {path.name}"),
        )
        report: dict[str, Any] = trace.report | {"trace": trace.name, "file": path.name}
        return report | {"seconds": time.perf_counter() - begun}

    def words(self, answer: dict[str, Any]) -> str:
        lines = [
            f"{answer['file']} is stored as {answer['trace']} ({answer['format']}, "
            f"{answer['kind']}).",
            f"  rows {answer['rows']:,}, rejected {answer['rejected']:,}, "
            f"requests {answer['requests'] or 0:,.0f}",
            f"  from {answer['start']} to {answer['end']}",
        ]
        if answer["input_tokens"]:
            lines.append(
                f"  input tokens {answer['input_tokens']:,.0f}, "
                f"output tokens {answer['output_tokens'] or 0:,.0f}"
            )
        lines += [f"  rejected {n:,}: {why}" for why, n in answer["reject_reasons"].items()]
        lines += [
            f"  series {one['name']}: {one['bins']:,} bins, {one['requests'] or 0:,.0f} requests"
            for one in answer["series"]
        ]
        return "\n".join(lines + [f"  {note}" for note in answer["notes"]])
