"""Instances that may be gone and a region that may be lost: against counting, by hand, by laws."""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.optimizer import greedy_target, solve_window
from planner.optimizer.figures import is_feasible
from planner.optimizer.horizon import solve_horizon
from planner.optimizer.problem import INFEASIBLE, OPTIMAL
from planner.optimizer.roles import role_sides
from planner.optimizer.window import can_decompose
from tests.optimizer.horizon.toys import best_by_counting as best_of_periods
from tests.optimizer.horizon.toys import random_horizon
from tests.optimizer.problems import (
    Counted,
    best_by_counting,
    problem,
    random_columns,
    random_problem,
    with_pools,
    with_spare,
)

SEEDS = range(60)


def plain(seed):
    return with_spare(random_problem(seed), seed)


def pooled(seed):
    return with_spare(with_pools(random_problem(seed), seed), seed)


def columns(seed):
    return with_spare(with_pools(random_columns(seed), seed), seed)


KINDS = {"plain": plain, "pooled": pooled, "columns": columns}
COUNTED = Counted(lambda kind, seed: KINDS[kind](seed))


def test_the_instances_cover_every_kind_of_spare():
    every = []
    for kind, make in KINDS.items():
        feasible = [make(seed) for seed in SEEDS if COUNTED[kind, seed] is not None]
        assert 8 <= len(feasible) <= 52
        assert any(candidate.lose_region for candidate in feasible)
        every += feasible
    assert {(candidate.by_pool, candidate.spare) for candidate in every} == {
        (p, k) for p in (0, 1) for k in range(3)
    }


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_optimum_equals_counting(seed, kind, solver):
    instance, best = KINDS[kind](seed), COUNTED[kind, seed]
    plan = solve_window(instance, solver=solver, gap=0.0, method="whole")
    if best is None:
        assert plan.status == INFEASIBLE
        assert plan.conflict.endswith(".")
    else:
        assert plan.status == OPTIMAL
        assert plan.objective_usd == pytest.approx(best, rel=3e-6, abs=1e-4)
        assert is_feasible(instance, plan.target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_decomposition_keeps_what_may_be_gone_of_a_pool(seed, kind):
    instance = replace(KINDS[kind](seed), by_pool=True, lose_region=False, stages=None, spot=None)
    best = best_by_counting(instance)
    assert can_decompose(instance)
    plan = solve_window(instance, gap=0.0, method="decomposed")
    if best is None:
        assert plan.status == INFEASIBLE
    else:
        assert plan.objective_usd == pytest.approx(best, rel=3e-6, abs=1e-4)
        assert is_feasible(instance, plan.target)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_periods_at_once_equal_counting(seed):
    toy = random_horizon(seed)
    first = with_spare(with_pools(toy.first, seed), seed)
    kept = {name: getattr(first, name) for name in ("pool_tps", "spare", "by_pool", "lose_region")}
    windows = (replace(w, demand_tps=0.3 * w.demand_tps, **kept) for w in toy.windows)
    toy = replace(toy, windows=tuple(windows))
    best, plan = best_of_periods(toy), solve_horizon(toy, gap=0.0)
    if best is None:
        assert plan.status == INFEASIBLE
    else:
        assert plan.status == OPTIMAL
        assert plan.objective == pytest.approx(best, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_keeps_its_limits_and_never_beats_the_optimum(seed, kind):
    instance, best = KINDS[kind](seed), COUNTED[kind, seed]
    target = greedy_target(instance)
    assert np.all(target >= instance.minimum)
    assert np.all(target <= np.maximum(instance.minimum, instance.maximum))
    if is_feasible(instance, target):
        starts = np.maximum(0, target - instance.current)
        assert best is not None
        cost = (instance.usd_per_hour * target + instance.start_usd * starts).sum()
        assert cost >= best - 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_mostly_finds_a_plan_where_there_is_one(kind):
    feasible = [seed for seed in SEEDS if COUNTED[kind, seed] is not None]
    served_all = [
        is_feasible(instance, greedy_target(instance)) for instance in map(KINDS[kind], feasible)
    ]
    assert sum(served_all) >= 0.7 * len(feasible)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_to_survive_never_costs_less(seed):
    """By pool asks for at least as much as by region: there every pool loses as many at once."""
    instance = replace(pooled(seed), spare=1, lose_region=False, by_pool=True)
    ways = [
        replace(instance, spare=0),
        replace(instance, by_pool=False),
        instance,
        replace(instance, lose_region=True),
    ]
    best = [best_by_counting(way) for way in ways]
    costs = [np.inf if cost is None else cost for cost in best]
    assert costs == sorted(costs)


def one_model(**changes):
    """100 tokens/s an instance, 250 wanted in each of three regions at 1, 2 and 4 dollars."""
    shape = (1, 3, 1)
    base = problem(
        models=("m",),
        regions=("a", "b", "c"),
        gpus=("H100",),
        current=np.zeros(shape, np.int64),
        theta_tps=np.array([[100.0]]),
        usd_per_hour=np.array([1.0, 2.0, 4.0]).reshape(shape),
        start_usd=np.zeros(shape),
        gpus_per_instance=np.ones((1, 1), np.int64),
        demand_tps=np.full((1, 3, 1), 250.0),
        capacity_gpus=np.full((3, 1), 20),
        minimum=np.zeros(shape, np.int64),
        maximum=np.full(shape, 20),
        epsilon=0.4,
    )
    return replace(base, **changes)


def test_by_hand():
    assert solve_window(one_model()).target.ravel().tolist() == [6, 1, 1]
    spare = solve_window(one_model(spare=1))
    assert spare.target.ravel().tolist() == [7, 2, 2]
    (bound,) = [limit for limit in spare.binding if limit.family == "global"]
    assert bound.sentence == (
        "m keeps 11 instances in all regions to serve their joint peak, 750 tokens/s. They serve "
        "800 with any instance of every pool gone."
    )
    lost = solve_window(one_model(lose_region=True))
    assert lost.target.ravel().tolist() == [7, 7, 1]  # 800 without either of the cheap ones
    (bound,) = [limit for limit in lost.binding if limit.family == "regions"]
    assert "their joint peak without any one of them, 750 tokens/s" in bound.sentence


def test_what_may_be_gone_is_named_in_a_conflict():
    short = solve_window(one_model(spare=2, capacity_gpus=np.full((3, 1), 4)))
    assert short.status == INFEASIBLE
    assert "with any 2 instances of every pool gone" in short.conflict
    few = solve_window(one_model(lose_region=True, capacity_gpus=np.array([[9], [3], [3]])))
    assert few.status == INFEASIBLE
    assert "750 tokens/s of m in all regions but a" in few.conflict


def test_by_region_any_of_its_columns_may_lose_it():
    two = replace(random_columns(0), stages=None, spot=None, spare=1, by_pool=False)
    assert len(role_sides(two)) == (two.theta_tps > 0).any(axis=0).sum()
    assert not can_decompose(two)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spare": -1}, "spare is -1"),
        ({"spare": 150, "by_pool": False}, "in more than 100 ways"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, says):
    with pytest.raises(ScenarioError, match=says):
        solve_window(problem(**changes))


def test_a_region_alone_cannot_be_lost():
    none = np.zeros((1, 1, 1), np.int64)
    alone = one_model(
        regions=("a",), current=none, minimum=none, maximum=none + 9, capacity_gpus=np.array([[9]]),
        usd_per_hour=none + 1.0, start_usd=none + 0.0, demand_tps=none + 250.0, lose_region=True,
    )  # fmt: skip
    with pytest.raises(ScenarioError, match="region"):
        solve_window(alone)
