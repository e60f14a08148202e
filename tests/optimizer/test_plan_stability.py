"""A plan changes little when little changed, and never costs more than the gap allows."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.problem import FEASIBLE, OPTIMAL
from tests.optimizer.problems import best_by_counting, counted, every_fleet, problem, random_problem

SEEDS = [seed for seed in range(20) if counted(seed) is not None]


def changes(instance, target):
    return np.abs(target - instance.current).sum(axis=(-1, -2, -3))


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_fleet_within_the_gap_changes_less(seed, solver):
    instance, gap = random_problem(seed), 0.1
    plan = solve_window(instance, gap=gap, stable=True, solver=solver)
    assert plan.status in (OPTIMAL, FEASIBLE)
    assert is_feasible(instance, plan.target)
    assert plan.bound_usd <= best_by_counting(instance) + 1e-4
    assert plan.gap <= gap + 1e-6
    fleets = every_fleet(instance)
    fleets = fleets[[is_feasible(instance, x) for x in fleets]]
    starts = np.maximum(0, fleets - instance.current)
    cost = (instance.usd_per_hour * fleets + instance.start_usd * starts).sum(axis=(1, 2, 3))
    near = fleets[cost <= plan.objective_usd + 1e-9]
    # Among plans at most as dear as this one none has over a gap's worth fewer changes.
    assert changes(instance, plan.target) <= changes(instance, near).min() + 1


def test_a_little_more_demand_moves_little():
    """A dearer region is kept running where moving would save less than the gap."""
    before = solve_window(problem(), gap=0.0).target
    nudged = problem(current=before, demand_tps=problem().demand_tps * 1.01)
    free = solve_window(nudged, gap=0.05, stable=False)
    kept = solve_window(nudged, gap=0.05, stable=True)
    assert changes(nudged, kept.target) <= changes(nudged, free.target)
    same = replace(nudged, demand_tps=problem().demand_tps)
    assert changes(same, solve_window(same, gap=0.05, stable=True).target) == 0
