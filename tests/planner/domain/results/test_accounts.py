"""Where a plan and its replay differ in cost, the page says why."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from planner.domain.results.plan_versus_replay import plan_and_replay
from planner.domain.results.ranking import compare
from tests.planner.domain.results.test_verdict import run


def planned(usd: float, **paid: Any) -> Any:
    totals = SimpleNamespace(totals=SimpleNamespace(usd=usd))
    plan = cast(
        Any, SimpleNamespace(windows=(totals,), period_s=3600.0, lent=None, target=np.ones(1))
    )
    return replace(run("lt-i", 100, **paid), plan=plan)


def test_a_plan_whose_replay_pays_more_says_for_what() -> None:
    assert plan_and_replay([planned(95.0, after_cost_usd=4.5)]) == [
        "Forecast plan: the plan says $95.00 and its replay pays $100.00: $4.50 for work that was "
        "left when the window ended, $0.50 for other start times than planned, and for draining "
        "replicas."
    ]
    # What is nothing is not told, and what was left when the window ended is told once.
    (left,) = plan_and_replay([planned(95.0, after_cost_usd=5.0)])
    assert left.endswith("pays $100.00: $5.00 for work that was left when the window ended.")
    assert not any(
        "of its $100.00" in warning
        for warning in compare([planned(95.0, after_cost_usd=5.0)]).warnings
    )


def test_within_a_percent_nothing_is_said() -> None:
    assert plan_and_replay([planned(99.5), run("lt-i", 5), run("flat-peak", 7)]) == []
