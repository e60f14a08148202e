"""``bin/manage size``: find the largest request rate of a replica and of pools within the SLOs."""

from __future__ import annotations

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Size one replica of each model on each GPU type: the largest rate within the SLOs."
    kind = Run.Kind.SIZE
