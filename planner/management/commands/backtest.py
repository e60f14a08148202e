"""``bin/manage backtest``: compare forecasters by the plans that they lead to on past traffic."""

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Compare forecasters by the cost of their plans on past traffic. SLO attainment is equal. "
        "Static fleets, a reactive policy and a perfect forecast are included."
    )
    examples = (
        "backtest scenario.yml",
        "backtest scenario.yml --seed 2",
        "backtest scenario.yml --json",
    )
    kind = Run.Kind.BACKTEST
