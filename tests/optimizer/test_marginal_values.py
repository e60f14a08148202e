"""What one more would be worth: by counting, and in its signs."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import solve_window
from planner.optimizer.marginal_values import Move, capacity_values, solve_moved
from tests.optimizer.problems import best_by_counting, counted, problem, random_problem

SEEDS = [seed for seed in range(24) if counted(seed) is not None]


@pytest.mark.parametrize("seed", SEEDS)
def test_another_instances_gpus_are_worth_what_counting_says(seed):
    instance = random_problem(seed)
    plan = solve_window(instance, gap=0.0)
    for piece in capacity_values(instance, plan, gap=0.0, count=10):
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


def test_with_room_to_spare_nothing_is_listed():
    assert capacity_values(problem(), solve_window(problem())) == ()


def test_no_answer_is_none():
    hopeless = replace(problem(), demand_tps=problem().demand_tps * 1000)
    options = {"gap": 0.0}
    plan = solve_window(problem(), gap=0.0)
    without = solve_moved(hopeless, plan, Move("x", "", 1.0, ""), options=options)
    assert without.saves is None
    less = replace(problem(), demand_tps=problem().demand_tps * 0.5)
    kept = solve_moved(less, plan, Move("x", "", 1.0, ""), options=options, before=problem())
    assert kept.relaxed > 0
    assert kept.saves > 0
    assert np.isclose(kept.doubt, 0.0, atol=1e-4)
