"""``bin/manage size``: find the largest request rate of a replica and of pools within the SLOs."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Size one replica of each model on each GPU type: the largest rate within the SLOs."
    examples = (
        "size scenario.yml",
        "size scenario.yml --isl 4000 --osl 1000",
        "size scenario.yml --json",
    )
    kind = Run.Kind.SIZE
