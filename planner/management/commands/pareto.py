"""bin/manage pareto: the plans between two objectives over a scenario's window."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.studies.commands.pareto import NAMES, POINTS


class Command(RunCommand):
    help = (
        "The least of one objective at levels of another, over all periods at once: every point "
        "a whole plan. Exits 3 where there is none."
    )
    kind = Run.Kind.PARETO

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--of", default="cost,carbon", help=f"two of {', '.join(NAMES)}; default cost,carbon"
        )
        parser.add_argument("--points", type=int, default=POINTS, help=f"default {POINTS}")

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"of": options["of"], "points": options["points"]}

    def words(self, answer: dict[str, Any]) -> str:
        first, second = answer["of"]
        units = answer["units"]
        rows = [answer["headline"], f"{first} ({units[0]}), {second} ({units[1]}), status"]
        rows += [
            f"{point['first']:,.2f} {point['second']:,.2f} {point['status']}"
            + ("  <- the curve bends here" if i == answer["knee"] else "")
            for i, point in enumerate(answer["points"])
        ]
        return "\n".join(rows)
