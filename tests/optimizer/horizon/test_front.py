"""Fronts over all periods: both ends, order, and against counting in each point."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer.pareto_front import knee
from tests.optimizer.horizon.toys import best_by_counting, front_of, random_horizon, steps

NO = float("inf")


def free(seed):
    toy = random_horizon(seed)
    windows = tuple(
        replace(w, budget_usd=NO, carbon_kg=NO, churn=NO) for w in toy.windows
    )  # no limit but the front's own
    return replace(toy, windows=windows, budget_usd=NO, carbon_kg=NO, churn=NO, lend_usd=None)


SEEDS = [seed for seed in range(40) if best_by_counting(free(seed)) is not None][:8]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_point_is_the_least_at_its_level(seed):
    toy = free(seed)
    front = front_of(toy, "usd", "kg", 5, gap=0.0)
    assert front[-1].first == pytest.approx(best_by_counting(toy), rel=3e-4)
    for point in front:
        least = best_by_counting(replace(toy, carbon_kg=point.second * (1 + 1e-6)))
        assert point.first == pytest.approx(least, rel=3e-4)
        assert point.first_bound <= least + 1e-4
    for left, right in itertools.pairwise(front):
        assert left.second < right.second
        assert left.first > right.first


def test_a_front_without_a_plan_is_empty():
    hopeless = replace(
        steps([100.0] * 2),
        windows=tuple(
            replace(w, demand_tps=w.demand_tps * 1e6) for w in steps([100.0] * 2).windows
        ),
    )
    assert front_of(hopeless, "gpu_hours", "usd", 2) == ()


def test_the_knee_is_where_the_curve_bends():
    assert knee([(10.0, 0.0), (2.0, 1.0), (1.0, 8.0), (0.0, 10.0)]) == 1
    assert knee([(10.0, 0.0), (5.0, 5.0), (0.0, 10.0)]) is None
    assert knee([(10.0, 0.0), (0.0, 10.0)]) is None
    assert knee([(1.0, 0.0), (1.0, 5.0), (1.0, 10.0)]) is None
    assert np.isfinite(knee([(9.0, 1.0), (3.0, 2.0), (2.9, 9.0)]))
