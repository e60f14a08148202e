"""``bin/manage ingest``: import a trace or demand file into the column store."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.domain.trace_statistics.volumes import LISTED
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
            kind: Document = {"choices": list(option.choices)} if option.choices else {}
            if option.switch:
                kind = {"action": "store_true"}
            flags = (f"--{name}", "--sample-rate") if name == "sample" else (f"--{name}",)
            parser.add_argument(*flags, help=option.help, **kind)

    def answer(self, options: Namespace) -> Document:
        begun = time.perf_counter()
        path: Path = options.file
        try:
            trace = trace_ingest_path(
                path=path,
                options=IngestOptions.of(
                    path.name, vars(options), column_mapping(options.map, "--map ")
                ),
                name=options.name,
                progress=lambda done: self.progress(done, f"Reading {path.name}"),
            )
        except ColumnMissing as problem:
            raise PlannerError(f"{problem} Add --map {problem.field}=COLUMN.") from None
        report: Document = trace.report | {"trace": trace.name, "file": path.name}
        return report | {"seconds": time.perf_counter() - begun}

    def words(self, answer: Document) -> str:
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
        columns = answer["columns"].items()
        lines.append("  columns " + ", ".join(f"{field}={column}" for field, column in columns))
        for kind in ("models", "regions", "tiers"):
            if names := answer[kind][:LISTED]:
                lines.append(f"  {kind} {', '.join(names)}")
        lines += [f"  rejected {n:,}: {why}" for why, n in answer["reject_reasons"].items()]
        lines += [
            f"  series {each['name']}: {each['bins']:,} bins, {each['requests'] or 0:,.0f} requests"
            for each in answer["series"][:LISTED]
        ]
        if (count := len(answer["series"])) > LISTED:
            lines.append(f"  {count:,} series; the first {LISTED} are shown. --json has all.")
        remarks = dict.fromkeys([*answer["assumptions"], *answer["notes"]])
        return "\n".join(lines + [f"  {note}" for note in remarks])


def _tokens(number: float | None) -> str:
    return "not known" if number is None else f"{number:,.0f}"
