"""The Planner's decisions, by hand."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.fleet import KvLink, Region
from simulation.policies.dynamo_planner import DynamoPlanner, Kalman, engine_rps, fit_to_budget
from simulation.policy_check import check
from tests.simulation.builders import fleet, pool, profile
from tests.simulation.policies.observations import seen


def planner(target, initial=4, **how):
    policy = DynamoPlanner(target, **how)
    policy.reset(fleet(pool(initial=initial)))
    return policy


@pytest.mark.parametrize(
    ("target", "fullest", "expected"),
    [
        ("throughput", 1.01, 5), ("throughput", 1.0, 4), ("throughput", 0.59, 3),
        ("latency", 0.41, 5), ("latency", 0.4, 4), ("latency", 0.09, 3),
        ("load", 0.8, 5), ("load", 0.79, 4), ("load", 0.4, 3), ("load", 0.41, 4),
    ],
)  # fmt: skip
def test_one_replica_at_a_time_by_the_fullest_engine(target, fullest, expected):
    assert planner(target).decide(seen(5.0, 4, fullest=fullest)).tolist() == [expected]


def test_the_rest_must_carry_the_load():
    assert planner("throughput", 2).decide(seen(5.0, 2, fullest=0.55)).tolist() == [2]
    assert planner("throughput", 2).decide(seen(5.0, 2, fullest=0.45)).tolist() == [1]
    assert planner("throughput", 1).decide(seen(5.0, 1, fullest=0.0)).tolist() == [1]


def test_while_replicas_start_nothing_is_added_and_a_wish_for_fewer_cancels():
    policy = planner("throughput")
    assert policy.decide(seen(5.0, 4, starting=2, fullest=1.5)).tolist() == [6]
    assert policy.decide(seen(10.0, 4, starting=2, fullest=0.8)).tolist() == [6]
    assert policy.decide(seen(15.0, 4, starting=2, fullest=0.2)).tolist() == [3]
    assert policy.decide(seen(20.0, 2, starting=2, fullest=0.55)).tolist() == [2]


def test_prefill_and_decode_go_by_their_own_signal():
    pools = pool(initial=4, role="prefill", link=KvLink(1e5, 1e9)), pool(initial=4, role="decode")
    policy = DynamoPlanner("throughput", context_tokens=1000.0)
    policy.reset(fleet(*pools))
    look = seen(5.0, [4, 4], longest=[1000.0, 0], fullest=[0.0, 0.5])
    assert policy.decide(look).tolist() == [5, 3]


@given(st.floats(1, 200), st.integers(1, 30))
def test_demand_over_capacity_within_the_largest_step(rate, ready):
    policy = planner("sla", ready, lengths=[(100.0, 50.0)], predictor="constant",
                     ttft_s=1.0, itl_s=0.1)  # fmt: skip
    each = policy.computed_parameters()[0].values[0]
    count = ceil(rate / each)
    expected = max(min(max(count, ready - 8), ready + 8), 1)
    assert policy.decide(seen(180.0, ready, input_tps=100.0 * rate)).tolist() == [expected]


def test_a_stricter_slo_never_gives_more_capacity():
    made = profile(kv=100_000, budget=512)
    for role in ("both", "decode", "prefill"):
        rates = [engine_rps(made, role, 200, 100, 0.2 * f, 0.05 * f) for f in (0.5, 1, 2, 50)]
        assert rates == sorted(rates) and rates[0] > 0


def test_the_filter_follows_a_straight_line():
    kalman = Kalman(1.0, 0.1, 1e-6)
    for i in range(30):
        if i >= 5:
            assert kalman.predict() == pytest.approx(10 + 2 * i, rel=0.02)
        kalman.add(10.0 + 2 * i)
    flat = Kalman(1.0, 0.1, 10.0)
    flat.add(0.0)  # before the first request
    for _ in range(4):
        flat.add(7.0)
    assert flat.predict() == 7.0


@given(
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.integers(2, 60),
)
def test_budgets_are_kept_and_no_direction_is_turned(current, asked, most):
    cost = (2.0, 1.0)
    way = fit_to_budget(current, asked, cost, most, 1)
    total = np.dot(current, cost)
    if total > most:
        return  # recovery: the fleet shrinks in proportion
    assert np.dot(way, cost) <= most
    for now, goal, then in zip(current, asked, way, strict=True):
        assert min(now, goal) <= then <= max(now, goal)


def test_power_limits_the_replicas():
    policy = planner("throughput", power_w=1000.0, gpu_w=250.0)
    assert policy.decide(seen(5.0, 4, fullest=1.5)).tolist() == [4]
    assert planner("throughput", max_gpus=5).decide(seen(5.0, 4, fullest=1.5)).tolist() == [5]


@pytest.mark.parametrize("target", ["throughput", "latency", "load"])
def test_it_keeps_the_protocol(target):
    check(lambda: DynamoPlanner(target))


def test_the_power_of_a_site_is_the_budget_of_its_planners():
    """4 x 250 W of GPUs, 50 W of servers per GPU and a PUE of 1.2 are 1.44 kW; two pools share."""
    two = fleet(*(pool(initial=4, host_w=50.0) for _ in range(2)))
    site = Region("r", 400.0, 1.2, site_kw=2 * 1.44)
    policy = DynamoPlanner("throughput", gpu_w=250.0)
    policy.reset(replace(two, regions=(site,)))
    assert policy.decide(seen(5.0, [4, 4], fullest=[1.5, 1.5])).tolist() == [4, 4]
    (budget,) = policy.computed_parameters()
    assert budget.values == pytest.approx([1000.0, 1000.0])
    assert planner("throughput").computed_parameters() == ()
