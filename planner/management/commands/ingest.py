"""``bin/manage ingest``: import a trace or demand file into the column store."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.domain.trace_statistics.volumes import MAX_LISTED_LABELS
from planner.errors import ColumnMissing, PlannerError
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import column_mapping
from planner.inputs.ingest.source import KINDS_OF_FILE
from planner.management.base import Document, HeadroomCommand
from planner.services.traces import trace_ingest_path


class Command(HeadroomCommand):
    help = "Read a request trace or counts per bin. A known file is not read again."
    examples = (
        "ingest trace.csv",
        "ingest demand.csv --format demand --timezone Europe/Berlin",
        "ingest logs.jsonl --map arrival=ts --model llama-3.1-8b",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help=KINDS_OF_FILE)
        parser.add_argument(
            "--map", action="append", default=[], metavar="field=column", help="e.g. arrival=ts"
        )
        parser.add_argument("--name", default="", help="name of the trace. Default: by the file")
        for name, option in OFFERED.items():
            flags = [f"--{name}"]
            if name == "sample":
                flags.append("--sample-rate")
            if option.switch:
                parser.add_argument(*flags, help=option.help, action="store_true")
            else:
                choices = list(option.choices) or None
                parser.add_argument(*flags, help=option.help, choices=choices)

    def answer(self, options: Namespace) -> Document:
        """Import the file, and return the report of its trace, with the seconds that it took."""
        begun = time.perf_counter()
        path: Path = options.file
        mapping = column_mapping(options.map, "--map ")
        try:
            trace = trace_ingest_path(
                path=path,
                options=IngestOptions.of(path.name, vars(options), mapping),
                name=options.name,
                progress=lambda fraction: self.progress(fraction, f"Reading {path.name}"),
            )
        except ColumnMissing as problem:
            raise PlannerError(f"{problem} Add --map {problem.field}=COLUMN.") from None
        report: Document = trace.report | {"trace": trace.name, "file": path.name}
        return report | {"seconds": time.perf_counter() - begun}

    def words(self, answer: Document) -> str:
        """Return the report of the trace as text: rows, times, columns, series and remarks."""
        lines = [
            f"{answer['file']} is stored as {answer['trace']} ({answer['format']}, "
            f"{answer['kind']}).",
            f"  rows {answer['rows']:,}, rejected {answer['rejected']:,}, "
            f"requests {answer['requests'] or 0:,.0f}",
            f"  from {answer['start']} to {answer['end']}",
        ]
        if answer["input_tokens"]:
            lines.append(
                f"  input tokens {_tokens(answer['input_tokens'])}, "
                f"output tokens {_tokens(answer['output_tokens'])}"
            )
        columns = [f"{field}={column}" for field, column in answer["columns"].items()]
        lines.append(f"  columns {', '.join(columns)}")
        for kind in ("models", "regions", "tiers"):
            names = answer[kind][:MAX_LISTED_LABELS]
            if names:
                lines.append(f"  {kind} {', '.join(names)}")
        for reason, rows in answer["reject_reasons"].items():
            lines.append(f"  rejected {rows:,}: {reason}")
        all_series = answer["series"]
        for series in all_series[:MAX_LISTED_LABELS]:
            lines.append(
                f"  series {series['name']}: {series['bins']:,} bins, "
                f"{series['requests'] or 0:,.0f} requests"
            )
        if len(all_series) > MAX_LISTED_LABELS:
            lines.append(
                f"  {len(all_series):,} series; the first {MAX_LISTED_LABELS} are shown. "
                "--json has all."
            )
        remarks = dict.fromkeys([*answer["assumptions"], *answer["notes"]])  # each once
        lines += [f"  {remark}" for remark in remarks]
        return "\n".join(lines)


def _tokens(number: float | None) -> str:
    """Return a number of tokens as text."""
    return "not known" if number is None else f"{number:,.0f}"
