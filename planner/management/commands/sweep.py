"""``bin/manage sweep``: run a scenario for every pair of values of two settings."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.domain.kinds.registry import KINDS
from planner.domain.progress import part
from planner.domain.serialise import as_json
from planner.errors import EXPECTED, PlannerError
from planner.inputs.scenario.document import values_of
from planner.management.base import HeadroomCommand, load_scenario
from planner.models import Run, Sweep
from planner.outputs.table_text import (
    Cell,
    FigureTable,
    Head,
    Line,
    shown,
    text_table,
)
from planner.selectors.sweeps import DEFAULT, FIGURES, figure_named, sweep_grid
from planner.services.sweeps import Axis, sweep_create
from planner.services.worker import run_execute
from planner.templatetags.headroom import setting


class Command(HeadroomCommand):
    help = "Run a scenario once for every pair of values, as --vary tiers[chat].ttft_ms=500,1000."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("scenario", help="scenario file (YAML), or a stored one's name or id")
        parser.add_argument(
            "--vary", action="append", required=True, metavar="KEY=A,B,..",
            help="a setting by its address and its values; once or twice; null leaves it out",
        )  # fmt: skip
        parser.add_argument("--kind", default="plan", choices=list(KINDS), help="of every run")
        names = [figure.name for figure in FIGURES]
        parser.add_argument("--figure", default=DEFAULT.name, choices=names, help="in the cells")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        axes = [_axis(text) for text in options["vary"]]
        document, _ = load_scenario(options["scenario"], self.progress)
        sweep = sweep_create(
            owner=None, document=document, axes=axes, kind=options["kind"], enqueue=False
        )
        self._execute(sweep)
        grid: dict[str, Any] = as_json(sweep_grid(sweep, figure_named(options["figure"])))
        return {"sweep": sweep.pk, "kind": sweep.kind, "axes": sweep.axes, **grid}

    def _execute(self, sweep: Sweep) -> None:
        """Execute the runs one after the other in this process.

        Each run reuses the sizes that earlier runs found.
        """
        runs = list(sweep.runs.order_by("cell"))
        for done, run in enumerate(runs):
            observer = part(self.progress, done / len(runs), (done + 1) / len(runs))
            try:
                run_execute(run_id=run.pk, observer=observer, surface=True)
            except EXPECTED:
                continue  # its cell shows the error

    def words(self, answer: dict[str, Any]) -> str:
        first, *more = answer["axes"]
        heads = more[0]["values"] if more else [answer["figure"]]
        corner = first["key"] + (f" \\ {more[0]['key']}" if more else "")
        lines = [
            Line("", _words(value), tuple(_cell(cell, answer["unit"]) for cell in row))
            for value, row in zip(first["values"], answer["rows"], strict=True)
        ]
        table = FigureTable(tuple(Head(_words(head)) for head in heads), tuple(lines))
        failed = [
            f"run {cell['run']}: {cell['problem']}"
            for row in answer["rows"]
            for cell in row
            if cell["problem"]
        ]
        title = f"{figure_named(answer['figure']).label}, sweep {answer['sweep']}"
        return "\n".join([title, *text_table(table, corner), *failed])


def _axis(text: str) -> Axis:
    """Return a setting and its values from KEY=A,B."""
    key, sign, values = text.partition("=")
    if not sign:
        raise PlannerError(f"--vary {text}: write the setting and its values as KEY=A,B.")
    return Axis(key.strip(), tuple(values_of(values, f"--vary {key.strip()}")))


def _words(value: Any) -> str:
    """Return a value as text."""
    return "left out" if value is None else setting(value)


def _cell(cell: dict[str, Any], unit: str) -> Cell:
    """Return a cell of the grid."""
    if cell["value"] is None:
        return Cell("-" if cell["state"] == Run.State.COMPLETED else cell["state"])
    return Cell(shown(cell["value"], unit, 2), "best" if cell["best"] else "")
