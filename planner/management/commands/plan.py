"""``bin/manage plan``: plan replicas over time by forecast and integer program."""

from __future__ import annotations

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Plan replicas for a scenario. Exits 3 with the conflict if no plan is feasible."
    kind = Run.Kind.PLAN
