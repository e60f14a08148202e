"""Windows in a row: each starts from the fleet the one before asked for."""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import RunCancelled, ScenarioError
from planner.optimizer import plan_sequence, solve_window
from planner.optimizer.problem import INFEASIBLE, OPTIMAL
from tests.optimizer.problems import problem

DAY = np.arange(5) * 900.0


def rising(count=5):
    base = problem()
    return [replace(base, demand_tps=base.demand_tps * scale) for scale in range(1, count + 1)]


def test_each_window_starts_from_the_target_before_it():
    problems = rising()
    plan = plan_sequence(problems, period_start_s=DAY, period_s=900.0)
    current = problems[0].current
    for window, problem_ in zip(plan.windows, problems, strict=True):
        alone = solve_window(replace(problem_, current=current))
        np.testing.assert_array_equal(window.target, alone.target)
        current = window.target
    assert plan.target.shape == (5, 2, 2, 2)
    np.testing.assert_array_equal(plan.initial, problems[0].current)
    np.testing.assert_array_equal(plan.demand_tps[2], problems[2].demand_tps.max(axis=2))
    assert (plan.period_s, list(plan.period_start_s)) == (900.0, list(DAY))


def test_steady_demand_stops_nothing_and_starts_nothing_after_the_first_window():
    plan = plan_sequence([problem()] * 4, period_start_s=DAY[:4], period_s=900.0)
    first = plan.windows[0]
    for window in plan.windows[1:]:
        np.testing.assert_array_equal(window.target, first.target)
        assert window.objective_usd == window.fleet_usd == first.fleet_usd


def test_progress_counts_windows_and_what_it_raises_ends_the_run():
    seen = []
    plan_sequence(
        rising(2),
        period_start_s=DAY[:2],
        period_s=900.0,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]

    def cancel(done, total):
        if done == 1:
            raise RunCancelled

    with pytest.raises(RunCancelled):
        plan_sequence(rising(), period_start_s=DAY, period_s=900.0, progress=cancel)


def test_a_window_without_a_plan_does_not_end_the_sequence():
    problems = rising(3)
    problems[1] = replace(problems[1], demand_tps=problems[1].demand_tps * 1000)
    plan = plan_sequence(problems, period_start_s=DAY[:3], period_s=900.0)
    assert [window.status for window in plan.windows] == [OPTIMAL, INFEASIBLE, OPTIMAL]
    assert plan.windows[1].conflict
    assert plan.windows[1].target.sum() > plan.windows[0].target.sum()


@pytest.mark.parametrize(
    ("problems", "starts", "says"),
    [
        ([], DAY[:0], "no window to plan"),
        (rising(2), DAY[:3], "2 windows need"),
        ([problem(), problem(models=("small", "other"))], DAY[:2], "the same models"),
    ],
)
def test_a_sequence_that_makes_no_sense_is_refused(problems, starts, says):
    with pytest.raises(ScenarioError, match=says):
        plan_sequence(problems, period_start_s=starts, period_s=900.0)
