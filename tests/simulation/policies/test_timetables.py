"""Periodic, LT-U and LT-UA: counts by the clock, at once or when utilisation asks."""

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.policies.deferred import Deferred
from simulation.policies.periodic import Periodic
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observed import seen

HOUR = 3600.0


def test_periodic_repeats_every_day():
    policy = Periodic([8 * HOUR, 20 * HOUR], [[6], [2]])
    assert policy.reset(fleet(pool())).tolist() == [2]  # before the first step: the night's
    hours = [7.99, 8, 19.99, 20, 31.99, 32]
    asked = [policy.decide(seen(h * HOUR, 1)).tolist()[0] for h in hours]
    assert asked == [2, 6, 6, 2, 2, 6]


def test_periodic_knows_when_the_day_began():
    policy = Periodic([8 * HOUR, 20 * HOUR], [[6], [2]], offset_s=7 * HOUR)
    assert policy.reset(fleet(pool())).tolist() == [2]
    assert policy.decide(seen(HOUR, 1)).tolist() == [6]


@pytest.mark.parametrize(
    ("times", "counts"), [([], []), ([0, 0], [[1], [1]]), ([90_000], [[1]]), ([0], [1])]
)
def test_bad_timetables_are_refused(times, counts):
    with pytest.raises(SimulationError):
        Periodic(times, counts)


def lt(forecast=None, targets=((5,),), initial=2, **how):
    policy = Deferred(
        [HOUR * i for i in range(len(targets))],
        targets,
        forecast_tps=None if forecast is None else np.array(forecast, float),
        cooldown_s=0.0,
        **how,
    )
    policy.reset(fleet(pool(initial=initial)))
    return policy


def test_lt_u_moves_towards_the_plan_only_beyond_a_threshold():
    policy = lt()
    assert policy.name == "lt-u"
    asked = [
        policy.decide(seen(t, 2, utilisation=u)).tolist()[0]
        for t, u in [(15, 0.5), (30, 0.70), (45, 0.71), (60, 0.29)]
    ]
    assert asked == [2, 2, 3, 2]  # the plan is above: no reason to shrink


def test_lt_u_stops_at_the_plan_in_both_directions():
    policy = lt()
    assert policy.decide(seen(15, 5, utilisation=0.9)).tolist() == [5]
    assert policy.decide(seen(30, 6, utilisation=0.1)).tolist() == [5]
    assert policy.decide(seen(45, 5, utilisation=0.1)).tolist() == [5]
    assert policy.decide(seen(60, 3, starting=2, utilisation=0.9)).tolist() == [5]


def test_lt_u_rests_between_events():
    policy = Deferred([0.0], [[9]], cooldown_s=20.0)
    policy.reset(fleet(pool()))
    asked = [policy.decide(seen(t, 2, utilisation=0.9)).tolist()[0] for t in (15, 30, 45)]
    assert asked == [3, 2, 3]


@pytest.mark.parametrize(
    ("minute", "tps", "utilisation", "wanted"),
    [
        (50, 501.0, 0.9, 6),  # at least 5 times the forecast of 100
        (50, 499.0, 0.9, 5),
        (39, 501.0, 0.9, 5),  # not yet the last 20 minutes
        (50, 501.0, 0.6, 5),  # as LT-U, no further without memory being short
        (50, 49.0, 0.1, 4),  # at most half
        (50, 51.0, 0.1, 5),
        (50, 49.0, 0.4, 5),
    ],
)
def test_lt_ua_passes_the_plan_late_in_the_period_where_the_forecast_is_off(
    minute, tps, utilisation, wanted
):
    policy = lt(forecast=[[100.0]])
    assert policy.name == "lt-ua"
    answer = [5]
    for m in range(1, minute + 1):
        calm = seen(60.0 * m, 5, input_tps=tps, utilisation=0.5)
        now = seen(60.0 * m, 5, input_tps=tps, utilisation=utilisation)
        answer = policy.decide(now if m == minute else calm).tolist()
    assert answer == [wanted]


def test_lt_ua_holds_a_period_against_its_own_forecast():
    policy = lt(forecast=[[100.0], [10.0]], targets=((5,), (5,)))
    for m in range(1, 110):
        answer = policy.decide(seen(60.0 * m, 5, input_tps=60.0, utilisation=0.9)).tolist()
        assert answer == ([6] if m >= 100 else [5]), m


def test_deferred_grows_the_pool_the_plan_wants():
    policy = Deferred([0.0], [[1, 3]], cooldown_s=0)
    policy.reset(fleet(pool(usd=1.0), pool(usd=9.0)))
    assert policy.decide(seen(15, [1, 1], utilisation=0.9)).tolist() == [1, 2]
