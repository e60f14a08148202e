"""Plans made of cells that were solved apart, and prices raised block by block."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.decomposition import Cells, decompose
from planner.optimizer.decomposition.ascent import ascend, polish
from planner.optimizer.decomposition.repair import repair_plan
from planner.optimizer.figures import is_feasible
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL
from tests.optimizer.problems import best_by_counting, random_problem, with_pools
from tests.optimizer.test_decomposition import middling, no_check, random_prices


def cost_of(cells, plan):
    flat = plan.reshape(cells.need_tps.size, -1).astype(np.int32)
    return float(cells.column_usd(flat, np.arange(len(flat))).sum()) + cells.fixed_usd


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_repaired_keeps_every_limit_and_costs_no_less_than_the_best(seed, pooled):
    instance = random_problem(seed)
    instance = with_pools(instance, seed) if pooled else instance
    cells, best = Cells.from_problem(instance), best_by_counting(instance)
    if cells is None or best is None:
        return
    for prices in (cells.zero_prices, random_prices(cells, seed)):
        priced = cells.solve_at(prices)
        plan = repair_plan(cells, priced)
        if plan is not None:
            assert is_feasible(instance, cells.minimum + plan)
            assert cost_of(cells, plan) >= best - 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_polishing_only_raises_the_bound(seed):
    cells = Cells.from_problem(middling(seed))
    priced = ascend(cells, until=np.inf, check=no_check, overshoot=0.02)
    polished = polish(cells, begin=priced.prices, until=np.inf, check=no_check)
    assert polished.bound >= priced.bound - 1e-9 * abs(priced.bound)
    assert cells.solve_at(polished.prices).bound == polished.bound


@pytest.mark.parametrize("seed", range(6))
def test_without_columns_the_plan_holds_and_its_gap_is_true(seed, monkeypatch):
    monkeypatch.setattr("planner.optimizer.decomposition.solve.MANY_CELLS", 0)
    instance = middling(seed, 1.3)
    best = solve_window(instance, gap=1e-4, method="whole")
    apart = decompose(Cells.from_problem(instance), gap=1e-4, time_limit_s=3.0, check=no_check)
    assert best.status in (OPTIMAL, INFEASIBLE)
    if apart.target is None:
        return
    assert apart.status in (OPTIMAL, FEASIBLE)
    assert is_feasible(instance, apart.target)
    assert apart.bound <= best.objective_usd * (1 + 1e-6)
    cells = Cells.from_problem(instance)
    assert cost_of(cells, apart.target - cells.minimum) >= (best.bound_usd * (1 - 1e-6))


def many(models, regions):
    """Many small demands beside a few large ones, and too little of the cheapest type."""
    rng = np.random.default_rng(1)
    start = middling(5)
    theta = rng.uniform(3000, 4000, (models, 3)) * np.array([1.0, 1.5, 2.0])
    shape = (models, regions, 3)
    usd = np.broadcast_to(np.array([2.0, 3.2, 4.6]), shape)
    size = np.ones((models, 3), np.int64)
    demand = rng.lognormal(6.0, 1.6, (models, regions, 1)) * rng.uniform(0.5, 1, (*shape[:2], 4))
    return replace(
        start,
        models=tuple(f"m{i}" for i in range(models)),
        regions=tuple(f"r{i}" for i in range(regions)),
        current=rng.integers(0, 2, shape),
        theta_tps=theta,
        usd_per_hour=usd,
        start_usd=usd * 0.2,
        gpus_per_instance=size,
        demand_tps=demand,
        capacity_gpus=np.full((regions, 3), models * 2 // 3),
        minimum=np.zeros(shape, np.int64),
        maximum=np.full(shape, 1000),
        epsilon=0.8,
    )


def test_many_cells_are_planned_closely_without_columns(monkeypatch):
    monkeypatch.setattr("planner.optimizer.decomposition.solve.MANY_CELLS", 0)
    instance = many(60, 20)
    cells = Cells.from_problem(instance)
    decomposed = decompose(cells, gap=2e-3, time_limit_s=20.0, check=no_check)
    assert is_feasible(instance, decomposed.target)
    assert decomposed.status == OPTIMAL
