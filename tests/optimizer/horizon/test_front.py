"""The front of a single period against every fleet there is, and where it bends."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer.figures import is_feasible
from planner.optimizer.pareto_front import knee
from planner.optimizer.problem import single_period
from tests.optimizer.horizon.toys import front_of
from tests.optimizer.problems import (
    best_by_counting,
    every_fleet,
    problem,
    random_problem,
    with_limits,
)


def metered(seed):
    """A tiny instance with energy and carbon, without caps."""
    inf = float("inf")
    return replace(
        with_limits(random_problem(seed), seed), budget_usd=inf, carbon_kg=inf, churn=inf
    )


FEASIBLE = [seed for seed in range(40) if best_by_counting(metered(seed)) is not None]


def counted(instance):
    """US dollars and kg of every feasible fleet."""
    x = every_fleet(instance)
    x = x[[is_feasible(instance, target) for target in x]]
    hours = x + np.maximum(0, x - instance.current) * instance.start_usd / instance.usd_per_hour
    kg = hours * instance.kw * instance.kg_per_kwh[:, None]
    return (hours * instance.usd_per_hour).sum(axis=(1, 2, 3)), kg.sum(axis=(1, 2, 3))


@pytest.mark.parametrize("seed", FEASIBLE[:6])
def test_every_point_is_the_least_at_its_level(seed):
    usd, kg = counted(metered(seed))
    front = front_of(single_period(metered(seed)), "usd", "kg", 6, gap=0.0)
    assert front[-1].first == pytest.approx(usd.min(), rel=2e-4)
    assert front[0].second == pytest.approx(kg.min(), rel=2e-4)
    for point in front:
        least = usd[kg <= point.second * (1 + 1e-6)].min()
        assert least - 1e-6 <= point.first <= least * (1 + 2e-4)
        assert point.first_bound <= least + 1e-6
        assert point.first_bound == pytest.approx(point.first, rel=2e-4)
    for left, right in itertools.pairwise(front):
        assert left.second < right.second
        assert left.first > right.first


def test_a_front_without_a_plan_is_empty():
    hopeless = problem(demand_tps=problem().demand_tps * 1000)
    assert front_of(single_period(hopeless), "gpu_hours", "usd", 9) == ()


def test_the_knee_is_where_the_curve_bends():
    assert knee([(10.0, 0.0), (2.0, 1.0), (1.0, 8.0), (0.0, 10.0)]) == 1
    assert knee([(10.0, 0.0), (5.0, 5.0), (0.0, 10.0)]) is None
    assert knee([(10.0, 0.0), (0.0, 10.0)]) is None
    assert knee([(1.0, 0.0), (1.0, 5.0), (1.0, 10.0)]) is None
    assert np.isfinite(knee([(9.0, 1.0), (3.0, 2.0), (2.9, 9.0)]))
