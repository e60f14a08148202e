"""``bin/manage pareto``: compute plans between two objectives over a scenario's window."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Compute plans that trade two objectives off. Exits 3 without a feasible plan."
    examples = ("pareto scenario.yml", "pareto week", "pareto scenario.yml --json")
    kind = Run.Kind.PARETO
