"""``bin/manage outlook``: plan cost by month up to a year ahead, and GPU commitments."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import listed

MONTHS = {
    "month": "month", "days": "days:.0f", "growth": "growth:.2f", "replicas": "mean_replicas:,.1f",
    "at most": "peak_replicas:,", "GPU-hours": "gpu_hours:,.0f", "cost, $": "cost_usd:,.0f",
    "committed, $": "cost_committed_usd:,.0f", "kWh": "energy_kwh:,.0f",
    "kg CO2e": "carbon_kg:,.0f", "": "status",
}  # fmt: skip
COMMITMENTS = {
    "commit to": "gpu", "region": "region", "term": "term", "GPUs": "gpus:,",
    "pays from": "pays_from:.0%", "saves, $": "saving_usd:,.0f",
}  # fmt: skip


class Command(RunCommand):
    help = (
        "Plan a representative week for every month ahead of the traffic: cost by month, and how "
        "many GPUs to commit to. Exits 3 where no month has a plan."
    )
    kind = Run.Kind.OUTLOOK

    def words(self, answer: dict[str, Any]) -> str:
        return "\n".join(
            [
                answer["headline"],
                *listed(answer["months"], MONTHS),
                *listed(answer["commitments"], COMMITMENTS),
                *answer["basis"],
            ]
        )
