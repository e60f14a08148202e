"""AIBrix's strategies, by hand."""

import pytest

from simulation.errors import SimulationError
from simulation.policies.aibrix import (
    Bounds,
    PodAutoscaler,
    replicas_by_apa,
    replicas_by_kpa,
    replicas_with_pending,
)
from simulation.policy_check import check
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

TOLERANCES, RATES = (0.1, 0.1), (2.0, 2.0)


@pytest.mark.parametrize(
    ("value", "n", "expected"),
    # within 10%; grows by the ratio, at most doubles; shrinks by the ratio, at most halves
    [(0.77, 10, 10), (0.84, 10, 12), (2.1, 10, 20), (0.63, 10, 10), (0.56, 10, 8), (0.1, 10, 5)],
)
def test_apa(value, n, expected):
    assert replicas_by_apa(value, 0.7, n, TOLERANCES, RATES) == expected


def test_kpa_takes_the_mean_of_a_pod_over_the_target_as_the_count():
    # In the stable mode: 12 over 2 are 6, whatever runs.
    assert replicas_by_kpa(12, 13, 2, 10, TOLERANCES, RATES, 2.0) == 6
    # More than half of what runs stays, and at most twice of it comes.
    assert replicas_by_kpa(2.5, 2.5, 2, 10, TOLERANCES, RATES, 2.0) == 5
    assert replicas_by_kpa(90, 90, 2, 10, TOLERANCES, RATES, 2.0) == 20
    # In panic the larger of both windows counts.
    assert replicas_by_kpa(12, 30, 2, 10, TOLERANCES, RATES, 2.0) == 15
    assert replicas_by_kpa(0, 0, 2, 10, TOLERANCES, RATES, 2.0) == 5


@pytest.mark.parametrize(
    ("strategy", "asked", "value", "ready", "expected"),
    # The cases of the source's own test: 4 replicas, target 50.
    [("kpa", 5, 250, 2, 4), ("kpa", 7, 350, 3, 6), ("apa", 8, 90, 2, 4), ("apa", 2, 10, 2, 3)],
)
def test_replicas_that_start_damp_a_step(strategy, asked, value, ready, expected):
    assert replicas_with_pending(strategy, asked, value, 50, ready, 4) == expected
    assert replicas_with_pending(strategy, asked, value, 50, 4, 4) == asked


@pytest.mark.parametrize(("guarded", "expected"), [(True, 20), (False, 40)])
def test_one_lack_of_replicas_is_answered_once(guarded, expected):
    policy = scaler(stable_window_s=1.0, pending_guard=guarded)
    assert policy.decide(seen(10.0, 10, utilisation=1.4)).tolist() == [20]
    assert policy.decide(seen(20.0, 10, starting=10, utilisation=1.4)).tolist() == [expected]


def scaler(initial=10, **how):
    policy = PodAutoscaler(**how)
    policy.reset(fleet(pool(initial=initial)))
    return policy


def test_values_are_averaged_over_the_stable_window():
    policy = scaler(down_cooldown_s=0.0)
    assert policy.decide(seen(10.0, 10, utilisation=0.7)).tolist() == [10]
    # 1.4 and 0.7 are 1.05: half as much again.
    assert policy.decide(seen(20.0, 10, utilisation=1.4)).tolist() == [15]
    assert policy.decide(seen(500.0, 10, utilisation=0.7)).tolist() == [10]  # the others are old


def test_scale_in_waits_until_all_of_its_window_ask_for_it():
    policy = scaler(stable_window_s=1.0)
    assert policy.decide(seen(10.0, 10, utilisation=0.7)).tolist() == [10]
    assert policy.decide(seen(30.0, 10, utilisation=0.35)).tolist() == [10]
    assert policy.decide(seen(320.0, 10, utilisation=0.56)).tolist() == [8]
    assert policy.decide(seen(325.0, 8, utilisation=1.4)).tolist() == [16]


def test_scale_out_waits_for_the_least_of_its_window():
    policy = scaler(stable_window_s=1.0, up_cooldown_s=60.0)
    assert policy.decide(seen(10.0, 10, utilisation=0.7)).tolist() == [10]
    assert policy.decide(seen(20.0, 10, utilisation=1.4)).tolist() == [10]
    assert policy.decide(seen(75.0, 10, utilisation=1.05)).tolist() == [15]


def test_windows_that_do_not_hold_take_the_lowest_for_scale_in():
    policy = scaler(stable_window_s=1.0, holds=False)
    assert policy.decide(seen(10.0, 10, utilisation=0.35)).tolist() == [5]
    assert policy.decide(seen(20.0, 10, utilisation=0.56)).tolist() == [5]
    assert policy.decide(seen(400.0, 10, utilisation=0.56)).tolist() == [8]


def test_schedules_bound_the_replicas_at_their_times():
    morning = Bounds(3600.0, 7200.0, 12, 14)
    policy = scaler(bounds=[morning], stable_window_s=1.0)
    assert policy.decide(seen(10.0, 10, utilisation=0.7)).tolist() == [10]
    assert policy.decide(seen(3610.0, 10, utilisation=0.7)).tolist() == [12]
    assert policy.decide(seen(3700.0, 13, utilisation=1.4)).tolist() == [14]
    assert policy.decide(seen(7200.0, 12, utilisation=0.35)).tolist() == [6]
    late = scaler(bounds=[morning], offset_s=3600.0)
    assert late.decide(seen(10.0, 10, utilisation=0.7)).tolist() == [12]


def test_wrong_strategies_are_refused():
    with pytest.raises(SimulationError, match="no strategy"):
        PodAutoscaler("hpa")


@pytest.mark.parametrize("strategy", ["apa", "kpa"])
def test_it_keeps_the_protocol(strategy):
    check(lambda: PodAutoscaler(strategy))
