"""The replica calculator's rules, by hand."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulation.policies.hpa import Hpa, Keda
from simulation.policies.parts.pool_metrics import per_instance
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen


def hpa(initial=4, **how):
    policy = Hpa(**{"target": 0.5, "stabilisation_s": 0.0, **how})
    policy.reset(fleet(pool(initial=initial)))
    return policy


@given(st.integers(0, 500), st.integers(1, 60))
@example(45, 4)
@example(44, 4)
@example(55, 4)
@example(56, 4)
@example(500, 2)
@example(500, 10)
@example(0, 4)
def test_formula_tolerance_and_the_larger_of_both_limits_of_scale_out(percent, ready):
    """1 is the least that minReplicas may be, and its default."""
    ratio = Fraction(percent, 50)
    within = abs(ratio - 1) <= Fraction(1, 10)
    expected = ready if within else min(ceil(ratio * ready), max(2 * ready, ready + 4))
    look = seen(15.0, ready, utilisation=percent / 100)
    assert hpa(ready).decide(look).tolist() == [max(expected, 1)]


def test_starting_instances_count_as_idle_where_more_is_asked():
    # 4 ready at 0.75 of 0.5 would want 6; with 2 on the way the mean is 0.5: nothing more.
    assert hpa().decide(seen(15.0, 4, starting=2, utilisation=0.75)).tolist() == [6]
    # 4 at 1.0 want 8; with 2 on the way 4/6 over 0.5 is 1.33: 8 of the 6.
    assert hpa().decide(seen(15.0, 4, starting=2, utilisation=1.0)).tolist() == [8]


def test_starting_instances_count_as_at_the_target_where_fewer_are_asked():
    # A pod without a metric counts as at 100% of the target when scaling down: 4 ready at 0.25 of
    # 0.5 carry 2 of the target, the 2 that start 2 more: 4, not the 2 of the ready ones alone.
    assert hpa().decide(seen(15.0, 4, starting=2, utilisation=0.25)).tolist() == [4]
    # 1 ready at 0.44 with 9 on the way: 0.988 of the target on all, within the tolerance.
    assert hpa(10).decide(seen(15.0, 1, starting=9, utilisation=0.44)).tolist() == [10]


def test_scale_in_waits_for_the_highest_recommendation_of_five_minutes():
    policy = hpa(10, stabilisation_s=300.0)
    times = [15.0 * i for i in range(1, 23)]
    asked = [policy.decide(seen(t, 10, utilisation=0.1)).tolist()[0] for t in times]
    assert asked[:20] == [10] * 20 and asked[20:] == [2, 2]


def test_gpu_metric_needs_signals_and_others_are_refused():
    policy = hpa(metric="gpu")
    assert policy.wants_signals and not hpa().wants_signals
    assert policy.decide(seen(15.0, 4, utilisation=0.9, busy=0.25)).tolist() == [2]


def on(metric, **what):
    """The gauge of one pool of 2 ready instances with 1,000 KV tokens each."""
    return float(per_instance(metric, seen(15.0, 2, **what), np.array([1000.0]))[0])


def test_gauges_by_hand():
    busy = {"waiting": 6, "batch": 3.0, "utilisation": 0.5, "busy": 0.9}
    assert on("memory", **busy) == 0.5
    assert on("gpu", **busy) == 0.9
    assert on("queue", **busy) == 3.0  # 6 waiting on 2
    assert on("concurrency", **busy) == 6.0  # 3 running and 3 waiting on each
    assert on("tokens", **busy) == 1000.0  # 500 running, and as many waiting as run
    assert on("tokens", waiting=6, utilisation=0.5) == 500.0  # nothing runs to go by
    assert np.isnan(per_instance("queue", seen(15.0, 0, waiting=6), np.array([1000.0]))[0])


def test_queue_depth_grows_where_memory_sees_nothing():
    """Requests wait while memory stands at 2%: what grouped-query models show."""
    look = seen(15.0, 4, waiting=60, utilisation=0.02)
    assert hpa(metric="memory", target=0.8).decide(look).tolist() == [1]
    assert hpa(metric="queue", target=5.0).decide(look).tolist() == [8]  # held to doubling


def keda(initial=4, **how):
    policy = Keda(**{"stabilisation_s": 0.0, **how})
    policy.reset(fleet(pool(initial=initial)))
    return policy


def test_keda_divides_the_total_by_the_target():
    # 21 waiting over 5: 5 instances; 20 are as many as there are, 22 still within 10%.
    assert keda().decide(seen(30.0, 4, waiting=21)).tolist() == [4]
    assert keda().decide(seen(30.0, 4, waiting=23)).tolist() == [5]
    assert keda().decide(seen(30.0, 4, waiting=4)).tolist() == [1]
    # Those that start count in what there is, not in what the total asks for.
    assert keda().decide(seen(30.0, 4, starting=4, waiting=40)).tolist() == [8]
    assert keda().decide(seen(30.0, 4, starting=4, waiting=20)).tolist() == [4]
    # An HPA on a mean counts them at the target here, and keeps 8.
    assert keda().decide(seen(30.0, 4, starting=4, waiting=16)).tolist() == [4]


def test_keda_goes_to_none_after_its_cooldown_and_comes_back_at_a_poll():
    policy = keda(2, min_replicas=0)
    counts = {t: int(policy.decide(seen(float(t), 2))[0]) for t in range(15, 331, 15)}
    assert counts[285] == 1 and counts[300] == 0  # nothing waits from the start on
    assert policy.decide(seen(345.0, 0, waiting=3, utilisation=1.0)).tolist() == [0]
    assert policy.decide(seen(360.0, 0, waiting=3, utilisation=1.0)).tolist() == [1]
    assert keda(2).decide(seen(400.0, 2)).tolist() == [1]  # one stays by default


def test_the_gauge_says_at_what_it_acts():
    policy = hpa(metric="queue", target=5.0)
    gauge = policy.gauge(seen(15.0, 4, waiting=60))
    assert gauge.values.tolist() == [15.0] and not gauge.share
    assert gauge.out_above == pytest.approx([5.5]) and gauge.in_below == pytest.approx([4.5])


def test_targets_by_pool_are_one_for_each():
    policy = Hpa(metric="queue", target=[5.0, 10.0], stabilisation_s=0.0)
    policy.reset(fleet(pool(initial=4), pool(initial=4)))
    assert policy.decide(seen(15.0, [4, 4], waiting=[40, 40])).tolist() == [8, 4]


def test_an_empty_pool_is_left_alone_until_requests_wait():
    assert hpa(0).decide(seen(15.0, 0)).tolist() == [0]
    assert hpa(0).decide(seen(15.0, 0, waiting=3, utilisation=1.0)).tolist() == [1]


def test_constant_load_settles():
    """40 units of load, each instance full at 10: 8 instances at 0.5, from either side."""
    for start in (3, 20):
        policy, ready = hpa(start, stabilisation_s=300.0), start
        counts = []
        for i in range(1, 80):
            used = min(1.0, 40 / (10 * ready))
            ready = int(policy.decide(seen(15.0 * i, ready, utilisation=used))[0])
            counts.append(ready)
        assert len(set(counts[-40:])) == 1
        assert 8 <= counts[-1] <= 9
