"""Fronts of two objectives against every fleet there is."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import ScenarioError
from planner.optimizer import pareto_front
from planner.optimizer.figures import is_feasible
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
    front = pareto_front(metered(seed), "usd", "kg", points=6, gap=0.0)
    assert front[-1].first == pytest.approx(usd.min(), rel=2e-4)
    assert front[0].second == pytest.approx(kg.min(), rel=2e-4)
    for at in front:
        least = usd[kg <= at.second * (1 + 1e-6)].min()
        assert least - 1e-6 <= at.first <= least * (1 + 2e-4)
        assert at.first_bound <= least + 1e-6
        assert at.first_bound == pytest.approx(at.first, rel=2e-4)
    for left, right in itertools.pairwise(front):
        assert left.second < right.second
        assert left.first > right.first


def test_a_front_without_a_plan_is_empty():
    hopeless = problem(demand_tps=problem().demand_tps * 1000)
    assert pareto_front(hopeless, "gpu_hours", "usd") == ()


@pytest.mark.parametrize(
    ("first", "second", "points", "says"),
    [
        ("usd", "usd", 3, "two measures"),
        ("usd", "kwh", 3, "two measures"),
        ("latency", "usd", 3, "two measures"),
        ("kg", "usd", 1, "2 points or more"),
    ],
)
def test_what_makes_no_sense_is_refused(first, second, points, says):
    with pytest.raises(ScenarioError, match=says):
        pareto_front(problem(), first, second, points=points)
