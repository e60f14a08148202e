"""Every tiny instance against the best fleet found by counting them all."""

import numpy as np
import pytest

from planner.optimizer import greedy_target, solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.problem import INFEASIBLE, OPTIMAL
from tests.optimizer.problems import counted, random_problem

SEEDS = range(60)
COUNTED = {seed: counted(seed) for seed in SEEDS}


def test_the_instances_cover_both_outcomes_and_every_family():
    infeasible = [seed for seed in SEEDS if COUNTED[seed] is None]
    assert 10 <= len(infeasible) <= 50
    families = {
        binding.family
        for seed in SEEDS
        for binding in solve_window(random_problem(seed), gap=0.0).binding
    }
    assert families == {"local", "global", "capacity", "minimum", "maximum"}


WAYS = [("highs", "whole"), ("cbc", "whole"), ("highs", "decomposed")]


@pytest.mark.parametrize(("solver", "method"), WAYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_optimum_equals_counting(seed, solver, method):
    problem, best = random_problem(seed), COUNTED[seed]
    plan = solve_window(problem, solver=solver, method=method, gap=0.0)
    if best is None:
        assert plan.status == INFEASIBLE
        assert plan.conflict.endswith(".")
    else:
        assert plan.status == OPTIMAL
        assert plan.objective_usd == pytest.approx(best, abs=1e-4)
        assert plan.bound_usd == pytest.approx(best, abs=1e-4)
        assert plan.gap == pytest.approx(0.0, abs=1e-5)
        assert is_feasible(problem, plan.target)
        assert plan.conflict == ""


@pytest.mark.parametrize(("solver", "method"), WAYS)
@pytest.mark.parametrize("seed", [s for s in SEEDS if COUNTED[s] is not None][:12])
def test_a_loose_gap_is_kept_and_its_bound_is_valid(seed, solver, method):
    plan = solve_window(random_problem(seed), solver=solver, method=method, gap=0.3)
    assert plan.bound_usd <= COUNTED[seed] + 1e-4 <= plan.objective_usd + 2e-4
    assert plan.gap <= 0.3
    assert plan.gap == pytest.approx((plan.objective_usd - plan.bound_usd) / plan.fleet_usd)


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_keeps_its_limits_and_never_beats_the_optimum(seed):
    problem, best = random_problem(seed), COUNTED[seed]
    target = greedy_target(problem)
    assert np.all(target >= problem.minimum)
    assert np.all(target <= np.maximum(problem.minimum, problem.maximum))
    if is_feasible(problem, target):
        starts = np.maximum(0, target - problem.current)
        cost = (problem.usd_per_hour * target + problem.start_usd * starts).sum()
        assert best is not None
        assert cost >= best - 1e-6


def test_greedy_mostly_finds_a_plan_where_there_is_one():
    feasible = [seed for seed in SEEDS if COUNTED[seed] is not None]
    solved = [
        s for s in feasible if is_feasible(random_problem(s), greedy_target(random_problem(s)))
    ]
    assert len(solved) >= 0.8 * len(feasible)
