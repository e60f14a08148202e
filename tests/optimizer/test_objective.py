"""Weights and caps on the whole plan, against counting and by their laws."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.problem import INFEASIBLE, Weights
from tests.optimizer.problems import problem


def metered(**changes):
    """The round problem with energy: the A100 draws 0.5 kW and the H100 1 kW per GPU."""
    size = np.array([[1, 1], [4, 4]])
    kw = np.broadcast_to((size * [0.5, 1.0])[:, None, :], (2, 2, 2)).astype(float)
    return problem(**{"kw": kw, "kg_per_kwh": np.array([0.4, 0.1])} | changes)


def test_totals_are_what_the_target_takes():
    instance = metered(current=np.ones((2, 2, 2), np.int64))
    plan = solve_window(instance, gap=0.0)
    target, size = plan.target, instance.gpus_per_instance[:, None, :]
    starts = np.maximum(0, target - 1)
    hours = target + starts / 4  # every start burns a quarter of an hour
    assert plan.totals.usd == pytest.approx(plan.objective_usd)
    assert plan.totals.gpu_hours == pytest.approx((hours * size).sum())
    assert plan.totals.kwh == pytest.approx((hours * instance.kw).sum())
    kg = hours * instance.kw * np.array([0.4, 0.1])[:, None]
    assert plan.totals.kg == pytest.approx(kg.sum())
    assert plan.totals.starts == starts.sum()
    assert plan.totals.stops == np.maximum(0, 1 - target).sum()


@pytest.mark.parametrize("measure", ["usd", "gpu_hours", "kwh", "kg"])
def test_no_other_objective_takes_less_of_a_measure(measure):
    only = dict.fromkeys(("usd", "gpu_hours", "kwh", "kg"), 1e-06)
    best = solve_window(metered(weights=Weights(**only | {measure: 1.0})), gap=0.0).totals
    for other in only:
        plan = solve_window(metered(weights=Weights(**only | {other: 1.0})), gap=0.0)
        assert getattr(best, measure) <= getattr(plan.totals, measure) + 1e-3


@pytest.mark.parametrize("method", ["whole", "decomposed"])
@pytest.mark.parametrize(("cap", "measure"), [("budget_usd", "usd"), ("carbon_kg", "kg")])
def test_a_tighter_cap_never_costs_less_and_ends_with_no_plan(cap, measure, method):
    weights = Weights(usd=0.0, gpu_hours=1.0) if measure == "usd" else Weights()
    free = solve_window(metered(weights=weights), gap=0.0, method=method)
    last, infeasible = free.objective_usd, False
    for share in (1.0, 0.97, 0.9, 0.8, 0.6, 0.2):
        capped = metered(weights=weights, **{cap: getattr(free.totals, measure) * share + 1e-6})
        plan = solve_window(capped, gap=0.0, method=method)
        if plan.status == INFEASIBLE:
            infeasible = True
            assert "budget of $" in plan.conflict or "carbon cap of" in plan.conflict
            continue
        assert not infeasible
        assert plan.objective_usd >= last - 1e-4
        assert getattr(plan.totals, measure) <= getattr(capped, cap) + 1e-5
        last = plan.objective_usd
    assert infeasible


def test_churn_zero_keeps_the_fleet_that_suffices():
    fleet = solve_window(metered(), gap=0.0).target
    less = metered(demand_tps=metered().demand_tps / 2, current=fleet)
    assert solve_window(less, gap=0.0).totals.stops > 0
    for allowed in range(4):
        plan = solve_window(replace(less, churn=float(allowed)), gap=0.0)
        assert plan.totals.starts + plan.totals.stops <= allowed
    np.testing.assert_array_equal(solve_window(replace(less, churn=0.0)).target, fleet)
