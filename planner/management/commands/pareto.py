"""bin/manage pareto: the plans between two objectives over a scenario's window."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "The least of one objective at levels of another, over all periods at once: every point "
        "a whole plan. Exits 3 where there is none."
    )
    kind = Run.Kind.PARETO

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
