"""``bin/manage backtest``: compare forecasters by the plans that they lead to on past traffic."""

from __future__ import annotations

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Compare forecasters by the cost of their plans on past traffic, at equal SLO attainment. "
        "Static fleets, a reactive policy and a perfect forecast are included."
    )
    kind = Run.Kind.BACKTEST
