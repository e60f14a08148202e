"""``bin/manage provision``: compare provisioning by operators, by modules and by whole replicas."""

from planner.domain.provisioning.windows import OBSERVED
from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Count GPUs if operators or modules scale separately, instead of whole replicas. Shows "
        "GPUs, power and memory for the busiest hour of the window of a scenario."
    )
    examples = (
        "provision scenario.yml",
        "provision scenario.yml --level operator",
        "provision scenario.yml --level all --method greedy",
    )
    kind = Run.Kind.PROVISION
    alone = {"over_time": OBSERVED}
    groups = {
        "method": ("level", "method", "epsilon", "over_time"),
        "model of speed": ("kernels", "interference", "speeds", "batch_wait", "order",
                           "single_stream"),
        "encoder": ("images", "image_tokens"),
    }  # fmt: skip
