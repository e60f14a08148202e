"""``bin/manage plan``: plan replicas over time by forecast and integer program."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Plan replicas for a scenario. Exits 3 with the conflict if no plan is feasible."
    examples = (
        "plan scenario.yml",
        "plan scenario.yml --gap 0.01 --time-limit 60",
        "plan scenario.yml --verify --json",
    )
    kind = Run.Kind.PLAN
