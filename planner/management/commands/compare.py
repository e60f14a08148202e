"""``bin/manage compare``: test every policy, recommend one, and simulate all on one window."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Recommend a policy of a scenario by test days, and simulate every policy."
    examples = (
        "compare scenario.yml",
        "compare scenario.yml --policies lt-i,reactive",
        "compare scenario.yml --assurance safe",
    )
    kind = Run.Kind.COMPARE
