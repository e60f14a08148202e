"""What one more would be worth: by counting, and in its signs."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.marginal_values import Move, capacity_values, solve_moved
from planner.optimizer.problem import SolverOptions, Weights
from tests.optimizer.problems import best_by_counting, counted, problem, random_problem, with_power

SEEDS = [seed for seed in range(24) if counted(seed) is not None]
EXACT = SolverOptions(gap=0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_instances_gpus_are_worth_what_counting_says(seed):
    instance = random_problem(seed)
    plan = solve_window(instance, gap=0.0)
    for piece in capacity_values(instance, plan, options=EXACT, count=10):
        region = instance.regions.index(piece.what.split(" in ")[1])
        row = instance.gpus.index(piece.what.split(" in ")[0].split(" more ")[1])
        more = instance.capacity_gpus.copy()
        more[region, row] += int(piece.step)
        # A maximum that only says what fits grows with what fits.
        size = instance.gpus_per_instance[:, row]
        fits = instance.capacity_gpus[region, row] // size
        most = instance.maximum.copy()
        most[:, region, row] += (most[:, region, row] >= fits) * (more[region, row] // size - fits)
        expected = best_by_counting(instance) - best_by_counting(
            replace(instance, capacity_gpus=more, maximum=most)
        )
        assert piece.saves == pytest.approx(expected, abs=1e-3)
        assert piece.saves >= -1e-6
        assert piece.relaxed >= -1e-9


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_kilowatts_for_another_instance_are_worth_what_counting_says(seed):
    instance = with_power(random_problem(seed), seed)
    plan, best = solve_window(instance, gap=0.0), best_by_counting(instance)
    values = capacity_values(instance, plan, options=EXACT, count=20) if best is not None else ()
    places = {
        instance.power_limit_name(region, row): (region, row)
        for region, row in np.argwhere(np.isfinite(instance.power_kw))
    }
    for value in (value for value in values if value.family == "power"):
        more = instance.power_kw.copy()
        more[places[value.what.split("for the ")[1]]] += value.step
        expected = best - best_by_counting(replace(instance, power_kw=more))
        assert value.saves == pytest.approx(expected, abs=1e-3)
        assert value.relaxed >= -1e-9


def test_a_binding_power_limit_has_a_value():
    """At the least power that serves everything, each kilowatt more saves money."""
    base = problem()
    kw = np.broadcast_to(np.array([4.0, 1.0]), base.current.shape).copy()
    free = solve_window(replace(base, kw=kw), gap=0.0)
    lean = solve_window(replace(base, kw=kw, weights=Weights(usd=0.0, kwh=1.0)), gap=0.0)
    limits = np.full((2, base.capacity_gpus.shape[1] + 1), np.inf)
    limits[:, -1] = (lean.target * kw).sum(axis=(0, 2))
    limited = replace(base, kw=kw, power_kw=limits)
    plan = solve_window(limited, gap=0.0)
    assert ((plan.target * kw).sum(axis=(0, 2)) <= limits[:, -1] + 1e-6).all()
    assert plan.objective_usd > free.objective_usd
    assert "power" in {bound.family for bound in plan.binding}
    values = [v for v in capacity_values(limited, plan, options=EXACT) if v.family == "power"]
    assert max(value.saves for value in values) > 0


def test_with_room_to_spare_nothing_is_listed():
    assert capacity_values(problem(), solve_window(problem()), options=EXACT) == ()


def test_no_answer_is_none():
    hopeless = replace(problem(), demand_tps=problem().demand_tps * 1000)
    plan = solve_window(problem(), gap=0.0)
    without = solve_moved(hopeless, plan, Move("x", "", 1.0, ""), options=EXACT)
    assert without.saves is None
    less = replace(problem(), demand_tps=problem().demand_tps * 0.5)
    kept = solve_moved(less, plan, Move("x", "", 1.0, ""), options=EXACT, before=problem())
    assert kept.relaxed > 0
    assert kept.saves > 0
    assert np.isclose(kept.doubt, 0.0, atol=1e-4)
