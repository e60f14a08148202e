"""Tiny instances of every kind against the best fleet found by counting them all."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import greedy_target, solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.pools import is_nonlinear
from planner.optimizer.problem import INFEASIBLE, OPTIMAL
from planner.optimizer.roles import role_sides
from tests.optimizer.problems import (
    Counted,
    best_by_counting,
    counted,
    one_region,
    random_columns,
    random_problem,
    with_limits,
    with_pools,
    with_power,
    with_spare,
)

SEEDS = (*range(20), 24, 49, 55, 57)  # in the last ones budget, carbon and churn bind
KINDS = {
    "plain": random_problem,
    "limits": lambda seed: with_limits(random_problem(seed), seed),
    "columns": random_columns,
    "power": lambda seed: with_power(random_columns(seed), seed),
    "pools": one_region,
    "pools-limits": lambda seed: with_limits(one_region(seed), seed),
    "pools-columns": lambda seed: with_pools(random_columns(seed), seed),
    "spare": lambda seed: with_spare(random_problem(seed), seed),
    "spare-pools": lambda seed: with_spare(with_pools(random_problem(seed), seed), seed),
    "spare-columns": lambda seed: with_spare(with_pools(random_columns(seed), seed), seed),
}
COUNTED = Counted(lambda kind, seed: KINDS[kind](seed))
WAYS = [("highs", "auto"), ("highs", "whole"), ("cbc", "whole"), ("highs", "decomposed")]


def made(kind):
    """Return the instances of ``kind``, and those of them that have a plan."""
    instances = [KINDS[kind](seed) for seed in SEEDS]
    feasible = [KINDS[kind](seed) for seed in SEEDS if COUNTED[kind, seed] is not None]
    return instances, feasible


@pytest.mark.parametrize("kind", KINDS)
def test_the_instances_cover_both_outcomes(kind):
    instances, feasible = made(kind)
    assert 3 <= len(feasible) <= len(instances) - 3


def test_the_instances_cover_every_family_column_curve_and_spare():
    plans = [
        solve_window(instance, gap=0.0)
        for kind in ("plain", "limits")
        for instance in made(kind)[0]
    ]
    families = {limit.family for plan in plans for limit in plan.binding}
    assert families >= {
        "local", "global", "capacity", "minimum", "maximum", "budget", "carbon", "churn",
    }  # fmt: skip
    assert any(COUNTED["limits", seed] is None and counted(seed) is not None for seed in SEEDS)
    assert {len(role_sides(instance)) for instance in made("columns")[1]} == {1, 2, 4}
    assert any(is_nonlinear(instance).any() for instance in made("pools")[1])
    spare = [instance for kind in KINDS if "spare" in kind for instance in made(kind)[1]]
    assert any(instance.lose_region for instance in spare)
    assert {(instance.by_pool, instance.spare) for instance in spare} == {
        (p, k) for p in (0, 1) for k in range(3)
    }


@pytest.mark.parametrize(("solver", "method"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_optimum_equals_counting(seed, kind, solver, method):
    instance, best = KINDS[kind](seed), COUNTED[kind, seed]
    if method == "decomposed" and kind not in ("plain", "limits", "pools", "pools-limits"):
        # Cells stand for themselves only without roles and without redundancy across pools.
        instance = replace(instance, stages=None, spot=None, by_pool=True, lose_region=False)
        best = best_by_counting(instance)
    plan = solve_window(instance, solver=solver, method=method, gap=0.0)
    if best is None:
        assert plan.status == INFEASIBLE
        assert plan.conflict.endswith(".")
    else:
        assert plan.status == OPTIMAL
        assert plan.objective_usd == pytest.approx(best, rel=3e-6, abs=1e-4)
        assert plan.bound_usd == pytest.approx(best, rel=3e-6, abs=1e-4)
        assert plan.gap == pytest.approx(0.0, abs=1e-5)
        assert is_feasible(instance, plan.target)
        assert plan.conflict == ""
        assert not any(": " in limit.where for limit in plan.binding)


@pytest.mark.parametrize(("solver", "method"), WAYS)
@pytest.mark.parametrize("seed", [s for s in SEEDS if counted(s) is not None][:6])
def test_a_loose_gap_is_kept_and_its_bound_is_valid(seed, solver, method):
    plan = solve_window(random_problem(seed), solver=solver, method=method, gap=0.3)
    assert plan.bound_usd <= counted(seed) + 1e-4 <= plan.objective_usd + 2e-4
    assert plan.gap <= 0.3
    assert plan.gap == pytest.approx((plan.objective_usd - plan.bound_usd) / plan.fleet_usd)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "limits" not in kind])
def test_greedy_keeps_its_limits_never_beats_the_optimum_and_mostly_finds_a_plan(kind):
    found = []
    for seed in SEEDS:
        instance, best = KINDS[kind](seed), COUNTED[kind, seed]
        target = greedy_target(instance)
        assert np.all(target >= instance.minimum)
        assert np.all(target <= np.maximum(instance.minimum, instance.maximum))
        used = np.einsum("lrg,lg->rg", target, instance.gpus_per_instance)
        types = np.arange(used.shape[1]) if instance.types is None else instance.types
        fits = [
            np.all(used[:, types == row].sum(axis=1) <= instance.capacity_gpus[:, row])
            for row in np.unique(types)
        ]
        assert all(fits) or best is None
        feasible = is_feasible(instance, target)
        if feasible:
            starts = np.maximum(0, target - instance.current)
            cost = (instance.usd_per_hour * target + instance.start_usd * starts).sum()
            assert best is not None
            assert cost >= best - 1e-6
        if best is not None:
            found.append(feasible)
    assert sum(found) >= 0.7 * len(found)
