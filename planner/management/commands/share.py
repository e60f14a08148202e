"""``bin/manage share``: let several models run on one GPU, and replay the effect."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Let models share GPUs. Models share one by memory, or load their weights in turns. A "
        "replay of each GPU checks every SLO."
    )
    examples = (
        "share scenario.yml",
        "share scenario.yml --by time --hours 24",
        "share scenario.yml --json",
    )
    kind = Run.Kind.SHARE
