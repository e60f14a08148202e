"""``bin/manage backtest``: compare forecasters by the plans that they lead to on past traffic."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import listed

EQUAL = {
    "forecaster": "name", "cost": "cost_usd:,.2f", "GPU-hours": "gpu_hours:,.1f",
    "starts": "starts:,.0f", "stops": "stops:,.0f", "beyond SLO": "spare:+.2%", "equal": "same",
    "planned for": "at", "regret": "regret:+.1%", "WAPE": "wape:.1%", "bias": "bias:+.1%",
    "as run": "as_run_cost_usd:,.2f", "beyond": "as_run_spare:+.2%",
}  # fmt: skip
BESIDE = {
    "beside them": "label", "cost": "cost_usd:,.2f", "GPU-hours": "gpu_hours:,.1f",
    "starts": "starts:,.0f", "stops": "stops:,.0f", "beyond SLO": "spare:+.2%", "": "word",
}  # fmt: skip


class Command(RunCommand):
    help = (
        "Each forecaster drives the same plan over past traffic: cost, GPU-hours and actions at "
        "equal attainment, beside flat fleets, a reactive policy and a perfect forecast."
    )
    kind = Run.Kind.BACKTEST

    def words(self, answer: dict[str, Any]) -> str:
        rows = [
            row | {"name": name, "same": "yes" if row["equal"] else "no"}
            for name, row in answer["methods"].items()
        ]
        lines = [answer["verdict"], "", *listed(rows, EQUAL)]
        if answer["beside"]:
            lines += ["", *listed(list(answer["beside"].values()), BESIDE)]
        notes = [answer["how"], *answer["left_out"], *answer["notes"]]
        return "\n".join([*lines, "", *(f"note: {note}" for note in notes)])
