"""The plan that a comparison shows, with the factor that it was made with."""

from types import SimpleNamespace
from typing import Any

from planner.domain.kinds.compare import plan_to_show
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.study import Setting
from planner.domain.traffic.forecast_percentile import CHOSEN, PlannedQuantile
from planner.policies.registry import traits_of


def test_the_factor_of_a_plan_that_is_not_recommended_is_said_too() -> None:
    """It was told as 1 for every policy but the recommended one: half of what was planned for."""
    plan, other_plan = object(), object()
    planned: Any = PlannedWindow(plan, (), None, (PlannedQuantile("chat", 0.9, 1.0, CHOSEN, ""),))  # type: ignore[arg-type]
    runs = {
        "flat-min": SimpleNamespace(plan=None, traits=traits_of("flat-min"), settings=()),
        "lt-i": SimpleNamespace(
            plan=other_plan, traits=traits_of("lt-i"), settings=(Setting("load_factor", "", 0.5),)
        ),
    }
    comparison: Any = SimpleNamespace(
        recommended=SimpleNamespace(policy="flat-min", parameters={}),
        ranking=["flat-min", "lt-i"],
        run=runs.get,
    )
    shown = plan_to_show(planned, comparison)
    assert shown.plan is other_plan and shown.quantiles[0].load_factor == 0.5
