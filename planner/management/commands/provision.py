"""``bin/manage provision``: compare provisioning by operators, by layers and by whole replicas."""

from __future__ import annotations

from planner.domain.provisioning.windows import OBSERVED
from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Provision a scenario below the replica: GPUs, power and memory by operators, by layers "
        "and by whole replicas, for the busiest hour of its window."
    )
    kind = Run.Kind.PROVISION
    alone = {"over_time": OBSERVED}
