"""``bin/manage sweep``: run a scenario for every pair of values of two settings."""

from argparse import ArgumentParser, Namespace
from contextlib import suppress

from planner.domain.kinds.registry import KINDS
from planner.domain.progress import part
from planner.domain.serialise import as_json
from planner.domain.whatif.figures import FIGURES
from planner.domain.whatif.settings import Axis
from planner.errors import EXPECTED
from planner.inputs.scenario.document import values_of
from planner.management.base import Document, HeadroomCommand
from planner.management.options import name_and_value
from planner.management.runs import load_scenario, report_text
from planner.models import Sweep
from planner.selectors.sweeps import DEFAULT, figure_by_name, sweep_grid
from planner.services.whatif import sweep_create, sweep_report
from planner.services.worker import run_execute


class Command(HeadroomCommand):
    sweep: Sweep
    help = "Run a scenario for every value of a setting, or every pair of values of two."
    examples = (
        "sweep scenario.yml --vary objective.spare=0,1",
        'sweep scenario.yml --vary "tiers[chat].ttft_ms=500,1000" --vary forecast.quantile=0.8,0.9',
        "sweep scenario.yml --vary objective.spare=0,1 --kind compare",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("scenario", help="scenario file (YAML), or a stored one's name or id")
        parser.add_argument(
            "--vary", action="append", required=True, metavar="KEY=A,B,..",
            help="scenario key and values, once or twice; null removes the value",
        )  # fmt: skip
        parser.add_argument("--kind", default="plan", choices=list(KINDS), help="kind of the runs")
        names = [figure.name for figure in FIGURES]
        parser.add_argument(
            "--figure", default=DEFAULT.name, choices=names, help="figure in the cells"
        )

    def answer(self, options: Namespace) -> Document:
        """Run the scenario for every combination of values, and return the grid of results."""
        axes = [_axis(text) for text in options.vary]
        document, _ = load_scenario(options.scenario, self.progress)
        self.sweep = sweep_create(
            owner=None, document=document, axes=axes, kind=options.kind, enqueue=False
        )
        # One run after the other, because each reuses the sizes that earlier runs found.
        runs = list(self.sweep.runs.order_by("cell"))
        for done, run in enumerate(runs):
            observer = part(self.progress, done / len(runs), (done + 1) / len(runs))
            with suppress(*EXPECTED):  # the cell of the run shows the error
                run_execute(run_id=run.pk, observer=observer, raise_errors=True)
        grid = as_json(sweep_grid(self.sweep, figure_by_name(options.figure)))
        return {"sweep": self.sweep.pk, "kind": self.sweep.kind, "axes": self.sweep.axes, **grid}

    def words(self, answer: Document) -> str:
        report = sweep_report(self.sweep, answer["figure"])
        return report_text(report, self.stdout)


def _axis(text: str) -> Axis:
    """Return the axis of a sweep, a setting and its values, from the text KEY=A,B."""
    key, values = name_and_value("--vary", text, "the setting and its values as KEY=A,B")
    return Axis(key, tuple(values_of(values, f"--vary {key}")))
