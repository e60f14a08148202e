"""AIBrix's strategies, by hand."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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


@given(st.integers(0, 300), st.integers(1, 100))
@example(77, 10)
@example(63, 10)
@example(210, 10)
@example(10, 10)
def test_apa_changes_by_the_ratio_beyond_ten_percent_and_at_most_doubles_or_halves(percent, n):
    ratio = Fraction(percent, 70)
    within = abs(ratio - 1) <= Fraction(1, 10)
    expected = n if within else min(max(ceil(n * ratio), n // 2), 2 * n)
    assert replicas_by_apa(percent / 100, 0.7, n, TOLERANCES, RATES) == expected


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


MORNING = Bounds(3600.0, 7200.0, 12, 14)
AT_ONCE = {"stable_window_s": 1.0}
STEPS = {
    # options, and steps of time in s, ready replicas, utilisation and the replicas asked for
    "mean of the stable window: 1.4 and 0.7 are 1.05": (
        {"down_cooldown_s": 0.0},
        [(10.0, 10, 0.7, 10), (20.0, 10, 1.4, 15), (500.0, 10, 0.7, 10)],
    ),
    "scale-in waits until all of its window ask for it": (
        AT_ONCE,
        [(10.0, 10, 0.7, 10), (30.0, 10, 0.35, 10), (320.0, 10, 0.56, 8), (325.0, 8, 1.4, 16)],
    ),
    "scale-out waits for the least of its window": (
        AT_ONCE | {"up_cooldown_s": 60.0},
        [(10.0, 10, 0.7, 10), (20.0, 10, 1.4, 10), (75.0, 10, 1.05, 15)],
    ),
    "windows that do not hold take the lowest for scale-in": (
        AT_ONCE | {"holds": False},
        [(10.0, 10, 0.35, 5), (20.0, 10, 0.56, 5), (400.0, 10, 0.56, 8)],
    ),
    "schedules bound the replicas at their times": (
        AT_ONCE | {"bounds": [MORNING]},
        [(10.0, 10, 0.7, 10), (3610.0, 10, 0.7, 12), (3700.0, 13, 1.4, 14), (7200.0, 12, 0.35, 6)],
    ),
    "schedules count from the offset": (
        {"bounds": [MORNING], "offset_s": 3600.0},
        [(10.0, 10, 0.7, 12)],
    ),
}


@pytest.mark.parametrize(("options", "steps"), STEPS.values(), ids=STEPS)
def test_decisions_over_time(options, steps):
    policy = scaler(**options)
    asked = [policy.decide(seen(at, n, utilisation=used)).tolist() for at, n, used, _ in steps]
    assert asked == [[replicas] for *_, replicas in steps]


@pytest.mark.parametrize("strategy", ["apa", "kpa"])
def test_it_keeps_the_protocol(strategy):
    check(lambda: PodAutoscaler(strategy))
