"""The replica calculator's rules, by hand."""

import pytest

from simulation.errors import SimulationError
from simulation.policies.hpa import Hpa
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observed import seen


def hpa(initial=4, **how):
    policy = Hpa(**{"target": 0.5, "stabilisation_s": 0.0, **how})
    policy.reset(fleet(pool(initial=initial)))
    return policy


@pytest.mark.parametrize(
    ("utilisation", "wanted"),
    [(0.5, 4), (0.55, 4), (0.56, 5), (0.75, 6), (0.46, 4), (0.44, 4), (0.37, 3), (0.0, 0)],
)
def test_formula_and_tolerance(utilisation, wanted):
    assert hpa().decide(seen(15.0, 4, utilisation=utilisation)).tolist() == [wanted]


def test_starting_instances_count_as_idle_where_more_is_asked():
    # 4 ready at 0.75 of 0.5 would want 6; with 2 on the way the mean is 0.5: nothing more.
    assert hpa().decide(seen(15.0, 4, starting=2, utilisation=0.75)).tolist() == [6]
    # 4 at 1.0 want 8; with 2 on the way 4/6 over 0.5 is 1.33: 8 of the 6.
    assert hpa().decide(seen(15.0, 4, starting=2, utilisation=1.0)).tolist() == [8]


def test_scale_out_is_limited_by_the_larger_of_both_policies():
    assert hpa(2).decide(seen(15.0, 2, utilisation=5.0)).tolist() == [6]  # 4 instances
    assert hpa(10).decide(seen(15.0, 10, utilisation=5.0)).tolist() == [20]  # 100%


def test_scale_in_waits_for_the_highest_recommendation_of_five_minutes():
    policy = hpa(10, stabilisation_s=300.0)
    times = [15.0 * i for i in range(1, 23)]
    asked = [policy.decide(seen(t, 10, utilisation=0.1)).tolist()[0] for t in times]
    assert asked[:20] == [10] * 20 and asked[20:] == [2, 2]


def test_gpu_metric_needs_signals_and_others_are_refused():
    policy = hpa(metric="gpu")
    assert policy.wants_signals and not hpa().wants_signals
    assert policy.decide(seen(15.0, 4, utilisation=0.9, busy=0.25)).tolist() == [2]
    with pytest.raises(SimulationError, match="no metric"):
        Hpa(metric="cpu")


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
