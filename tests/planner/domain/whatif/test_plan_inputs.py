"""A what-if of a plan with a small load factor counts growth in full."""

import pytest

from planner.domain.planning.planning import plan_load
from planner.domain.preparation import planned_of
from planner.domain.progress import silent
from planner.domain.study import Study
from planner.domain.whatif.plan_inputs import basis_of
from planner.inputs.scenario.schema import Scenario
from tests.planner.domain.recommend.test_trials import small as small  # the fixture


@pytest.mark.parametrize("factor", [0.3, 0.6, 0.9])
def test_growth_begins_at_the_largest_load_with_the_same_plan(
    small: tuple[Scenario, Study], factor: float
) -> None:
    _, study = small
    planned = planned_of(study, silent)

    def plan(times: float) -> list[list[int]]:
        load = planned.load.scaled(times)
        return plan_load(study.plan_input, load, silent).target.tolist()

    full = basis_of(study, planned, factor).load_factor
    assert factor <= full <= 1
    assert plan(full) == plan(factor)
    assert full == 1 or plan(full + 1.001 * (1 - factor) / 32) != plan(factor)
