"""``bin/manage pd-ratio``: rate all ratios of prefill to decode replicas and find the best."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Find the ratio of prefill to decode replicas with the most capacity within the SLO."
    examples = (
        "pd-ratio scenario.yml --service llama-3.1-70b",
        "pd-ratio scenario.yml --service llama-3.1-70b --json",
        "pd-ratio week --service llama-3.1-70b",
    )
    kind = Run.Kind.PD_RATIO
