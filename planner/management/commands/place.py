"""``bin/manage place``: place replicas in the network, and show the effect on requests."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Place the replicas of a scenario in its network. Compares Algorithm 4 of HeteroScale, "
        "the exact placement and a baseline that ignores topology, by their effect on requests."
    )
    examples = ("place scenario.yml", "place week", "place scenario.yml --json")
    kind = Run.Kind.PLACE
