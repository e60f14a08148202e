"""``bin/manage outlook``: plan cost by month up to a year ahead, and GPU commitments."""

from __future__ import annotations

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Plan a representative week for each month after the traffic: cost by month, and how many "
        "GPUs to commit to. Exits 3 if no month has a plan."
    )
    kind = Run.Kind.OUTLOOK
