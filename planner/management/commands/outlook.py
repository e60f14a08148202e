"""``bin/manage outlook``: plan cost by month up to a year ahead, and GPU commitments."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Plan the months after the traffic: cost by month, and how many GPUs to commit to. Each "
        "month has a representative week. Exits 3 if no month has a plan."
    )
    examples = ("outlook scenario.yml", "outlook week", "outlook scenario.yml --json")
    kind = Run.Kind.OUTLOOK
