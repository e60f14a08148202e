"""Cells against counting, prices against duality, and what a plan by decomposition must keep."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import RunCancelled
from planner.optimizer import solve_window
from planner.optimizer.decomposition import Cells
from planner.optimizer.decomposition.ascent import ascend
from planner.optimizer.decomposition.cells import Prices
from planner.optimizer.decomposition.master import columns_near, relax, widest_band
from planner.optimizer.figures import is_feasible
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, PlanningProblem
from tests.optimizer.problems import best_by_counting, problem, random_problem, with_pools

SEEDS = range(8)


def no_check():
    """Nothing to stop for."""


def random_prices(cells, seed):
    """Prices that make some instances pay for themselves and others dear."""
    rng = np.random.default_rng(seed)
    return Prices(
        rng.exponential(1.0, cells.free_gpus.shape) * rng.integers(0, 2, cells.free_gpus.shape),
        rng.exponential(3.0, len(cells.joint_tps)) * rng.integers(0, 2, len(cells.joint_tps)),
        rng.exponential(0.3, len(cells.cap_rest)),
    )


def counted(cells, prices, model, region):
    """Every x of a cell that covers its need, and what each costs at ``prices``."""
    most = cells.max_extra[model, region]
    x = np.array(list(itertools.product(*(range(int(n) + 1) for n in most))))
    held = cells.served_tps(
        x.astype(np.int32), np.full(len(x), model * cells.need_tps.shape[1] + region)
    )
    x, held = (part[held >= cells.need_tps[model, region]] for part in (x, held))
    first, further = (array[model, region] for array in cells.instance_charges(prices))
    beyond = np.maximum(0, x - cells.running_count[model, region])
    cost = ((x - beyond) * first + beyond * further).sum(axis=1)
    return x, cost - (prices.demand / cells.mean_tps)[model] * held


def cells_of(seed, pooled=False):
    instance = random_problem(seed)
    cells = Cells.from_problem(with_pools(instance, seed) if pooled else instance)
    return pytest.skip("its limits contradict each other") if cells is None else cells


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_cell_is_solved_exactly(seed, pooled):
    cells = cells_of(seed, pooled)
    prices = random_prices(cells, seed)
    priced = cells.solve_at(prices)
    for model, region in np.ndindex(cells.need_tps.shape):
        x, cost = counted(cells, prices, model, region)
        assert priced.lowest_usd[model, region] == pytest.approx(cost.min(initial=np.inf))
        if len(x):
            cheapest = (x == priced.x[model, region]).all(axis=1)
            assert cost[cheapest] == pytest.approx(cost.min())


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_band_holds_every_column_within_it_and_no_other(seed, pooled):
    cells = cells_of(seed, pooled)
    prices = random_prices(cells, seed)
    priced = cells.solve_at(prices)
    if np.isinf(priced.bound):
        return
    columns = columns_near(cells, priced, width=7.0, max_columns=100_000).columns
    regions = cells.need_tps.shape[1]
    for model, region in np.ndindex(cells.need_tps.shape):
        x, cost = counted(cells, prices, model, region)
        expected = x[cost <= cost.min() + 7.0 + 1e-9]
        cell = model * regions + region
        tried = columns.x[columns.cell == cell]
        assert len(tried) == len(expected)
        assert {tuple(row) for row in tried} == {tuple(row) for row in expected}
    assert columns_near(cells, priced, width=7.0, max_columns=len(columns) - 1) is None


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_prices_prove_a_bound_and_the_relaxation_the_best(seed, pooled):
    instance, cells = random_problem(seed), cells_of(seed, pooled)
    best = best_by_counting(with_pools(instance, seed) if pooled else instance)
    for again in range(5):
        bound = cells.solve_at(random_prices(cells, 100 * seed + again)).bound
        assert best is None or bound <= best + 1e-9
    if best is None:
        return
    priced = ascend(cells, until=np.inf, check=no_check)
    everything = widest_band(cells, priced, at_most=1e6, max_columns=100_000)
    relaxed = relax(cells, everything.columns, 1.0, time_limit_s=10.0, check=no_check)
    assert relaxed.rows_violation == pytest.approx(0.0, abs=1e-9)
    assert priced.bound <= relaxed.usd + 1e-6
    assert priced.bound == pytest.approx(relaxed.usd, rel=0.05)
    assert cells.solve_at(relaxed.prices).bound == pytest.approx(relaxed.usd)
    assert relaxed.usd <= best + 1e-4


def middling(seed, scarcity=1.0):
    """8 models, 6 regions, 3 GPU types: too large to count, small enough for HiGHS as a whole."""
    rng = np.random.default_rng(seed)
    models, regions, gpus = shape = (8, 6, 3)
    usd = np.sort(rng.uniform(2, 7, gpus))
    theta = usd * rng.uniform(700, 1800, (models, 1)) * rng.uniform(0.8, 1.2, (models, gpus))
    size = rng.integers(1, 3, (models, gpus))
    usd = usd * size[:, None, :] * rng.uniform(0.9, 1.1, (1, regions, 1))
    return PlanningProblem(
        models=tuple(f"m{i}" for i in range(models)),
        regions=tuple(f"r{i}" for i in range(regions)),
        gpus=tuple(f"g{i}" for i in range(gpus)),
        current=rng.integers(0, 3, shape),
        theta_tps=theta.round(1),
        usd_per_hour=usd,
        start_usd=usd * 0.2,
        gpus_per_instance=size,
        demand_tps=rng.lognormal(8.5, 1.0, (models, regions, 1))
        * rng.uniform(0.5, 1, (*shape[:2], 4)),
        capacity_gpus=(rng.integers(9, 16, (regions, gpus)) * scarcity).astype(np.int64),
        minimum=rng.integers(0, 2, shape) * rng.integers(0, 2, shape),
        maximum=rng.integers(3, 12, shape),
        epsilon=float(rng.choice([0.3, 0.8])),
    )


def measured(instance):
    """Pools as sizing finds them: half of theta alone, 0.78 in a pair, 0.97 in eight."""
    counts = np.arange(1, 33)
    share = 1 - 0.5 * counts**-1.2
    pool = instance.theta_tps[..., None] * counts * share / share[-1]
    return replace(instance, pool_tps=pool)


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_the_whole_program(seed):
    instance = middling(seed)
    joint, apart = (
        solve_window(instance, gap=1e-4, method=method) for method in ("whole", "decomposed")
    )
    assert apart.status == joint.status
    if joint.status == OPTIMAL:
        assert is_feasible(instance, apart.target)
        assert max(joint.bound_usd, apart.bound_usd) <= min(
            joint.objective_usd, apart.objective_usd
        ) * (1 + 1e-6)
        assert apart.gap <= 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_whole_program_on_measured_pools(seed):
    """The program as one is slow here, so that its bound counts and not its end."""
    instance = measured(middling(seed, 2.0))
    apart = solve_window(instance, gap=0.02, method="decomposed")
    joint = solve_window(instance, gap=0.05, method="whole", time_limit_s=2.0)
    assert apart.status == OPTIMAL
    assert is_feasible(instance, apart.target)
    assert max(joint.bound_usd, apart.bound_usd) <= apart.objective_usd * (1 + 1e-6)
    if joint.status in (OPTIMAL, FEASIBLE):
        assert apart.bound_usd <= joint.objective_usd * (1 + 1e-6)


@pytest.mark.parametrize("pooled", [False, True])
def test_fleets_of_hundreds_of_instances_are_planned_closely(pooled):
    """Their cells have too many columns to list."""
    few = middling(0, 1.5)
    instance = replace(
        few,
        demand_tps=few.demand_tps * 10,
        capacity_gpus=few.capacity_gpus * 10,
        maximum=few.maximum * 10,
    )
    plan = solve_window(measured(instance) if pooled else instance, method="decomposed")
    assert plan.status in (OPTIMAL, FEASIBLE)
    assert plan.target.sum() > 500
    assert plan.gap <= 0.005


def test_a_cell_of_many_instances_is_bounded_closely():
    """Hundreds of instances of near-equal price per token: too many nodes to finish each cell."""
    rng = np.random.default_rng(7)
    many = middling(0)
    theta = rng.uniform(0.99, 1.01, many.theta_tps.shape) * many.usd_per_hour[:, 0] * 1000
    cells = Cells.from_problem(
        replace(
            many,
            theta_tps=theta,
            demand_tps=many.demand_tps * 300,
            capacity_gpus=many.capacity_gpus * 500,
            maximum=np.full(many.maximum.shape, 9000),
        )
    )
    priced = cells.solve_at(cells.zero_prices)
    columns, cell = priced.x.reshape(-1, 3).astype(np.int32), np.arange(48)
    costs = cells.column_usd(columns, cell).reshape(priced.lowest_usd.shape)
    assert np.all(np.einsum("lrg,lg->lr", priced.x, theta) >= cells.need_tps - 1e-6)
    assert np.all(priced.lowest_usd <= costs + 1e-9)
    assert costs == pytest.approx(priced.lowest_usd, rel=1e-3)


def test_scarcity_never_costs_less_until_there_is_no_plan():
    costs = []
    for scarcity in (2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2):
        plan = solve_window(middling(1, scarcity), gap=1e-6, method="decomposed")
        costs.append(np.inf if plan.status == INFEASIBLE else plan.bound_usd)
    assert np.isfinite(costs[0])
    assert np.isinf(costs[-1])
    assert all(a <= b * (1 + 1e-6) for a, b in itertools.pairwise(costs))


@pytest.mark.parametrize(
    ("instance", "way"),
    [
        (problem(), {"solver": "highs"}),
        (problem(), {"solver": "cbc"}),
        (middling(2), {"method": "decomposed"}),
    ],
)
def test_the_same_problem_gives_the_same_plan(instance, way):
    first, again = (solve_window(instance, **way) for _ in range(2))
    np.testing.assert_array_equal(first.target, again.target)
    assert (first.objective_usd, first.bound_usd) == (again.objective_usd, again.bound_usd)


def test_no_time_gives_no_plan_but_an_honest_name():
    plan = solve_window(middling(3), method="decomposed", time_limit_s=1e-9)
    assert plan.status == TIMEOUT
    assert 0.0 <= plan.bound_usd <= plan.objective_usd


def test_too_little_time_is_feasible_with_its_true_gap():
    best = solve_window(middling(4), gap=1e-6, method="whole")
    for limit in (0.02, 0.1, 0.5):
        plan = solve_window(middling(4), gap=0.0, method="decomposed", time_limit_s=limit)
        assert plan.status in (OPTIMAL, FEASIBLE, TIMEOUT)
        assert plan.bound_usd <= best.objective_usd * (1 + 1e-6)
        if plan.status != TIMEOUT:
            assert plan.objective_usd >= best.bound_usd * (1 - 1e-6)


@pytest.mark.parametrize("method", ["pulp", "whole", "decomposed"])
def test_cancel_comes_out_of_a_running_solve(method, monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)

    def cancel():
        raise RunCancelled

    with pytest.raises(RunCancelled):
        solve_window(middling(5), gap=0.0, method=method, check=cancel)


def test_a_cell_that_nothing_covers_has_no_plan():
    far = problem(maximum=np.ones((2, 2, 2), np.int64), demand_tps=problem().demand_tps * 2)
    plan = solve_window(far, method="decomposed")
    assert plan.status == INFEASIBLE
    assert "may grow to" in plan.conflict
    least = replace(problem(), minimum=np.full((2, 2, 2), 9))
    assert solve_window(least, method="decomposed").status == INFEASIBLE
