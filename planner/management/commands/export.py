"""bin/manage export: a run's results as a file."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.exports import LATER, export_run, load_result
from planner.management.base import HeadroomCommand
from planner.selectors.runs import run_get


class Command(HeadroomCommand):
    help = "Write a run's results to a file: its plan as CSV, or everything as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("plan", help="number of a run, or the --json output of a command")
        parser.add_argument("--to", required=True, choices=["csv", "json", *LATER])
        parser.add_argument("--table", help="which table as CSV; left out: the plan")
        parser.add_argument("--out", type=Path, help="file to write")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        given = options["plan"]
        if given.isdigit():
            number = int(given)
        elif Path(given).is_file():
            number = load_result(Path(given).read_bytes(), given)["run"]
        else:
            raise PlannerError(
                f"{given}: neither the number of a run nor a file; plans print their run's number."
            )
        path = export_run(
            run=run_get(number),
            to=options["to"],
            folder=Path.cwd(),
            table=options["table"],
            out=options["out"],
        )
        return {"path": str(path), "run": number, "format": options["to"]}

    def words(self, answer: dict[str, Any]) -> str:
        return f"Wrote {answer['path']}"
