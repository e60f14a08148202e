"""``bin/manage pareto``: compute plans between two objectives over a scenario's window."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import listed


class Command(RunCommand):
    help = (
        "The least of one objective at levels of another, over all periods at once: every point "
        "a whole plan. Exits 3 where there is none."
    )
    kind = Run.Kind.PARETO

    def words(self, answer: dict[str, Any]) -> str:
        points = [
            point | {"bends": "<- the curve bends here" if i == answer["knee"] else ""}
            for i, point in enumerate(answer["points"])
        ]
        first, second = (
            f"{name} ({unit})" for name, unit in zip(answer["of"], answer["units"], strict=True)
        )
        columns = {first: "first:,.2f", second: "second:,.2f", "status": "status", "": "bends"}
        return "\n".join([answer["headline"], *listed(points, columns)])
