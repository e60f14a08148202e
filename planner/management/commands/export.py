"""``bin/manage export``: write a run to a file."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from django.utils import timezone

from planner.domain.options import options_in, options_of
from planner.errors import PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.management.options import add_options, options_from_command_line
from planner.models import Run
from planner.outputs import load_result
from planner.outputs.files import FORMATS
from planner.outputs.options import ExportOptions
from planner.selectors.runs import latest_plan, run_get
from planner.services.exports import run_export


class Command(HeadroomCommand):
    help = "Write a run to a file: figures, a report, or manifests of its plan."
    examples = (
        "export 12 --to pdf",
        "export 12 --to keda --out scaledobjects.yaml",
        "export plan.json --to xlsx",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "plan", help="number or name of a run, or the --json output of a command"
        )
        parser.add_argument("--to", required=True, choices=[*FORMATS], help="format")
        parser.add_argument("--out", type=Path, help="file to write")
        add_options(parser, options_in(ExportOptions))

    def answer(self, options: Namespace) -> Document:
        """Write the file, and return its path, the run and the format."""
        run = _run(options.plan)
        export_options = options_of(
            ExportOptions, options_from_command_line(ExportOptions, options)
        )
        file = run_export(
            run=run, to=options.to, options=export_options, now=timezone.now(), by=None
        )
        path: Path = options.out or Path.cwd() / file.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        except OSError as error:
            raise PlannerError(
                f"{path} cannot be written ({error.strerror}). Choose another file with --out."
            ) from None
        return {"path": str(path), "run": run.pk, "format": options.to}

    def words(self, answer: Document) -> str:
        return f"Wrote {answer['path']}"


def _run(source: str) -> Run:
    """Return a run by number, by name, or from the --json output of a command."""
    if source.isdigit():
        return run_get(int(source))
    path = Path(source)
    if path.is_file():
        result = load_result(path.read_bytes(), source)
        return run_get(result["run"])
    run = latest_plan(source)
    if run is None:
        raise PlannerError(
            f"{source}: neither the number or name of a run nor a file; plans print their run's "
            "number."
        )
    return run
