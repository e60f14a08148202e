"""Instances that may be gone and a region that may be lost: against counting, by hand, by laws."""

from dataclasses import replace

import numpy as np

from planner.optimizer import solve_window
from planner.optimizer.problem import INFEASIBLE
from planner.optimizer.roles import role_sides
from planner.optimizer.window import can_decompose
from tests.optimizer.problems import bare_problem, random_columns


def one_model(**changes):
    """100 tokens/s an instance, 250 wanted in each of three regions at 1, 2 and 4 dollars."""
    base = bare_problem(
        ("m",),
        "abc",
        ("H100",),
        theta_tps=np.array([[100.0]]),
        usd_per_hour=np.array([1.0, 2.0, 4.0]).reshape(1, 3, 1),
        demand_tps=np.full((1, 3, 1), 250.0),
        capacity_gpus=np.full((3, 1), 20),
        epsilon=0.4,
    )
    return replace(base, **changes)


def test_by_hand():
    assert solve_window(one_model()).target.ravel().tolist() == [6, 1, 1]
    spare = solve_window(one_model(spare=1))
    assert spare.target.ravel().tolist() == [7, 2, 2]
    (bound,) = [limit for limit in spare.binding if limit.family == "global"]
    assert (bound.replicas, bound.need_tps, bound.served_tps) == (11, 750, 800)
    lost = solve_window(one_model(lose_region=True))
    assert lost.target.ravel().tolist() == [7, 7, 1]  # 800 without either of the cheap ones
    (bound,) = [limit for limit in lost.binding if limit.family == "regions"]
    assert (bound.replicas, bound.need_tps) == (15, 750)


def test_what_may_be_gone_is_named_in_a_conflict():
    short = solve_window(one_model(spare=2, capacity_gpus=np.full((3, 1), 4)))
    assert short.status == INFEASIBLE
    assert "with 2 replicas lost in each pool" in short.conflict
    few = solve_window(one_model(lose_region=True, capacity_gpus=np.array([[9], [3], [3]])))
    assert few.status == INFEASIBLE
    assert "750 tokens/s of m in all regions but a" in few.conflict


def test_by_region_any_of_its_columns_may_lose_it():
    two = replace(random_columns(0), stages=None, spot=None, spare=1, by_pool=False)
    assert len(role_sides(two)) == (two.theta_tps > 0).any(axis=0).sum()
    assert not can_decompose(two)
