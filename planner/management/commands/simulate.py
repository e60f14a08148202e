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
        answer = super().answer(
            Namespace(**vars(options) | {"requests": True if options.out else None})
        )
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            store = Run.objects.values_list("store", flat=True).get(pk=answer["run"])
            for table in row_arrays.local_path(store).glob("*.parquet"):
                shutil.copy(table, options.out / OUT_NAMES.get(table.name, table.name))
            (options.out / "result.json").write_text(json.dumps(answer, indent=2) + "\n")
        return answer
