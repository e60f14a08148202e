"""All periods at once: against counting, and by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from planner.errors import RunCancelled
from planner.optimizer.horizon import solve_horizon
from planner.optimizer.problem import INFEASIBLE, OPTIMAL
from planner.optimizer.program.cuts import facets
from tests.optimizer.horizon.toys import best_by_counting, random_horizon, steps
from tests.optimizer.problems import with_pools, with_spare

SEEDS = (*range(40), 63)  # the last one has stages
COUNTED = {seed: best_by_counting(random_horizon(seed)) for seed in SEEDS}
FEASIBLE = [seed for seed in SEEDS if COUNTED[seed] is not None]


def pooled(seed, *, spare):
    """Replicas carry less where they are few; with ``spare`` some may be gone."""
    toy = random_horizon(seed)
    first = with_pools(toy.first, seed)
    first = with_spare(first, seed) if spare else first
    kept = {name: getattr(first, name) for name in ("pool_tps", "spare", "by_pool", "lose_region")}
    share = 0.3 if spare else 1.0
    windows = (replace(w, demand_tps=share * w.demand_tps, **kept) for w in toy.windows)
    return replace(toy, windows=tuple(windows))


def cost(problem):
    plan = solve_horizon(problem, gap=0.0)
    return np.inf if plan.status == INFEASIBLE else plan.objective


def test_the_instances_cover_both_outcomes_and_every_family():
    assert 10 <= len(FEASIBLE) <= 30
    toys = [random_horizon(seed) for seed in FEASIBLE]
    assert any(toy.lead for toy in toys)
    assert any(toy.lend_usd is not None for toy in toys)
    assert any(toy.reroute is not None for toy in toys)
    assert any(toy.first.stages is not None for toy in toys)
    assert any(toy.first.spot is not None for toy in toys)
    for limit in ("budget_usd", "carbon_kg", "churn"):
        assert any(np.isfinite(getattr(toy, limit)) for toy in toys)
        assert any(np.isfinite(getattr(toy.first, limit)) for toy in toys)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("seed", SEEDS)
def test_optimum_equals_counting(seed, solver):
    problem, best = random_horizon(seed), COUNTED[seed]
    plan = solve_horizon(problem, solver=solver, gap=0.0)
    if best is None:
        assert plan.status == INFEASIBLE
        assert plan.conflict.startswith("These cannot all hold")
        assert plan.binding == ()
    else:
        assert plan.status == OPTIMAL
        assert plan.objective == pytest.approx(best, rel=1e-5, abs=1e-4)
        assert plan.bound == pytest.approx(best, rel=2e-5, abs=1e-3)
        assert plan.conflict == ""


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_optimum_equals_counting_with_pools_and_spare_replicas(seed, spare):
    problem = pooled(seed, spare=spare)
    best, plan = best_by_counting(problem), solve_horizon(problem, gap=0.0)
    assert plan.status == (INFEASIBLE if best is None else OPTIMAL)
    if best is not None:
        assert plan.objective == pytest.approx(best, rel=1e-5, abs=1e-4)
        assert plan.bound == pytest.approx(best, rel=2e-5, abs=1e-3)


def test_a_short_dip_is_held_through_where_starting_again_costs_more():
    """4 a start, 10 an hour: stopping saves 10 and costs 4, of quarter hours 2.5 and 1."""
    assert solve_horizon(steps([200, 100, 200]), gap=0.0).target.ravel().tolist() == [2, 1, 2]
    dear = steps([200, 100, 200], window_budget_usd=np.inf)
    dear = replace(dear, windows=tuple(replace(w, start_usd=w.start_usd * 3) for w in dear.windows))
    assert solve_horizon(dear, gap=0.0).target.ravel().tolist() == [2, 2, 2]


def test_what_is_held_through_a_dip_is_lent():
    dip = steps([200, 100, 200], lend_usd=np.full((1, 1, 1), 7.0))
    plan = solve_horizon(dip, gap=0.0)
    assert plan.target.ravel().tolist() == [2, 2, 2]
    assert plan.lent.ravel().tolist() == [0, 1, 0]
    assert plan.objective == pytest.approx(6 * 10 + 2 * 4 - 7)
    assert plan.totals[1].usd == pytest.approx(20 - 7)


def test_with_a_lead_instances_are_asked_for_and_paid_ahead():
    plan = solve_horizon(steps([100, 100, 300], current=1, lead=1), gap=0.0)
    assert plan.target.ravel().tolist() == [1, 1, 3]
    assert plan.totals[1].usd == pytest.approx(10 + 2 * 10 + 2 * 4)
    late = solve_horizon(steps([300, 100, 300], current=1, lead=1), gap=0.0)
    assert late.status == INFEASIBLE
    assert "300 tokens/s of m in here (100% of its peak) in period 1" in late.conflict
    assert "a period after its start" in late.conflict


def test_a_budget_over_all_periods_names_itself_in_a_conflict():
    plan = solve_horizon(steps([100, 100], budget_usd=15.0), gap=0.0)
    assert plan.status == INFEASIBLE
    assert "$15.00 at most over all periods" in plan.conflict
    assert plan.conflict.endswith("or change the limits named.")


def test_a_maximum_names_itself_and_its_period_in_a_conflict():
    plan = solve_horizon(steps([100, 1500], capacity=20), gap=0.0)
    assert plan.status == INFEASIBLE
    assert plan.conflict.startswith(
        "These cannot all hold: 1,500 tokens/s of m in here (100% of its peak) in period 2 and at "
        "most 9 replicas of m on H100 in here in period 2. Relax any one of them"
    )


def test_scarce_capacity_serves_the_dearer_tier():
    tiers = np.array([[[[[200.0]]], [[[100.0]]]], [[[[200.0]]], [[[300.0]]]]])  # [k, p, l, r, w]
    scarce = replace(
        steps([400, 400], capacity=3),
        tiers=("fast", "slow"), tier_tps=tiers, priority=np.array([[5.0], [1.0]]),
    )  # fmt: skip
    plan = solve_horizon(scarce, gap=0.0)
    assert plan.target.ravel().tolist() == [3, 3]
    np.testing.assert_allclose(plan.unserved_tps[:, :, 0], [[0, 100], [0, 100]], atol=1e-3)
    turned = replace(scarce, priority=np.array([[1.0], [5.0]]))
    np.testing.assert_allclose(
        solve_horizon(turned, gap=0.0).unserved_tps[:, :, 0], [[100, 0], [100, 0]], atol=1e-3
    )
    enough = replace(scarce, windows=steps([400, 400]).windows)
    plan = solve_horizon(enough, gap=0.0)
    assert plan.unserved_tps.sum() == 0
    assert plan.objective == pytest.approx(cost(steps([400, 400])))


@pytest.mark.parametrize("seed", FEASIBLE)
def test_within_the_gap_a_plan_with_fewer_changes_is_taken(seed):
    plan, free = (solve_horizon(random_horizon(seed), gap=0.2, stable=s) for s in (True, False))
    assert changed(plan) <= changed(free)
    assert plan.bound <= COUNTED[seed] + 1e-4
    assert plan.objective <= free.bound + 0.2 * abs(free.bound) + 1e-4 or (
        plan.objective <= free.objective + 1e-4
    )


def changed(plan):
    return sum(total.starts + total.stops for total in plan.totals)


def test_a_little_more_demand_changes_little():
    """An instance more is within the gap of 40%, so nothing needs to start and stop with it."""
    held = steps([200, 110, 200, 110, 200], current=2)
    assert changed(solve_horizon(held, gap=0.4)) == 0
    assert changed(solve_horizon(held, gap=0.4, stable=False)) >= 0


def test_cancel_comes_out(monkeypatch):
    monkeypatch.setattr("planner.optimizer.solvers.highs.CHECK_EVERY_S", 0.0)

    def cancel():
        raise RunCancelled

    with pytest.raises(RunCancelled):
        solve_horizon(random_horizon(FEASIBLE[0]), gap=0.0, check=cancel)


@pytest.mark.parametrize("seed", range(12))
def test_facets_cut_off_fractions_and_no_whole_cover(seed):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(50, 150, int(rng.integers(1, 4))).round(1)
    need = float(rng.uniform(20, 700))
    facets_ = facets(tuple(theta.tolist()), need)
    most = np.ceil(need / theta).astype(int)
    points = np.array(list(itertools.product(*(range(n + 2) for n in most))))
    points = points[points @ theta >= need]
    assert np.all(points @ facets_[:, :-1].T >= facets_[:, -1] - 1e-9)
    for slopes in facets_:  # each touches a whole cover
        assert (points @ slopes[:-1] - slopes[-1]).min() == pytest.approx(0.0, abs=1e-6)
    cost = rng.uniform(0.5, 2, len(theta)) * theta
    best = linprog(cost, A_ub=-facets_[:, :-1], b_ub=-facets_[:, -1]).fun
    assert best == pytest.approx((points @ cost).min(), rel=1e-6)
