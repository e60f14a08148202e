"""Periodic, LT-U and LT-UA: counts by the clock, at once or when utilisation asks."""

import numpy as np
import pytest

from simulation.policies.parts.schedule import FixedSchedule, RollingSchedule, ScheduleStep
from simulation.policies.periodic import PeriodicSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.utilization_gated import UtilizationGated
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

HOUR = 3600.0


def test_periodic_repeats_every_day():
    schedule = PeriodicSchedule(np.array([8 * HOUR, 20 * HOUR]), np.array([[6], [2]]))
    assert schedule.reset(fleet(pool())).tolist() == [2]  # before the first step: the night's
    hours = [7.99, 8, 19.99, 20, 31.99, 32]
    asked = [schedule.step_at(h * HOUR).counts.tolist()[0] for h in hours]
    assert asked == [2, 6, 6, 2, 2, 6]
    assert [schedule.next_change_s(h * HOUR) / HOUR for h in (0, 8, 20, 32)] == [8, 20, 32, 44]


def test_periodic_knows_when_the_day_began():
    times_s, counts = np.array([8 * HOUR, 20 * HOUR]), np.array([[6], [2]])
    schedule = PeriodicSchedule(times_s, counts, offset_s=7 * HOUR)
    assert schedule.reset(fleet(pool())).tolist() == [2]
    assert schedule.step_at(HOUR).counts.tolist() == [6]
    assert schedule.next_change_s(0.0) == HOUR


def decided(policy, observation):
    return policy.decide(observation).targets.tolist()


def lt(forecast=None, targets=((5,),), initial=2, **how):
    policy = UtilizationGated(
        FixedSchedule([HOUR * i for i in range(len(targets))], targets),
        forecast_tps=None if forecast is None else np.array(forecast, float),
        cooldown_s=0.0,
        **how,
    )
    policy.reset(fleet(pool(initial=initial)))
    return policy


def test_lt_ua_past_the_plan_waits_for_what_it_asked_for():
    """100 tokens/s where 1 was forecast: beyond the plan's 5 one more, and the next once that one
    serves; up to the plan as LT-U, whatever starts."""
    policy = lt(forecast=[[1.0]])
    late = 2700.0
    load = {"asked_tps": 100.0, "utilisation": 0.5}
    assert decided(policy, seen(late, 5, **load)) == [6]
    assert decided(policy, seen(late + 15, 5, starting=1, **load)) == [6]
    assert decided(policy, seen(late + 30, 6, **load)) == [7]
    assert decided(policy, seen(late + 45, 2, starting=1, **load)) == [4]


def test_lt_u_moves_towards_the_plan_only_beyond_a_threshold():
    policy = lt()
    asked = [
        decided(policy, seen(t, 2, utilisation=u))[0]
        for t, u in [(15, 0.5), (30, 0.70), (45, 0.71), (60, 0.29)]
    ]
    assert asked == [2, 2, 3, 2]  # the plan is above: no reason to shrink


def test_lt_u_stops_at_the_plan_in_both_directions():
    policy = lt()
    assert decided(policy, seen(15, 5, utilisation=0.9)) == [5]
    assert decided(policy, seen(30, 6, utilisation=0.1)) == [5]
    assert decided(policy, seen(45, 5, utilisation=0.1)) == [5]
    assert decided(policy, seen(60, 3, starting=2, utilisation=0.9)) == [5]


def test_lt_u_rests_between_events():
    policy = UtilizationGated(FixedSchedule([0.0], [[9]]), cooldown_s=20.0)
    policy.reset(fleet(pool()))
    asked = [decided(policy, seen(t, 2, utilisation=0.9))[0] for t in (15, 30, 45)]
    assert asked == [3, 2, 3]


@pytest.mark.parametrize(
    ("minute", "tps", "utilisation", "expected"),
    [
        (50, 501.0, 0.9, 6),  # at least 5 times the forecast of 100
        (50, 499.0, 0.9, 5),
        (39, 501.0, 0.9, 5),  # not yet the last 20 minutes
        (50, 501.0, 0.6, (6, 5)),  # traffic alone, or memory short too
        (50, 49.0, 0.1, 4),  # at most half
        (50, 51.0, 0.1, 5),
        (50, 49.0, 0.4, (4, 5)),
        (50, 49.0, 0.9, (4, 5)),
    ],
)
@pytest.mark.parametrize("reading", ["traffic", "memory"])
def test_lt_ua_passes_the_plan_late_in_the_period_where_the_forecast_is_off(
    reading, minute, tps, utilisation, expected
):
    """Section 6.4 switches from memory to traffic; the other reading asks for both."""
    if isinstance(expected, tuple):
        expected = expected[reading == "memory"]
    policy = lt(forecast=[[100.0]], reading=reading)
    answer = [5]
    for m in range(1, minute + 1):
        calm = seen(60.0 * m, 5, asked_tps=tps if m == minute else 100.0, utilisation=0.5)
        now = seen(60.0 * m, 5, asked_tps=tps, utilisation=utilisation)
        answer = decided(policy, now if m == minute else calm)
    assert answer == [expected]


def test_lt_ua_keeps_the_last_replica_unless_the_plan_removes_it():
    policy = UtilizationGated(
        FixedSchedule([0.0], [[3]]), forecast_tps=np.array([[100.0]]), cooldown_s=0.0
    )
    policy.reset(fleet(pool(minimum=0)))
    replicas = 3
    for i in range(20):
        (replicas,) = decided(policy, seen(2700.0 + 15 * i, replicas, asked_tps=30.0))
    assert replicas == 1
    planned = UtilizationGated(FixedSchedule([0.0], [[0]]), cooldown_s=0.0)
    planned.reset(fleet(pool(minimum=0)))
    assert decided(planned, seen(2700.0, 1, utilisation=0.1)) == [0]


def test_lt_ua_holds_a_bin_against_its_own_forecast():
    """A burst of a minute, against the forecast of the bin that the minute is in."""
    forecast = np.full((8, 1), 100.0)
    forecast[3] = 10.0  # from minute 45 on
    policy = lt(forecast=forecast, targets=((5,), (5,)), bin_s=900.0)
    for m in range(1, 110):
        answer = decided(policy, seen(60.0 * m, 5, asked_tps=60.0, utilisation=0.5))
        assert answer == ([6] if 46 <= m < 60 else [5]), m


def test_lt_ua_looks_at_the_last_minute_alone():
    policy = lt(forecast=[[100.0]])
    for m in range(1, 50):
        answer = decided(policy, seen(60.0 * m, 5, asked_tps=100.0, utilisation=0.5))
        assert answer == [5]
    assert decided(policy, seen(3000.0, 5, asked_tps=600.0)) == [6]
    assert decided(policy, seen(3060.0, 5, asked_tps=100.0, utilisation=0.5)) == [5]


@pytest.mark.parametrize(("sees", "expected"), [("queues", 3), ("memory", 2)])
def test_lt_u_sees_queues_where_memory_never_fills(sees, expected):
    policy = lt(sees=sees)
    assert decided(policy, seen(15, 2, utilisation=0.4, load=1.5)) == [expected]


class Chain:
    """Plans one instance more than there is, and notes what there was."""

    def __init__(self):
        self.asked = []

    def __call__(self, period, running):
        self.asked.append((period, None if running is None else running.tolist()))
        there = np.array([2]) if running is None else running
        return ScheduleStep(there + 1, shares=np.full((1, 1, 1), period + 1.0))


def test_each_period_is_planned_from_the_fleet_that_there_is():
    plan = Chain()
    starts = np.array([0.0, 600.0, 1200.0])
    policy = ScheduleFollower(schedule=RollingSchedule(plan, starts, starts - 300.0))
    for _ in range(2):  # the second time as after a fresh start
        plan.asked.clear()
        assert policy.reset(fleet(pool())).tolist() == [3]
        targets = {
            t: policy.decide(seen(t, ready)).targets.tolist()
            for t, ready in [(60.0, 3), (300.0, 1), (540.0, 2), (600.0, 2), (900.0, 5)]
        }
        # Asked for 300 s before: at 300 the second period is planned from 1, at 900 the third.
        assert plan.asked == [(0, None), (1, [1]), (2, [5])]
        assert targets == {60.0: [3], 300.0: [3], 540.0: [3], 600.0: [2], 900.0: [6]}
    assert policy.decide(seen(1200.0, 6)).shares[0, 0, 0] == 3.0


def test_periods_decided_at_once_follow_each_other():
    plan = Chain()
    starts = np.array([0.0, 600.0, 1200.0])
    policy = UtilizationGated(
        schedule=RollingSchedule(plan, starts, starts - 900.0), cooldown_s=0.0
    )
    assert policy.reset(fleet(pool())).tolist() == [4]  # 3, and 4 asked for already
    assert plan.asked == [(0, None), (1, [3])]
    answer = policy.decide(seen(300.0, 1, starting=1, utilisation=0.9))
    assert plan.asked[2:] == [(2, [2])]
    assert (answer.targets.tolist(), answer.shares[0, 0, 0]) == ([3], 1.0)


def test_deferred_grows_the_pool_the_plan_wants():
    policy = UtilizationGated(FixedSchedule([0.0], [[1, 3]]), cooldown_s=0)
    policy.reset(fleet(pool(usd=1.0), pool(usd=9.0)))
    assert decided(policy, seen(15, [1, 1], utilisation=0.9)) == [1, 2]
