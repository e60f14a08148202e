"""``bin/manage simulate``: replay one policy request by request."""

import json
import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planner.management.base import Document
from planner.management.runs import RunCommand
from planner.models import Run
from planner.storage import row_arrays

OUT_NAMES = {"replicas.parquet": "series.parquet"}


class Command(RunCommand):
    help = "Simulate one policy on the requests of a scenario."
    examples = (
        "simulate scenario.yml --policy lt-i",
        "simulate scenario.yml --policy reactive --seed 2",
        "simulate scenario.yml --policy lt-i --out results",
    )
    kind = Run.Kind.SIMULATE
    leave_out = ("requests",)

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--out",
            type=Path,
            help="folder for result.json and Parquet tables, with one row per request",
        )

    def answer(self, options: Namespace) -> Document:
        """Simulate the policy; with --out, write the result and its tables to that folder."""
        folder: Path | None = options.out
        options.requests = True if folder else None  # keep the table with a row per request
        result = super().answer(options)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            run = Run.objects.get(pk=result["run"])
            for table in row_arrays.local_path(run.store).glob("*.parquet"):
                shutil.copy(table, folder / OUT_NAMES.get(table.name, table.name))
            (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        return result
