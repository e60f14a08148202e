"""What must hold whatever the figures: more to do never costs less, more to choose never more."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import plan_sequence, solve_window
from planner.optimizer.problem import INFEASIBLE
from tests.optimizer.problems import problem, random_problem

SEEDS = range(16)


def cost(instance):
    """The least cost; infinite where there is no plan."""
    plan = solve_window(instance, gap=0.0)
    return np.inf if plan.status == INFEASIBLE else plan.objective_usd


def at_most(a, b):
    return a <= b or a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_demand_never_costs_less(seed):
    instance = random_problem(seed)
    more = replace(instance, demand_tps=instance.demand_tps * 1.3)
    assert at_most(cost(instance), cost(more))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_smaller_epsilon_never_costs_more(seed):
    instance = random_problem(seed)
    assert at_most(cost(replace(instance, epsilon=instance.epsilon / 2)), cost(instance))


@pytest.mark.parametrize("seed", SEEDS)
def test_more_capacity_never_costs_more(seed):
    instance = random_problem(seed)
    assert at_most(
        cost(replace(instance, capacity_gpus=instance.capacity_gpus + 1)), cost(instance)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_another_gpu_type_never_hurts(seed):
    instance = random_problem(seed)

    def with_one_more(array, value):
        extra = np.full((*array.shape[:-1], 1), value, dtype=array.dtype)
        return np.concatenate([array, extra], axis=-1)

    wider = replace(
        instance,
        gpus=(*instance.gpus, "new"),
        current=with_one_more(instance.current, 0),
        theta_tps=with_one_more(instance.theta_tps, 200.0),
        usd_per_hour=with_one_more(instance.usd_per_hour, 7.0),
        start_usd=with_one_more(instance.start_usd, 1.0),
        gpus_per_instance=with_one_more(instance.gpus_per_instance, 1),
        capacity_gpus=with_one_more(instance.capacity_gpus, 2),
        minimum=with_one_more(instance.minimum, 0),
        maximum=with_one_more(instance.maximum, 2),
    )
    assert at_most(cost(wider), cost(instance))


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_the_same_problem_gives_the_same_plan(solver):
    first, again = (solve_window(problem(), solver=solver) for _ in range(2))
    np.testing.assert_array_equal(first.target, again.target)
    assert (first.objective_usd, first.bound_usd) == (again.objective_usd, again.bound_usd)


def test_steady_demand_stops_nothing_and_starts_nothing_after_the_first_window():
    plan = plan_sequence([problem()] * 4, period_start_s=np.arange(4) * 3600.0, period_s=3600.0)
    first = plan.windows[0]
    for window in plan.windows[1:]:
        np.testing.assert_array_equal(window.target, first.target)
        assert window.objective_usd == window.fleet_usd == first.fleet_usd
